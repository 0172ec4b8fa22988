"""Reading YAML text safely: plain values, and the line of every key.

YAML is read from its events, so no tag can run code and no document can nest or multiply without end. Scalars
follow the YAML 1.2 core schema plus what people write: `300e9` and `1_000_000` are numbers, `no` is a word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    builder = _Builder(source)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        message = f"not valid YAML: {printable(error.problem or str(error))}"
        if "nesting depth" in message:  # libyaml reads ahead, and may stop before we do
            message = f"nested more than {MAX_DEPTH} levels deep"
        raise InputError(f"cannot read `{source}`", problems=[Problem(f"{source}{line}", message)]) from None
    except yaml.YAMLError:
        raise InputError(f"`{source}` holds characters that YAML does not allow") from None
    return Document(
        source=source,
        value=builder.root,
        lines=builder.lines,
        problems=builder.problems,
        ended=builder.ended,
    )


@dataclass(slots=True)
class _Open:
    """A YAML mapping or list whose end was not reached yet during parsing."""

    value: Any
    key: Key
    anchor: str | None
    pending: str | None = None
    """The key of the mapping whose value comes next; None: a key comes next."""


class _Builder:
    """Builder of plain values from YAML events, on an explicit stack so that the nesting depth is limited."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.root: Any = None
        self.lines: dict[Key, int] = {}
        self.problems: dict[Key, Problem] = {}
        self.ended = False
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        """Process one YAML event."""
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event, line)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                self._stop(line, f"`*{printable(str(event.anchor))}` names nothing that is complete")
            value, size = self._anchors[event.anchor]
            self._put(value, line, size)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            finished = self._stack.pop()
            if finished.anchor:
                self._anchors[finished.anchor] = (finished.value, _count(finished.value))
        elif isinstance(event, yaml.DocumentEndEvent):
            self.ended = bool(event.explicit)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._stop(line, "a second document starts here; one file holds one")

    def _open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent, line: int) -> None:
        if event.tag and not event.implicit:
            self._refuse_tag(event.tag, line)
        if len(self._stack) >= MAX_DEPTH:
            self._stop(line, f"nested more than {MAX_DEPTH} levels deep")
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        key = self._put(value, line, 1)
        self._stack.append(_Open(value=value, key=key, anchor=event.anchor))

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        plain = event.implicit[0]
        top = self._stack[-1] if self._stack else None
        if event.tag and event.tag not in ("!", "tag:yaml.org,2002:str"):
            self._refuse_tag(event.tag, line)
        if top is not None and isinstance(top.value, dict) and top.pending is None:
            self._put(event.value, line, 1)
            return
        if plain and _NOT_FINITE.match(event.value):
            self._problem(line, self._next_key(), f"`{event.value}` is not a finite number")
        value = _plain_value(event.value) if plain else event.value
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            self._problem(line, self._next_key(), f"`{event.value}` is too large a number")
        if event.anchor:
            self._anchors[event.anchor] = (value, 1)
        self._put(value, line, 1)

    def _next_key(self) -> Key:
        if not self._stack:
            return ()
        top = self._stack[-1]
        return (*top.key, len(top.value) if isinstance(top.value, list) else top.pending or "")

    def _put(self, value: Any, line: int, size: int) -> Key:
        """Store a value in the open mapping or list, or take it as the mapping's next key, and return its place."""
        self._values += size
        if self._values > MAX_VALUES:
            self._stop(line, f"stands for more than {MAX_VALUES} values")
        if not self._stack:
            self.root = value
            return ()
        top = self._stack[-1]
        if isinstance(top.value, list):
            key = self._next_key()
            top.value.append(value)
            self.lines[key] = line
        elif top.pending is None:
            key = self._take_key(top, value, line)
        else:
            key = (*top.key, top.pending)
            top.value[top.pending] = value
            top.pending = None
        return key

    def _take_key(self, top: _Open, name: Any, line: int) -> Key:
        if not isinstance(name, str):
            self._stop(line, "a mapping or list cannot be a field name")
        key = (*top.key, name)
        if name in top.value:
            self._problem(line, key, f"`{printable(name)}` is given twice, first on line {self.lines[key]}")
        self.lines[key] = line
        top.pending = name
        return key

    def _refuse_tag(self, tag: str, line: int) -> NoReturn:
        self._stop(line, f"the tag `{printable(tag)}` is not allowed; a file holds plain values only")

    def _problem(self, line: int, key: Key, message: str) -> None:
        self.problems[key] = Problem(f"{self.source}:{line}  {printable(show_key(key))}", message)

    def _stop(self, line: int, message: str) -> NoReturn:
        raise InputError(f"cannot read `{self.source}`", problems=[Problem(f"{self.source}:{line}", message)])


def _plain_value(text: str) -> Any:
    """Convert an unquoted YAML word to None, bool, int, float or str."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text):
        return int(text.replace("_", ""))
    if _FLOAT.match(text):
        return float(text.replace("_", ""))
    return text


def _count(value: Any) -> int:
    """Number of values in a nested value, for limiting the expansion of YAML anchors."""
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1
