"""The command that a bash script starts, found without running it.

Assignments of literal words count from where they stand; what only a shell can know (`$(..)`, `$1`, assignments inside
`if` and loops) stays marked as unknown, for whoever needs the value to refuse.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cost_models.errors import InputError
from planner.importers.shell_words import CLOSE, OPEN, Piece, Word, split

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.ASCII | re.DOTALL)
_PARAMETER = re.compile(r"\$\{?([A-Za-z_]\w*)(?:(\[[@*]\])|(:?[-=?])(.*))?\}?", re.ASCII | re.DOTALL)
_PIECES = re.compile(rf"(?:{OPEN}[^{CLOSE}]*{CLOSE}|[^\s{OPEN}])+")
_OPENS, _CLOSES = ("if", "for", "while", "until", "case", "{"), ("fi", "done", "esac", "}")
_BEFORE = (
    "then",
    "else",
    "do",
    "elif",
    "!",
    "time",
    "exec",
    "export",
    "declare",
    "local",
    "readonly",
    "-a",
    "-x",
)
_UNKNOWN = [f"{OPEN}{CLOSE}"]
"""Value of a name that is assigned where only a shell knows whether."""
_MOST_TEXT = 1_000_000
_DEEPEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a script."""

    words: tuple[str, ...]
    environment: dict[str, str]
    """What was assigned before it."""


@dataclass(slots=True)
class _Script:
    """What is known while a script is read."""

    known: dict[str, list[str]] = field(default_factory=dict)
    """Name → its value, or the elements of an array."""
    commands: list[Command] = field(default_factory=list)
    assumptions: dict[str, None] = field(default_factory=dict)
    depth: int = 0

    def read(self, text: str, nested: int = 0) -> None:
        for line in split(text):
            words = list(line)
            while words and (words[0].start in _BEFORE + _OPENS + _CLOSES) and len(words[0].pieces) == 1:
                self.depth += (words[0].start in _OPENS) - (words[0].start in _CLOSES)
                words.pop(0)
            while words and (found := _ASSIGNED.fullmatch(words[0].start)):
                self._assign(found[1], found[2] == "+", found[3], words.pop(0))
            said = [one for word in words for one in self._said(word)]
            if not said:
                continue
            environment = {name: value[0] for name, value in self.known.items() if value}
            self.commands.append(Command(words=tuple(said), environment=environment))
            if nested < _DEEPEST:
                for one in said:
                    if re.search(r"\s", one) and ".py" in one:  # `sh -c "python .."`
                        self.read(one, nested + 1)

    def _assign(self, name: str, more: bool, start: str, word: Word) -> None:
        if self.depth > 0:
            self.known[name] = _UNKNOWN
            return
        if word.array is not None:
            values = [one for each in word.array for one in self._said(each)]
            before = self.known.get(name, []) if more else []
            self.known[name] = _UNKNOWN if before == _UNKNOWN else before + values
        else:
            rest = [Piece(start, True), *word.pieces[1:]]
            quoted = Word([Piece(one.text, True, one.expands) for one in rest])
            text = " ".join(self._said(quoted))
            before = self.known.get(name, []) if more else []
            self.known[name] = _UNKNOWN if before == _UNKNOWN else ["".join(before) + text]
        if sum(map(len, self.known[name])) > _MOST_TEXT:
            raise InputError(f"`{name}` grows beyond {_MOST_TEXT:,} characters")

    def _said(self, word: Word) -> list[str]:
        """A word as the command gets it: none, one or several."""
        said: list[str] = []
        open_: str | None = None
        for piece in word.pieces:
            if not piece.expands:
                open_ = (open_ or "") + piece.text
                continue
            values, listed = self._value(piece.text)
            if not piece.quoted:
                values = [one for each in values for one in _PIECES.findall(each)]
            elif not listed:
                values = [" ".join(values)]
            if values:
                *first, last = [(open_ or "") + values[0], *values[1:]]
                said += first
                open_ = last
        return said if open_ is None else [*said, open_]

    def _value(self, text: str) -> tuple[list[str], bool]:
        """What stands for an expansion, and whether each is a word of its own."""
        if text in ("$@", "$*", "${@}"):
            self.assumptions["the script is started without arguments of its own (`$@`)"] = None
            return [], True
        found = _PARAMETER.fullmatch(text)
        if found is None or (found[3] is None and text.startswith("${") and not text.endswith("}")):
            return [f"{OPEN}{text}{CLOSE}"], False
        name, elements, how, default = found.groups()
        if name in self.known and self.known[name] != _UNKNOWN:
            return (self.known[name], True) if elements else (self.known[name][:1], False)
        default = (default or "").removesuffix("}")
        if name not in self.known and how in (":-", "-", ":=", "=") and not re.search(r"[$`]", default):
            self.assumptions[f"`{name}` is not set, so that it is `{default}`"] = None
            return [default.strip("\"'")], False
        return [f"{OPEN}{text}{CLOSE}"], False


def commands_of(text: str) -> tuple[list[Command], tuple[str, ...]]:
    """The commands of a bash text with literal assignments put in, and what was assumed of its surroundings.

    Raises:
        InputError: a quote or a bracket never closes.
    """
    if len(text) > _MOST_TEXT:
        raise InputError(f"a script of {len(text):,} characters is none that starts a training")
    script = _Script()
    script.read(text.translate({ord(OPEN): None, ord(CLOSE): None}))
    return script.commands, tuple(script.assumptions)


def may_hold_arguments(word: str) -> bool:
    """Whether it is nothing but what the shell would put in, so that it may be several words."""
    return word.startswith(OPEN) and word.endswith(CLOSE)


def is_known(word: str) -> bool:
    """Whether the shell would put nothing unknown into it."""
    return OPEN not in word


def plain(word: str) -> str:
    """A word as it was written."""
    return word.replace(OPEN, "").replace(CLOSE, "")
