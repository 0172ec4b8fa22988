"""The words of a bash text, never run: quotes, comments, continued lines, arrays, and where the shell would fill in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from cost_models.errors import InputError

OPEN, CLOSE = "\ue000", "\ue001"
"""Around what the shell would have filled in and the text does not say."""
_NAME = re.compile(r"\w+|[@*#?$!-]", re.ASCII)
_DOCUMENT = re.compile(r"<<(?!<)(-?)[ \t]*((?:[^\s\\'\"<>;&|()]|\\.|'[^'\n]*'|\"[^\"\n]*\")+)")
_PAIRS = {"(": ")", "{": "}"}
TEST = ("[[", "]]")
COUNT = "(("
"""First piece of the word that `((..))` is."""


class Piece(NamedTuple):
    """A part of a word."""

    text: str
    quoted: bool
    expands: bool = False
    """Whether the shell puts something else here: `$X`, `${X}`, `$(..)`, backticks."""


class Line(NamedTuple):
    """A command's words, and what ended it: a mark like `&&` or `;;`, a new line, or nothing."""

    words: list[Word]
    end: str
    documents: tuple[str, ...] = ()
    """What follows `<<`: words for a command to read, perhaps a script."""


@dataclass(slots=True)
class Word:
    """One word, or an array of words behind `NAME=`."""

    pieces: list[Piece] = field(default_factory=list)
    array: list[Word] | None = None

    @property
    def start(self) -> str:
        """Its text up to the first quote or expansion."""
        first = self.pieces[0] if self.pieces else Piece("", False)
        return "" if first.expands or first.quoted else first.text


class _Reader:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self, ahead: int = 0) -> str:
        """A character to come; empty at the end."""
        return self.text[self.at + ahead : self.at + ahead + 1]

    def until(self, end: str) -> str:
        """What comes before a mark, which is passed over. Raises InputError where it never comes."""
        stop = self.text.find(end, self.at)
        if stop < 0:
            raise InputError(f"a `{end}` is missing", hint="paste the whole command")
        found, self.at = self.text[self.at : stop], stop + len(end)
        return found

    def lines(self, closing: str = "") -> list[Line]:
        """Commands up to the end, or up to the bracket that closes an array."""
        found: list[Line] = []
        words: list[Word] = []
        dropped = False  # the word behind `>` is a file
        testing = False  # inside `[[ .. ]]`, where marks are words
        ends: list[tuple[str, bool]] = []  # of documents behind `<<`
        while char := self.peek():
            if char in " \t" or (testing and char in "\r\n"):
                self.at += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at = self.text.index("\n", self.at) + 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char == closing:
                self.at += 1
                return [*found, Line(words, "")]
            elif testing and char in "<>&|()":
                words.append(Word([Piece(self._mark(), False)]))
            elif not closing and (document := _DOCUMENT.match(self.text, self.at)):
                self.at = document.end()
                ends.append((re.sub(r"[\\'\"]", "", document[2]), bool(document[1])))
            elif char in "<>" or (char == "&" and self.peek(1) == ">"):
                while self.peek() in ("<", ">", "&"):
                    self.at += 1
                dropped = True
            elif not closing and self._counts(words):
                words.append(self._arithmetic())
            elif char in ";&|()\n\r":
                mark = self._mark()
                if not closing:
                    documents = tuple(self._document(*one) for one in ends) if mark == "\n" else ()
                    ends = [] if mark == "\n" else ends
                    found.append(Line(words, mark, documents))
                    words = []
            else:
                word = self.word(arrays=not closing)
                testing = (testing or word.start == TEST[0]) and word.start != TEST[1] and not closing
                if not dropped:
                    words.append(word)
                dropped = False
        if closing:
            raise InputError(f"a `{closing}` is missing", hint="paste the whole command")
        return [*found, Line(words, "")]

    def _mark(self) -> str:
        """A mark between commands, which is passed over."""
        two = self.text[self.at : self.at + 2]
        mark = two if two in ("&&", "||", ";;") else self.peek()
        self.at += len(mark)
        return mark

    def _document(self, end: str, tabs: bool) -> str:
        """The lines up to one that is a word, which is passed over with them."""
        lines: list[str] = []
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            line, self.at = self.text[self.at : stop].removesuffix("\r"), stop + 1
            if (line.lstrip("\t") if tabs else line) == end:
                break
            lines.append(line)
        return "\n".join(lines)

    def _counts(self, words: list[Word]) -> bool:
        """Whether `((` starts a command here."""
        if not self.text.startswith("((", self.at):
            return False
        return all(
            word.start in ("if", "elif", "while", "until", "!", "{", "then", "do", "else") for word in words
        )

    def _arithmetic(self) -> Word:
        """`((..))`, its text as one word behind its mark."""
        start, depth = self.at, 0
        while char := self.peek():
            depth += (char == "(") - (char == ")")
            self.at += 1
            if not depth:
                return Word([Piece(COUNT, False), Piece(self.text[start + 2 : self.at - 2], True)])
        raise InputError("a `))` is missing", hint="paste the whole command")

    def word(self, *, arrays: bool) -> Word:
        """One word; with arrays, `NAME=(..)` is one."""
        word = Word()
        while (char := self.peek()) and char not in " \t\r\n;&|()<>":
            if char == "'":
                self.at += 1
                word.pieces.append(Piece(self.until("'"), True))
            elif char == '"':
                self.at += 1
                self._double(word)
            elif char == "\\":
                self.at += 2
                if (one := self.text[self.at - 1 : self.at]) not in ("\n", ""):
                    word.pieces.append(Piece(one, True))
            elif char in "$`":
                word.pieces.append(self._expansion(quoted=False))
            elif char == OPEN:
                word.pieces.append(Piece(self.until(CLOSE) + CLOSE, True))
            else:
                start = self.at
                while (one := self.peek()) and one not in " \t\r\n;&|()<>'\"\\$`" + OPEN:
                    self.at += 1
                word.pieces.append(Piece(self.text[start : self.at], False))
                opens = self.peek() == "(" and word.pieces[-1].text.endswith("=")
                if arrays and opens and len(word.pieces) == 1:
                    self.at += 1
                    word.array = [one for line in self.lines(")") for one in line.words]
                    break
        return word

    def whole(self) -> Word:
        """All that is left as one word."""
        word = Word()
        while char := self.peek():
            if char in " \t\r\n;&|()<>":
                word.pieces.append(Piece(char, True))
                self.at += 1
            else:
                word.pieces += self.word(arrays=False).pieces
        return word

    def _double(self, word: Word) -> None:
        text, first = "", len(word.pieces)
        while (char := self.peek()) != '"':
            if not char:
                raise InputError('a `"` is missing', hint="paste the whole command")
            if char in "$`":
                word.pieces += [*([Piece(text, True)] if text else []), self._expansion(quoted=True)]
                text = ""
                continue
            if char == "\\" and self.peek(1) in ("$", "`", '"', "\\", "\n"):
                self.at += 1
                char = self.peek().replace("\n", "")
            text += char
            self.at += 1
        self.at += 1
        if text or len(word.pieces) == first:  # `"$@"` may be no word at all
            word.pieces.append(Piece(text, True))

    def _expansion(self, *, quoted: bool) -> Piece:
        start = self.at
        if self.peek() == "`":
            self.at += 1
            self.until("`")
            return Piece(self.text[start : self.at], quoted, True)
        if (closing := _PAIRS.get(opening := self.peek(1))) is not None:
            self.at += 1
            depth = 0
            while True:
                char = self.peek()
                if not char:
                    raise InputError(f"a `{closing}` is missing", hint="paste the whole command")
                depth += (char == opening) - (char == closing)
                self.at += 1
                if not depth:
                    return Piece(self.text[start : self.at], quoted, True)
        if name := _NAME.match(self.text, self.at + 1):
            self.at = name.end()
            return Piece(self.text[start : self.at], quoted, True)
        self.at += 1
        return Piece("$", quoted)


def lines_of(text: str) -> list[Line]:
    """The commands of a bash text. Raises InputError where a quote or bracket never closes."""
    return _Reader(text).lines()


def word_of(text: str) -> Word:
    """A text as one word, blanks and marks within. Raises InputError where a quote or bracket never closes."""
    return _Reader(text).whole()


def may_hold_arguments(word: str) -> bool:
    """Whether it is nothing but what the shell would put in, so that it may be several words."""
    return word.startswith(OPEN) and word.endswith(CLOSE)


def is_known(word: str) -> bool:
    """Whether the shell would put nothing unknown into it."""
    return OPEN not in word


def plain(word: str) -> str:
    """A word as it was written."""
    return word.replace(OPEN, "").replace(CLOSE, "")
