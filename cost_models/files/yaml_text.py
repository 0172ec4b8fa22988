"""Reading YAML text safely: plain values, and the line of every key.

YAML is read from its events, so no tag can run code and no document can nest or multiply without end. Scalars
follow the YAML 1.2 core schema plus what people write: `300e9` and `1_000_000` are numbers, `no` is a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml

from cost_models.documents import Document, Key, printable, show_key
from cost_models.errors import InputError, Problem

MAX_DEPTH = 32
"""Deepest nesting that is read; real inputs need eight levels."""
MAX_VALUES = 500_000
"""Maximum number of values, with aliases followed, so that a few lines cannot stand for billions."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?\d[\d_]{0,30}$")
_FLOAT = re.compile(r"[-+]?(\d[\d_]{0,30}(\.\d{0,30})?|\.\d{1,30})([eE][-+]?\d{1,5})?$")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def parse_yaml(text: str, *, source: str) -> Document:
    """Parse a YAML text safely into a `Document` of plain values with line numbers. Raises InputError for text
    that is not YAML, or is hostile."""
    if not text.strip():
        raise InputError(f"`{source}` is empty")
    try:
        return _Reader(source, text).document()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        message = f"not valid YAML: {printable(error.problem or str(error))}"
        if "nesting depth" in message:  # libyaml reads ahead, and may stop before we do
            message = f"nested more than {MAX_DEPTH} levels deep"
        raise InputError(f"cannot read `{source}`", problems=[Problem(f"{source}{line}", message)]) from None
    except yaml.YAMLError:
        raise InputError(f"`{source}` holds characters that YAML does not allow") from None


class _Reader:
    """Reader of a YAML text: a value is built from the events between its start and its end."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self.line = 0
        """Line of the latest event, from 1."""
        self.lines: dict[Key, int] = {}
        self.problems: dict[Key, Problem] = {}
        self.anchors: dict[str, tuple[Any, int]] = {}
        """Name of an anchor → value, and how many values it stands for."""
        self.values = 0

    def document(self) -> Document:
        """Parse the document of the text. Raises InputError and yaml.YAMLError."""
        value, ended, documents = None, False, 0
        while not isinstance(event := self.next_event(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentEndEvent):
                ended = bool(event.explicit)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.stop("a second document starts here; one file holds one")
                value = self.value(self.next_event(), ())
        return Document(
            source=self.source, value=value, lines=self.lines, problems=self.problems, ended=ended
        )

    def next_event(self) -> Any:
        """Take the next event. Tags are refused: a file holds plain values."""
        event = next(self.events)
        self.line = event.start_mark.line + 1
        tag = getattr(event, "tag", None)
        text = isinstance(event, yaml.ScalarEvent) and tag in ("!", "tag:yaml.org,2002:str")
        if tag and not text and event.implicit is not True:
            self.stop(f"the tag `{printable(tag)}` is not allowed; a file holds plain values only")
        return event

    def value(self, event: Any, key: Key) -> Any:
        """Value that starts with an event and stands at the place `key`."""
        before, alias = self.values, isinstance(event, yaml.AliasEvent)
        if alias and event.anchor not in self.anchors:
            self.stop(f"`*{printable(str(event.anchor))}` names nothing that is complete")
        if len(key) >= MAX_DEPTH and isinstance(event, yaml.CollectionStartEvent):
            self.stop(f"nested more than {MAX_DEPTH} levels deep")
        value, size = self.anchors[event.anchor] if alias else (None, 1)
        self.values += size
        if self.values > MAX_VALUES:
            self.stop(f"stands for more than {MAX_VALUES} values")
        if alias:
            return value
        if isinstance(event, yaml.ScalarEvent):
            value = self.scalar(event.value, key) if event.implicit[0] else event.value
        else:
            value = self.fields(key) if isinstance(event, yaml.MappingStartEvent) else self.items(key)
        if event.anchor:
            self.anchors[event.anchor] = value, self.values - before
        return value

    def items(self, key: Key) -> list[Any]:
        """Items of a list whose start was taken."""
        items: list[Any] = []
        while not isinstance(event := self.next_event(), yaml.SequenceEndEvent):
            place = (*key, len(items))
            self.lines[place] = self.line
            items.append(self.value(event, place))
        return items

    def fields(self, key: Key) -> dict[str, Any]:
        """Fields of a mapping whose start was taken."""
        fields: dict[str, Any] = {}
        while not isinstance(event := self.next_event(), yaml.MappingEndEvent):
            alias = isinstance(event, yaml.AliasEvent)
            name = self.value(event, key) if alias else getattr(event, "value", None)
            if not isinstance(name, str):
                self.stop("a mapping or list cannot be a field name")
            place = (*key, name)
            if name in fields:
                self.problem(place, f"`{printable(name)}` is given twice, first on line {self.lines[place]}")
            self.lines[place] = self.line
            self.values += 1
            fields[name] = self.value(self.next_event(), place)
        return fields

    def scalar(self, text: str, key: Key) -> Any:
        """Value of an unquoted word: None, a bool, an int, a float or text."""
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.match(text):
            return int(text.replace("_", ""))
        if _NOT_FINITE.match(text):
            self.problem(key, f"`{text}` is not a finite number")
        if not _FLOAT.match(text):
            return text
        number = float(text.replace("_", ""))
        if math.isinf(number):
            self.problem(key, f"`{text}` is too large a number")
        return number

    def problem(self, key: Key, message: str) -> None:
        """Note a problem with the value at the place `key`."""
        self.problems[key] = Problem(f"{self.source}:{self.line}  {printable(show_key(key))}", message)

    def stop(self, message: str) -> NoReturn:
        """Refuse the text at the latest line. Raises InputError."""
        place = f"{self.source}:{self.line}"
        raise InputError(f"cannot read `{self.source}`", problems=[Problem(place, message)])
