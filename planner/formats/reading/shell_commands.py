"""Results of commands: tests (`[ .. ]`, `[[ .. ]]`, `((..))`), and changes of variables by builtins.

A test is true, false, or None where the script's own words do not decide it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from planner.formats.reading.shell_values import UNKNOWN, Values
from planner.formats.reading.shell_words import COUNT, OPEN, TEST, Word, plain

Truth = bool | None
CALLS = ("source", ".", "eval")
"""Commands that take variables from elsewhere."""
SAYS = ("echo", "printf", "[", "[[", "test")
"""Commands that start no program."""
_READS = ("read", "readarray", "mapfile", "getopts", "let")
"""Commands that set variables to values which are not in the script."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_WHOLE = re.compile(r"\s*[-+]?\d{1,15}\s*", re.ASCII)
_MOST_WORDS = 200


def both(one: Truth, other: Truth) -> Truth:
    """Three-valued and."""
    return False if one is False or other is False else None if one is None or other is None else True


def either(one: Truth, other: Truth) -> Truth:
    """Three-valued or."""
    return opposite(both(opposite(one), opposite(other)))


def opposite(one: Truth) -> Truth:
    """Three-valued not."""
    return None if one is None else not one


def holds(words: Sequence[Word], values: Values) -> Truth:
    """Whether a command succeeds, None where its words do not decide it."""
    start = words[0].start
    if start == COUNT:
        number = values.number(words[1].pieces[0].text) if len(words) == 2 else None
        number = values.number(words[0].pieces[1].text) if len(words[0].pieces) == 2 else number
        return None if number is None else number != 0
    if start in ("true", ":"):
        return True
    if start == "false":
        return False
    close = {"[": "]", TEST[0]: TEST[1], "test": ""}.get(start)
    if close is None or (close and words[-1].start != close) or len(words) > _MOST_WORDS:
        return None
    return _Test([*words[1 : len(words) - bool(close)]], values, patterns=start == TEST[0]).all()


class _Test:
    """Recursive descent over the words of a test."""

    def __init__(self, words: list[Word], values: Values, *, patterns: bool) -> None:
        self.words, self.values, self.patterns, self.at = words, values, patterns, 0

    def all(self) -> Truth:
        """The whole test."""
        found = self._or()
        return found if self.at == len(self.words) else None

    def _mark(self, *marks: str) -> bool:
        here = self.words[self.at] if self.at < len(self.words) else None
        if here is None or here.start not in marks or len(here.pieces) != 1:
            return False
        self.at += 1
        return True

    def _or(self) -> Truth:
        found = self._and()
        while self._mark("||", "-o"):
            found = either(found, self._and())
        return found

    def _and(self) -> Truth:
        found = self._one()
        while self._mark("&&", "-a"):
            found = both(found, self._one())
        return found

    def _one(self) -> Truth:
        if self._mark("!"):
            return opposite(self._one())
        if self._mark("("):
            found = self._or()
            return found if self._mark(")") else None
        left = self.words[self.at : self.at + 3]
        if not left:
            return None
        if len(left) > 1 and left[0].start in ("-z", "-n") and len(left[0].pieces) == 1:
            self.at += 2
            self.values.assume_unset(left[1])
            text = self.values.text(left[1])
            bare = re.sub(f"{OPEN}[^\ue001]*\ue001", "", text)
            known = None if OPEN in text and not bare else bool(bare)
            return opposite(known) if left[0].start == "-z" else known
        if len(left) > 1 and re.fullmatch(r"-[a-zA-Z]", left[0].start) and len(left[0].pieces) == 1:
            self.at += 2  # of files
            return None
        if len(left) == 3 and left[1].start in ("=", "==", "!=", "=~", "<", ">", *_COMPARED):
            self.at += 3
            return self._compared(left[0], left[1].start, left[2])
        self.at += 1
        text = self.values.text(left[0])
        return None if OPEN in text else bool(text)

    def _compared(self, left: Word, how: str, right: Word) -> Truth:
        texts = self.values.text(left), self.values.text(right)
        if any(OPEN in one for one in texts) or how in ("=~", "<", ">"):
            return None
        if how in _COMPARED:
            numbers = [int(one) if _WHOLE.fullmatch(one) else self.values.number(one) for one in texts]
            if numbers[0] is None or numbers[1] is None:
                return None
            return _COMPARED[how](numbers[0], numbers[1])
        quoted = all(one.quoted for one in right.pieces)
        same = fnmatchcase(*texts) if self.patterns and not quoted else texts[0] == texts[1]
        return same if how != "!=" else not same


def take_effect(said: list[str], runs: Truth, values: Values) -> None:
    """Change variables as a builtin does that runs (`runs`), or may run (None)."""
    forgotten: list[str] = []
    if said[0] in CALLS:
        text = plain(" ".join(said))[:60]
        values.assumptions[f"nothing that the command needs from `{text}`"] = None
        if said[0] == "eval":
            forgotten = re.findall(r"([A-Za-z_]\w*)\+?=", " ".join(said), re.ASCII)
    elif said[0] in _READS or said[:2] == ["printf", "-v"]:
        forgotten = [name for word in said[1:] if word[:1] != "-" for name in _NAME.findall(word)]
    elif said[0] == "unset":
        for name in said[1:]:
            values.assign(name, [] if runs else UNKNOWN)
    for name in forgotten:
        values.assign(name, UNKNOWN)


def forget_counted(text: str, values: Values) -> None:
    """Mark variables that `((N++))` changes as unknown."""
    if re.search(r"(?<![=!<>])=(?!=)|\+\+|--", text):
        for name in _NAME.findall(text):
            values.assign(name, UNKNOWN)
