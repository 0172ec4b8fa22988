"""The commands that a bash script starts, found without running it.

An assignment holds from its line on, a branch is followed where the script's own words decide it. What only a shell can
know (`$(..)`, `$1`, assignments inside loops and undecided branches) is marked as unknown; a reader that needs it
refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from cost_models.errors import InputError
from planner.formats.reading.shell_commands import (
    SAYS,
    Truth,
    both,
    either,
    forget_counted,
    holds,
    opposite,
    take_effect,
)
from planner.formats.reading.shell_values import UNKNOWN, Values
from planner.formats.reading.shell_words import CLOSE, COUNT, OPEN, Line, Piece, Word, lines_of

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.ASCII | re.DOTALL)
_ELEMENT = re.compile(r"\[([^\]]+)\]=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LOOPS = ("for", "while", "until", "select")
_DECLARE = ("export", "declare", "typeset", "local", "readonly")
_MOST_TEXT = 1_000_000
_DEEPEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a script."""

    words: tuple[str, ...]
    environment: dict[str, str]
    """Variables with their values when it starts."""
    starter: tuple[str, ...] = ()
    """Words of the command that starts it: `srun --nodes 4 sh -c`."""


@dataclass(slots=True)
class _Frame:
    """An open branch, loop or group, or the whole script."""

    kind: str
    outer: Truth
    """Whether the enclosing frame runs."""
    runs: Truth
    """Whether the current branch of it runs."""
    taken: Truth = False
    """Whether an earlier branch of it ran."""
    subject: str | None = None
    """Subject of a `case` while its patterns are read, else None."""
    patterns: list[Word] = field(default_factory=list)
    value: str = ""
    outside: dict[str, list[str]] = field(default_factory=dict)
    """Variables before a subshell, which restores them."""


@dataclass(slots=True)
class _Script:
    """State of a script that is read line by line."""

    values: Values = field(default_factory=Values)
    commands: list[Command] = field(default_factory=list)
    frames: list[_Frame] = field(default_factory=lambda: [_Frame("whole", True, True)])
    status: Truth = True
    """Whether the last command succeeded."""
    gate: Truth = True
    """Whether `&&` and `||` in front of the next command let it run."""
    defines: bool = False
    """Whether the next braces are the body of a function."""
    declares: bool = False
    """Whether the line starts with `export`, `declare` or the like."""
    starter: tuple[str, ...] = ()
    ended: bool = False

    @property
    def runs(self) -> Truth:
        """Whether the next command runs."""
        return both(self.frames[-1].runs, self.gate)

    def read(self, text: str, nested: int = 0) -> None:
        """Read a text line by line."""
        for line in lines_of(text):
            if self.ended:
                return
            self.declares = False
            self._line(line, nested)
            for document in line.documents:
                self._document(document, nested)

    def _inner(self, text: str, nested: int, values: Values, runs: Truth, starter: tuple[str, ...]) -> None:
        """Read a script within the script, up to a depth."""
        if nested < _DEEPEST:
            frames = [_Frame("whole", runs, runs)]
            inner = _Script(values=values, commands=self.commands, frames=frames, starter=starter)
            inner.read(text, nested + 1)

    def _document(self, text: str, nested: int) -> None:
        """Lines that a command reads: perhaps a script of their own, whose assignments do not stay."""
        values = replace(self.values, known=dict(self.values.known), tables=dict(self.values.tables))
        kept = len(self.commands)
        try:
            self._inner(text, nested, values, self.frames[-1].runs, self.starter)
        except InputError:  # plain text
            del self.commands[kept:]

    def _line(self, line: Line, nested: int) -> None:
        words = list(line.words)
        frame = self.frames[-1]
        if frame.kind == "case" and frame.subject is not None and self._pattern(frame, words, line.end):
            return
        negated = False
        while words and len(words[0].pieces) == 1 and not words[0].pieces[0].quoted:
            if words[0].start == "!":
                negated = not negated
                words.pop(0)
            elif not self._keyword(words):
                break
        if self.frames[-1].subject is not None and line.end == ")":  # `case x in a)`
            self._pattern(self.frames[-1], words, line.end)
            return
        if line.end == "(":
            self.defines = bool(words)
            if not words:
                self._open("(", self.runs).outside = dict(self.values.known)
            return
        if words:
            runs, before = self.runs, self.status
            status = self._command(words, nested)
            known = None if runs is None else opposite(status) if negated else status
            self.status = before if runs is False else known
        if line.end == ")" and self.frames[-1].kind == "(" and not self.defines:
            self.values.known = self.frames.pop().outside
        if line.end == ";;" and self.frames[-1].kind == "case":
            self.frames[-1].subject = self.frames[-1].value
        self.gate = {"&&": self.status, "||": opposite(self.status)}.get(line.end, True)
        if line.end in ("|", "&"):
            self.status = None

    def _open(self, kind: str, runs: Truth) -> _Frame:
        self.frames.append(_Frame(kind, self.runs, runs))
        self.gate = True
        if len(self.frames) > _MOST_TEXT // 1000:
            raise InputError("the script nests too deep to be read")
        return self.frames[-1]

    def _keyword(self, words: list[Word]) -> bool:
        """Handle a reserved word at the front of a line. Returns whether further words are left to look at."""
        word = words[0].start
        frame = self.frames[-1]
        if word == "if":
            self._open("if", self.runs)
        elif word in ("then", "elif", "else") and frame.kind == "if":
            self.gate = True
            if word == "then":
                frame.runs = both(both(frame.outer, opposite(frame.taken)), self.status)
                frame.taken = either(frame.taken, self.status)
            else:
                frame.runs = both(frame.outer, opposite(frame.taken))
        elif word in ("fi", "done", "esac") and len(self.frames) > 1:
            self.frames.pop()
            self.status = None
        elif word in _LOOPS:
            name = words[1].start if len(words) > 1 else ""
            self._open("loop", both(self.runs, None))
            if word in ("for", "select") and _NAME.fullmatch(name):
                self.values.assign(name, UNKNOWN)
            words.clear()
            return False
        elif word == "case" and len(words) > 2:
            frame = self._open("case", False)
            frame.subject = frame.value = self.values.text(words[1])
            frame.patterns = words[3:]
            words.clear()
            return False
        elif word == "{":
            self._open("{", None if self.defines else self.runs)
            self.defines = False
        elif word == "}" and len(self.frames) > 1:
            self.frames.pop()
        elif word == "function":
            self.defines = True
            words[:2] = []
            return bool(words)
        elif word in ("do", "then", "time", "exec", *_DECLARE):
            self.declares = self.declares or word in _DECLARE
        elif word.startswith(("-", "+")) and words[0].start != "--" and len(word) < 4:
            pass  # of `declare -x`
        else:
            return False
        words.pop(0)
        return bool(words)

    def _pattern(self, frame: _Frame, words: list[Word], end: str) -> bool:
        """Read patterns of a branch of `case`. Returns whether the line held nothing else."""
        if words and words[0].start == "esac":
            return False
        frame.patterns += words
        if end != ")":
            return True
        fits: Truth = False
        for pattern in frame.patterns:
            text = self.values.text(pattern)
            unknown = text != "*" and (OPEN in frame.value or OPEN in text)
            fits = either(fits, None if unknown else fnmatchcase(frame.value, text))
        frame.runs = both(both(frame.outer, opposite(frame.taken)), fits)
        frame.taken = either(frame.taken, fits)
        frame.subject, frame.patterns = None, []
        self.gate = True
        return True

    def _command(self, words: list[Word], nested: int) -> Truth:
        """Read assignments and a command. Returns whether the command succeeds."""
        runs = self.runs
        if words[0].start == COUNT:
            forget_counted(words[0].pieces[1].text, self.values)
            return holds(words, self.values)
        if self.declares:
            words[:] = [word for word in words if _ASSIGNED.fullmatch(word.start)]
        first = next((at for at, word in enumerate(words) if not _ASSIGNED.fullmatch(word.start)), len(words))
        said = [] if runs is False else [one for word in words[first:] for one in self.values.said(word)]
        before = dict(self.values.known)
        for word in words[:first]:
            if found := _ASSIGNED.fullmatch(word.start):
                self._assign(found[1], found[2] == "+", found[3], word)
        del words[:first]
        if not said:
            return True
        environment = {name: value[0] for name, value in self.values.known.items() if value}
        values = self.values
        if first:  # `TP=4 command $TP`: the command's alone, and its words are as before
            values, self.values.known = replace(self.values), before
        if said[0] in ("exit", "return"):
            self.ended = bool(runs)
        take_effect(said, runs, self.values)
        self.commands.append(Command(words=tuple(said), environment=environment, starter=self.starter))
        for at, one in enumerate(said) if said[0] not in SAYS else ():
            if re.search(r"\s", one) and ".py" in one:  # `sh -c "python .."`
                self._inner(one, nested, values, runs, (*self.starter, *said[:at]))
        return holds(words, self.values)

    def _assign(self, name: str, more: bool, start: str, word: Word) -> None:
        if self.runs is False:
            return
        if self.runs is None:
            self.values.assign(name, UNKNOWN)
        elif word.array is not None:
            table = [_ELEMENT.fullmatch(self.values.text(each)) for each in word.array]
            if word.array and all(table):
                new = {one[1].strip("\"'"): one[2] for one in table if one is not None}
                self.values.tables[name] = self.values.tables.get(name, {}) | new if more else new
                return
            values = [one for each in word.array for one in self.values.said(each)]
            self.values.assign(name, (self.values.known.get(name, []) if more else []) + values, more=more)
        else:
            text = self.values.text(Word([Piece(start, True), *word.pieces[1:]]))
            before = "".join(self.values.known.get(name, [])[:1]) if more else ""
            self.values.assign(name, [before + text], more=more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A bash text that was read."""

    commands: tuple[Command, ...]
    assumptions: tuple[str, ...]
    """What was assumed about the environment that it is started in."""
    environment: dict[str, str]
    """Variables with their values at its end."""


def read_script(text: str, environment: Mapping[str, str] | None = None) -> Script:
    """Read a bash text that is started in an environment: its commands, with known values filled in.

    Raises:
        InputError: a quote or a bracket never closes.
    """
    if len(text) > _MOST_TEXT:
        raise InputError(f"a script of {len(text):,} characters is none that starts a training")
    script = _Script()
    script.values.known |= {name: [value] for name, value in (environment or {}).items()}
    script.read(text.translate({ord(OPEN): None, ord(CLOSE): None}))
    known = {name: value[0] for name, value in script.values.known.items() if value}
    return Script(
        commands=tuple(script.commands), assumptions=tuple(script.values.assumptions), environment=known
    )
