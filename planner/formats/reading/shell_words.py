"""Words of a bash text: quotes, comments, continued lines, arrays, and expansions, marked and not evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from cost_models.errors import InputError

OPEN, CLOSE = "\ue000", "\ue001"
"""Marks around an expansion whose value is unknown."""
TEST = ("[[", "]]")
COUNT = "(("
"""First piece of the word that `((..))` is."""
_PAIRS = {"(": ")", "{": "}"}
_NAME = re.compile(r"\w+|[@*#?$!-]", re.ASCII)
_SKIPPED = re.compile(r"[ \t]+|\\\r?\n|#[^\n]*")
_MARK = re.compile(r"&&|\|\||;;|[<>;&|()\n\r]")
_REDIRECTION = re.compile(r"[<>][<>&]*|&>[<>&]*")
_DOCUMENT = re.compile(r"<<(?!<)(-?)[ \t]*((?:[^\s\\'\"<>;&|()]|\\.|'[^'\n]*'|\"[^\"\n]*\")+)")
_PLAIN = re.compile(rf"[^ \t\r\n;&|()<>'\"\\$`{OPEN}]+")
_BEFORE_COUNT = ("if", "elif", "while", "until", "!", "{", "then", "do", "else")


class Piece(NamedTuple):
    """A part of a word."""

    text: str
    quoted: bool
    expands: bool = False
    """Whether it is an expansion: `$X`, `${X}`, `$(..)`, backticks."""


class Line(NamedTuple):
    """Words of a command, and the mark that ends it: `&&`, `;;`, a new line, or nothing."""

    words: list[Word]
    end: str
    documents: tuple[str, ...] = ()
    """Here-documents behind `<<`, which may be scripts."""


@dataclass(slots=True)
class Word:
    """One word, or an array of words behind `NAME=`."""

    pieces: list[Piece] = field(default_factory=list)
    array: list[Word] | None = None

    @property
    def start(self) -> str:
        """Its unquoted beginning, up to the first quote or expansion."""
        first = self.pieces[0] if self.pieces else Piece("", False)
        return "" if first.expands or first.quoted else first.text


def _missing(closing: str) -> InputError:
    return InputError(f"a `{closing}` is missing", hint="paste the whole command")


class _Reader:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self, ahead: int = 0) -> str:
        """A character to come; empty at the end."""
        return self.text[self.at + ahead : self.at + ahead + 1]

    def take(self, pattern: re.Pattern[str]) -> str:
        """What a pattern matches here, which is passed over; empty where it does not."""
        if (found := pattern.match(self.text, self.at)) is None:
            return ""
        self.at = found.end()
        return found[0]

    def until(self, end: str) -> str:
        """What comes before a mark, which is passed over. Raises InputError where it never comes."""
        if (stop := self.text.find(end, self.at)) < 0:
            raise _missing(end)
        found, self.at = self.text[self.at : stop], stop + len(end)
        return found

    def enclosed(self, opening: str, closing: str, missing: str) -> None:
        """Pass over a bracket with what it holds. Raises InputError where it never closes."""
        depth = 0
        while char := self.peek():
            depth += (char == opening) - (char == closing)
            self.at += 1
            if not depth:
                return
        raise _missing(missing)

    def lines(self) -> list[Line]:
        """The commands up to the end."""
        found: list[Line] = []
        words: list[Word] = []
        dropped = testing = False  # the word behind `>` is a file; inside `[[ .. ]]` marks are words
        ends: list[tuple[str, bool]] = []  # of documents behind `<<`
        while char := self.peek():
            if self.take(_SKIPPED):
                continue
            if testing and char in "\r\n":
                self.at += 1
            elif testing and char in "<>&|()":
                words.append(Word([Piece(self.take(_MARK), False)]))
            elif document := _DOCUMENT.match(self.text, self.at):
                self.at = document.end()
                ends.append((re.sub(r"[\\'\"]", "", document[2]), bool(document[1])))
            elif self.take(_REDIRECTION):
                dropped = True
            elif self.text.startswith(COUNT, self.at) and all(word.start in _BEFORE_COUNT for word in words):
                start = self.at
                self.enclosed("(", ")", "))")
                words.append(Word([Piece(COUNT, False), Piece(self.text[start + 2 : self.at - 2], True)]))
            elif mark := self.take(_MARK):
                documents = tuple(self._document(*one) for one in ends) if mark == "\n" else ()
                ends = [] if mark == "\n" else ends
                found.append(Line(words, mark, documents))
                words = []
            else:
                word = self.word(arrays=True)
                testing = (testing or word.start == TEST[0]) and word.start != TEST[1]
                words += [] if dropped else [word]
                dropped = False
        return [*found, Line(words, "")]

    def _array(self) -> list[Word]:
        """Words up to the bracket that closes an array."""
        words: list[Word] = []
        dropped = False
        while self.peek():
            if self.take(_SKIPPED):
                continue
            if self.peek() == ")":
                self.at += 1
                return words
            if self.take(_REDIRECTION):
                dropped = True
            elif not self.take(_MARK):
                words += [self.word(arrays=False)][dropped:]
                dropped = False
        raise _missing(")")

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

    def word(self, *, arrays: bool) -> Word:
        """One word; with arrays, `NAME=(..)` is one."""
        word = Word()
        while (char := self.peek()) and char not in " \t\r\n;&|()<>":
            if char in "'" + OPEN:
                self.at += char == "'"
                word.pieces.append(Piece(self.until("'") if char == "'" else self.until(CLOSE) + CLOSE, True))
            elif char == '"':
                self.at += 1
                self._double(word)
            elif char == "\\":
                self.at += 2
                if (one := self.text[self.at - 1 : self.at]) not in ("\n", ""):
                    word.pieces.append(Piece(one, True))
            elif char in "$`":
                word.pieces.append(self._expansion(quoted=False))
            else:
                word.pieces.append(Piece(self.take(_PLAIN), False))
                opens = self.peek() == "(" and word.pieces[-1].text.endswith("=")
                if arrays and opens and len(word.pieces) == 1:
                    self.at += 1
                    word.array = self._array()
                    break
        return word

    def whole(self) -> Word:
        """All that is left as one word."""
        word = Word()
        while self.at < len(self.text):
            word.pieces += self.word(arrays=False).pieces
            if char := self.peek():
                word.pieces.append(Piece(char, True))
                self.at += 1
        return word

    def _double(self, word: Word) -> None:
        text, first = "", len(word.pieces)
        while (char := self.peek()) != '"':
            if not char:
                raise _missing('"')
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
        self.at += 1
        if self.text[start] == "`":
            self.until("`")
        elif (closing := _PAIRS.get(opening := self.peek())) is not None:
            self.enclosed(opening, closing, closing)
        elif not self.take(_NAME):
            return Piece("$", quoted)
        return Piece(self.text[start : self.at], quoted, True)


def lines_of(text: str) -> list[Line]:
    """The commands of a bash text. Raises InputError where a quote or bracket never closes."""
    return _Reader(text).lines()


def word_of(text: str) -> Word:
    """A text as one word, blanks and marks within. Raises InputError where a quote or bracket never closes."""
    return _Reader(text).whole()


def may_hold_arguments(word: str) -> bool:
    """Whether a word is an unknown expansion alone, which may be several words."""
    return word.startswith(OPEN) and word.endswith(CLOSE)


def is_known(word: str) -> bool:
    """Whether a word has no unknown expansion."""
    return OPEN not in word


def plain(word: str) -> str:
    """A word as the script writes it, without marks."""
    return word.replace(OPEN, "").replace(CLOSE, "")
