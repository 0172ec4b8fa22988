"""Interpreter of bash scripts that finds the commands a script starts, without running it.

An assignment holds from its line on, a branch is followed where the script's own words decide it. Expansions (`$X`,
`${X:-8}`, `${A[@]}`, `$((8 * N))`) are followed as far as the script's own words determine them. Values that only a
shell can know (`$(..)`, `$1`, assignments inside loops and undecided branches) are marked as unknown; a reader that
needs one refuses it. A test (`[ .. ]`, `[[ .. ]]`, `((..))`) is true, false, or None where the words do not decide it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain, takewhile
from typing import NamedTuple

from cost_models.errors import InputError
from planner.formats.python import OPERATIONS

OPEN, CLOSE = "\ue000", "\ue001"
"""Marks around an expansion whose value is unknown."""
TEST = ("[[", "]]")
COUNT = "(("
"""First piece of the word that `((..))` is."""
_PAIRS = {"(": "()", "{": "{}"}
_SKIPPED = re.compile(r"[ \t]+|\\\r?\n|#[^\n]*")
_MARK = re.compile(r"&&|\|\||;;|[<>;&|()\n\r]")
_REDIRECTION = re.compile(r"[<>][<>&]*|&>[<>&]*")
_DOCUMENT = re.compile(r"<<(?!<)(-?)[ \t]*((?:[^\s\\'\"<>;&|()]|\\.|'[^'\n]*'|\"[^\"\n]*\")+)")
_EXPANSION = r"(?P<expansion>`[^`]*`|\$(?:(?a:\w+)|[@*#?$!-])?)"
_UNKNOWN = f"{OPEN}[^{CLOSE}]*{CLOSE}"
_PIECE = re.compile(
    rf"{_EXPANSION}|'(?P<single>[^']*)'|(?P<unknown>{_UNKNOWN})|\\(?:\n|\Z|(?P<escaped>.))"
    rf"|(?P<plain>[^ \t\r\n;&|()<>'\"\\$`{OPEN}]+)",
    re.DOTALL,
)
_QUOTED_PIECE = re.compile(rf'{_EXPANSION}|(?P<text>(?:[^"\\$`]|\\(?![$`"\\\n]))+)|\\(?:\n|(?P<escaped>.))')
_BEFORE_COUNT = {"if", "elif", "while", "until", "!", "{", "then", "do", "else"}


class Piece(NamedTuple):
    """Part of a bash word, quoted or not: plain text or one expansion."""

    text: str
    quoted: bool
    expands: bool = False
    """Whether the piece is an expansion: `$X`, `${X}`, `$(..)`, backticks."""


class Line(NamedTuple):
    """One bash command as words, with the mark that ends it (`&&`, `;;`, a new line, or nothing)."""

    words: list[Word]
    end: str
    documents: tuple[str, ...] = ()
    """Here-documents behind `<<`, which may be scripts."""


@dataclass(slots=True)
class Word:
    """One bash word as quoted and unquoted pieces, or as the array assigned in `NAME=(..)`."""

    pieces: list[Piece] = field(default_factory=list)
    array: list[Word] | None = None

    @property
    def start(self) -> str:
        """Unquoted text of a word before the first quote or expansion; empty if the word starts with either."""
        return "".join(piece.text for piece in self.pieces[:1] if not (piece.quoted or piece.expands))

    @property
    def literal(self) -> str:
        """Text of a word that has no quote and no expansion; empty for other words."""
        return self.start if len(self.pieces) == 1 else ""


def _unclosed_error(closing: str) -> InputError:
    """Error for a bracket or quote that is never closed."""
    return InputError(f"a `{closing}` is missing", hint="paste the whole command")


class _Reader:
    """Parser that splits a bash text into commands and words, from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        """Character at the current position; empty at the end of the text."""
        return self.text[self.at : self.at + 1]

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match a pattern at the current position, move behind the match, and return it; None if the pattern
        does not match."""
        if (match := pattern.match(self.text, self.at)) is not None:
            self.at = match.end()
        return match

    def bracketed_text(self, pair: str, missing: str) -> str:
        """Return the text from the opening bracket at the current position to its closing bracket, and move
        behind it. Raises InputError if it is never closed."""
        start, depth = self.at, 0
        for bracket in re.compile(f"[{pair}]").finditer(self.text, start):
            depth += 1 if bracket[0] == pair[0] else -1
            if not depth:
                self.at = bracket.end()
                return self.text[start : self.at]
        raise _unclosed_error(missing)

    def lines(self, *, array: bool = False) -> list[Line]:
        """All commands from the current position to the end of the text or, with `array`, to the bracket that
        closes an array."""
        lines: list[Line] = []
        words: list[Word] = []
        dropped = testing = False  # the word behind `>` is a file; inside `[[ .. ]]` marks are words
        ends: list[re.Pattern[str]] = []  # of documents behind `<<`
        while char := self.peek():
            if self.match(_SKIPPED):
                continue
            if array and char == ")":
                self.at += 1
                return [*lines, Line(words, "")]
            if testing and char in "\r\n":
                self.at += 1
            elif testing and char in "<>&|()" and (mark := self.match(_MARK)):
                words.append(Word([Piece(mark[0], False)]))
            elif document := self.match(_DOCUMENT):
                tabs, end = r"\t*" * bool(document[1]), re.escape(re.sub(r"[\\'\"]", "", document[2]))
                ends.append(re.compile(rf"^{tabs}{end}\r?(?:\n|\Z)", re.MULTILINE))
            elif self.match(_REDIRECTION):
                dropped = True
            elif self.text.startswith(COUNT, self.at) and {one.start for one in words} <= _BEFORE_COUNT:
                words.append(Word([Piece(COUNT, False), Piece(self.bracketed_text("()", "))")[2:-2], True)]))
            elif mark := self.match(_MARK):
                documents = tuple(map(self._document, ends)) if mark[0] == "\n" else ()
                ends = [] if mark[0] == "\n" else ends
                lines.append(Line(words, mark[0], documents))
                words = []
            else:
                word = self.word(arrays=not array)
                testing = not array and (testing or word.start == TEST[0]) and word.start != TEST[1]
                words += [] if dropped else [word]
                dropped = False
        if array:
            raise _unclosed_error(")")
        return [*lines, Line(words, "")]

    def _document(self, end: re.Pattern[str]) -> str:
        """Return the text of a here-document, and move behind the line that ends it."""
        last = end.search(self.text, self.at)
        start, end_of_text = self.at, len(self.text)
        stop, self.at = last.span() if last else (end_of_text, end_of_text)
        return self.text[start:stop]

    def word(self, *, arrays: bool) -> Word:
        """Read one bash word; with `arrays`, an assignment `NAME=(..)` is one word."""
        word = Word()
        while (char := self.peek()) and char not in " \t\r\n;&|()<>":
            if char == '"':
                word.pieces += self._double_quoted()
                continue
            word.pieces += self._piece(_PIECE, quoted=False)
            if arrays and self.peek() == "(" and word.literal.endswith("="):
                self.at += 1
                word.array = [each for line in self.lines(array=True) for each in line.words]
                break
        return word

    def pieces(self) -> list[Piece]:
        """Read the rest of the text as a single word, in which blanks and marks count as quoted, and return
        its pieces."""
        pieces: list[Piece] = []
        while self.peek():
            pieces += self.word(arrays=False).pieces
            pieces.append(Piece(self.peek(), True))
            self.at += 1
        return pieces

    def _double_quoted(self) -> list[Piece]:
        """Read a text in double quotes as quoted pieces."""
        self.at += 1
        pieces: list[Piece] = []
        while self.peek() != '"':
            pieces += self._piece(_QUOTED_PIECE, quoted=True)
        self.at += 1
        return pieces or [Piece("", True)]  # beside `"$@"`, which may be no word at all

    def _piece(self, pattern: re.Pattern[str], *, quoted: bool) -> list[Piece]:
        """Read the piece at the current position, as a list that is empty for an escaped line end."""
        if (match := self.match(pattern)) is None:
            raise _unclosed_error(self.peek() or '"')
        kind, text = match.lastgroup, match[match.lastgroup or 0]
        if kind == "expansion":
            pair = _PAIRS.get(self.peek()) if text == "$" else None
            text += self.bracketed_text(pair, pair[1]) if pair else ""
            return [Piece(text, quoted, text != "$")]
        return [Piece(text, quoted or kind != "plain")] if kind else []


def may_hold_arguments(word: str) -> bool:
    """Whether a word is one unknown expansion, which a shell might split into several arguments."""
    return word.startswith(OPEN) and word.endswith(CLOSE)


def is_decided(word: str) -> bool:
    """Whether the value of a word is known, without unknown expansions."""
    return OPEN not in word


def plain(word: str) -> str:
    """Word as the script writes it, without the characters that mark unknown expansions."""
    return word.replace(OPEN, "").replace(CLOSE, "")


UNKNOWN = [f"{OPEN}{CLOSE}"]
"""Value of a variable whose value only a shell knows."""
_PARAMETER = re.compile(
    r"(?P<count>#)?(?P<name>[A-Za-z_]\w*|[1-9])(?:\[(?P<at>[^\]]*)\])?"
    r"(?:(?P<how>,,|\^\^|:?[-=?+]|:|%%?|##?)(?P<rest>.*))?",
    re.ASCII | re.DOTALL,
)
_LISTED = re.compile(r"\$(?:[@*]|\{[@*]\}|\{#?\w+\[[@*]\].*\})", re.ASCII | re.DOTALL)
"""Expansions whose values stay separate words in quotes: `$@`, `${A[@]}`."""
_PIECES = re.compile(rf"(?:{OPEN}[^{CLOSE}]*{CLOSE}|[^\s{OPEN}])+")
_PLAIN_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*|[1-9])\}?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,15})", re.ASCII)
_RUN_NAMES = re.compile("MASTER_|NODE_RANK|RANK|LOCAL_RANK|WANDB|NCCL_|HF_|CUDA_DEVICE_MAX_CONNECTIONS|OMP_")
"""Prefixes of variables for rendezvous and logging, on which no price depends."""
_NO_ARGUMENTS = "the script is started without arguments of its own (`$@`)"
_MOST_TEXT = 1_000_000
_LARGEST = 10**18
_DEEPEST_EXPANSION = 8


def _quotient(left: int, right: int) -> int:
    """Integer quotient rounded towards zero, as in shell arithmetic."""
    return left // right if (left < 0) == (right < 0) else -(-left // right)


_OPERATIONS: dict[type[ast.AST], Callable[..., int]] = {**OPERATIONS, ast.Div: _quotient}
_OPERATIONS |= {ast.Not: operator.not_, ast.USub: operator.neg}
_OPERATIONS[ast.Mod] = lambda left, right: left - right * _quotient(left, right)


@dataclass(slots=True)
class Values:
    """Known values of a script's variables at the current line."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    """Value of each variable as a list of one, or elements of an array, by variable."""
    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    """Elements of each associative array by key, by array."""
    assumptions: dict[str, None] = field(default_factory=dict)

    def assign(self, name: str, values: list[str]) -> None:
        """Set a shell variable. Raises InputError if its value is longer than `_MOST_TEXT`."""
        self.variables[name] = values
        if sum(map(len, values)) > _MOST_TEXT:
            raise InputError(f"`{name}` grows beyond {_MOST_TEXT:,} characters")

    def expand(self, word: Word) -> list[str]:
        """Expand a bash word into the arguments (none, one or several) that a command receives."""
        words: list[str] = []
        for piece in word.pieces:
            values = self._values(piece)
            if piece.expands and not piece.quoted:
                values = [part for value in values for part in _PIECES.findall(value)]
            elif not _LISTED.fullmatch(piece.text):
                values = [" ".join(values)]
            if words and values:
                values = [words.pop() + values[0], *values[1:]]
            words += values
        return words

    def text(self, word: Word) -> str:
        """Expand a bash word into one string, as if it were quoted."""
        return " ".join(self.expand(Word([Piece(one.text, True, one.expands) for one in word.pieces])))

    def _fill(self, text: str, depth: int) -> str:
        """Replace the expansions in a text with their values."""
        if depth > _DEEPEST_EXPANSION:
            return f"{OPEN}{text[:40]}{CLOSE}"
        pieces = _Reader(text).pieces()
        return "".join(chain.from_iterable(self._values(piece, depth + 1) for piece in pieces))

    def _values(self, piece: Piece, depth: int = 0) -> list[str]:
        """Values of a piece; the text of an unknown expansion is enclosed in marks."""
        values = self._known_values(piece.text, depth) if piece.expands else [piece.text]
        return [f"{OPEN}{piece.text}{CLOSE}"] if values is None else values

    def _known_values(self, text: str, depth: int) -> list[str] | None:
        """Values of one expansion; None if only a shell knows them."""
        if text in ("$@", "$*", "${@}", "${*}"):
            self.assumptions[_NO_ARGUMENTS] = None
            return []
        if text.startswith("$((") and text.endswith("))"):
            number = self.number(text[3:-2], depth)
            return None if number is None else [str(number)]
        inner = text[2:-1] if text.startswith("${") and text.endswith("}") else text.removeprefix("$")
        if (parameter := _PARAMETER.fullmatch(inner)) is None:
            return None
        values = self._elements(parameter["name"], parameter["at"], depth)
        if not parameter["count"]:
            return self._apply_operator(parameter, values, depth)
        if values is None or any(may_hold_arguments(one) for one in values):
            return None
        return [str(len(values) if _LISTED.fullmatch(text) else len("".join(values)))]

    def _elements(self, name: str, at: str | None, depth: int) -> list[str] | None:
        """Value of a variable, or elements of an array; None if the script never assigns the variable."""
        table, values = self.tables.get(name), self.variables.get(name)
        if values == UNKNOWN or (values is None and table is None):
            return values
        elements = values or [] if table is None else [*table.values()]
        if at is None or at in ("@", "*"):
            return elements[:1] if at is None else elements
        key = self._fill(at, depth)
        if table is not None and OPEN not in key:
            return [table[key]] if key in table else []
        index = self.number(key, depth)
        return UNKNOWN if index is None else elements[index:][:1]

    def _apply_operator(
        self, parameter: re.Match[str], values: list[str] | None, depth: int
    ) -> list[str] | None:
        """Values of a parameter after an operator such as `:-`, `,,` or `:0:2`; None if only a shell knows
        them."""
        how, operand = parameter["how"], parameter["rest"]
        if values == UNKNOWN or (values is None and how is None):
            return None
        is_set = values is not None and (bool("".join(values)) or not (how or "").startswith(":"))
        if how is None or (is_set and how[-1] in "-=?"):
            return values
        if how[-1] in "-=+":
            filled = self._fill(operand, depth) if is_set or how[-1] != "+" else ""
            if OPEN in filled:
                return None
            if values is None:
                self._assume_unset(parameter["name"], filled)
            if how[-1] == "=":
                self.assign(parameter["name"], [filled])
            return [filled] if filled else []
        match how:
            case ",," | "^^" if values is not None and not operand:
                return [one.lower() if how == ",," else one.upper() for one in values]
            case ":" if values is not None:
                places = [self.number(one, depth) for one in operand.split(":")]
                if len(places) > 2 or any(place is None or place < 0 for place in places):
                    return None
                first, count = [*places, None][:2]
                return [one[first:][:count] for one in values]
            case "%" | "%%" | "#" | "##" if values is not None:
                return _without_affix(values, how, operand.strip("\"'"))
        return None

    def assume_unset(self, word: Word) -> None:
        """Treat the variables of a test as empty if the script never assigns them, and record this
        assumption."""
        for piece in word.pieces:
            variable = _PLAIN_VARIABLE.fullmatch(piece.text) if piece.expands else None
            if variable is not None and self._elements(variable[1], None, 0) is None:
                self._assume_unset(variable[1], "")
                self.variables[variable[1]] = []

    def _assume_unset(self, name: str, default: str) -> None:
        """Record the assumption that a variable is not set, or that the script has no arguments."""
        if name.isdecimal():
            self.assumptions[_NO_ARGUMENTS] = None
        elif not _RUN_NAMES.match(name):
            consequence = f"; its default `{default}` is used" if default else ""
            self.assumptions[f"`{name}` is not set{consequence}"] = None

    def number(self, text: str, depth: int = 0) -> int | None:
        """Value of integer arithmetic; None if only a shell knows it."""
        filled = _NAME.sub(lambda name: self._operand(name[0]), self._fill(text, depth))
        if OPEN in filled or len(filled) > 1000:
            return None
        python = re.sub(r"!(?!=)", " not ", filled.replace("&&", " and ").replace("||", " or "))
        try:
            return _evaluate(ast.parse(python.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None

    def _operand(self, name: str) -> str:
        """Integer value of a variable in brackets, for arithmetic; a mark with its name if the value is
        unknown or no integer."""
        values = self.variables.get(name)
        integer = values and _NUMBER.fullmatch(values[0].strip())
        return f"({integer[0]})" if integer else f"{OPEN}{name}{CLOSE}"


def _without_affix(values: list[str], how: str, pattern: str) -> list[str] | None:
    """Values after removal of a prefix (`#`) or suffix (`%`), as in `${NAME##*/}` or `${NAME%.*}`. None
    unless the pattern is plain text with at most one `*`, at its outer end."""
    if not re.fullmatch(r"\*?[^*?\[\]$\\`]+" if "#" in how else r"[^*?\[\]$\\`]+\*?", pattern):
        return None
    removed = re.escape(pattern).replace(r"\*", ".*?" if how == "#" else ".*")
    kept_part = {"%": "(.*)", "%%": "(.*?)"}.get(how, "")
    trimmed = re.compile(f"{kept_part}{removed}" if kept_part else f"{removed}(.*)", re.DOTALL)
    return [match[1] if (match := trimmed.fullmatch(one)) else one for one in values]


def _evaluate(node: ast.expr) -> int:
    """Evaluate a syntax tree of integer arithmetic. Raises ValueError for anything else and for numbers
    beyond a shell's range."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            number = value
        case ast.UnaryOp(op, operand) if type(op) in _OPERATIONS:
            number = int(_OPERATIONS[type(op)](_evaluate(operand)))
        case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]) if type(op) in _OPERATIONS:
            number = int(_OPERATIONS[type(op)](_evaluate(left), _evaluate(right)))
        case ast.BoolOp(op=op, values=values):
            operands = [bool(_evaluate(operand)) for operand in values]
            number = int(any(operands) if isinstance(op, ast.Or) else all(operands))
        case _:
            raise ValueError("more than arithmetic")
    if abs(number) > _LARGEST:
        raise ValueError("too large")
    return number


Truth = bool | None
CALLS = ("source", ".", "eval")
"""Commands that set variables from another file or text."""
BUILTINS = ("echo", "printf", "[", "[[", "test")
"""Commands that start no program."""
_SETS_VARIABLES = ("read", "readarray", "mapfile", "getopts", "let")
"""Commands that set variables to values which are not in the script."""
_COMPARISONS = ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")
"""Comparisons of integers, each a dash before the name of the function of `operator`."""
_INTEGER = re.compile(r"\s*[-+]?\d{1,15}\s*", re.ASCII)
_MOST_WORDS = 200


def all_of(left: Truth, right: Truth) -> Truth:
    """Logical "and" of two values that may be unknown (None)."""
    return False if left is False or right is False else None if left is None or right is None else True


def any_of(left: Truth, right: Truth) -> Truth:
    """Logical "or" of two values that may be unknown (None)."""
    return negation(all_of(negation(left), negation(right)))


def negation(truth: Truth) -> Truth:
    """Logical "not" of a value that may be unknown (None)."""
    return None if truth is None else not truth


def exit_status(words: Sequence[Word], values: Values) -> Truth:
    """Whether a bash command succeeds; None if its words do not determine it."""
    start = words[0].start
    if start == COUNT:
        number = values.number(words[0].pieces[1].text)
        return None if number is None else number != 0
    if start in ("true", ":", "false"):
        return start != "false"
    close = {"[": "]", TEST[0]: TEST[1], "test": ""}.get(start)
    if close is None or (close and words[-1].start != close) or len(words) > _MOST_WORDS:
        return None
    return _Test([*words[1 : len(words) - bool(close)]], values, patterns=start == TEST[0]).all()


class _Test:
    """Recursive-descent evaluator of a bash test, `[ .. ]` or `[[ .. ]]`, which consumes words from the
    front."""

    def __init__(self, words: list[Word], values: Values, *, patterns: bool) -> None:
        self.words, self.values, self.patterns = words, values, patterns

    def all(self) -> Truth:
        """Truth of the entire test; None if it is unknown or not understood."""
        truth = self._or()
        return None if self.words else truth

    def _take(self, *marks: str) -> bool:
        """Remove the first word if it is one of the marks, and return whether it was."""
        is_mark = bool(self.words) and self.words[0].literal in marks
        del self.words[:is_mark]
        return is_mark

    def _or(self) -> Truth:
        """Evaluate terms joined by "or"."""
        truth = self._and()
        while self._take("||", "-o"):
            truth = any_of(truth, self._and())
        return truth

    def _and(self) -> Truth:
        """Evaluate terms joined by "and"."""
        truth = self._term()
        while self._take("&&", "-a"):
            truth = all_of(truth, self._term())
        return truth

    def _term(self) -> Truth:
        """Evaluate one term: a negation, a bracket, `-z`, `-n`, a comparison, or a word."""
        if self._take("!"):
            return negation(self._term())
        if self._take("("):
            truth = self._or()
            return truth if self._take(")") else None
        words, flag = self.words[:3], self.words[0].literal if len(self.words) > 1 else ""
        if flag in ("-z", "-n"):
            del self.words[:2]
            self.values.assume_unset(words[1])
            text = self.values.text(words[1])
            bare = re.sub(_UNKNOWN, "", text)
            is_set = None if text and not bare else bool(bare)
            return negation(is_set) if flag == "-z" else is_set
        if re.fullmatch(r"-[a-zA-Z]", flag):
            del self.words[:2]  # of files
            return None
        if len(words) == 3 and words[1].start in ("=", "==", "!=", "=~", "<", ">", *_COMPARISONS):
            del self.words[:3]
            return self._comparison(words[0], words[1].start, words[2])
        text = self.values.text(self.words.pop(0)) if words else OPEN
        return None if OPEN in text else bool(text)

    def _comparison(self, left: Word, how: str, right: Word) -> Truth:
        """Truth of a comparison of two words by the operator `how`; None if unknown."""
        texts = self.values.text(left), self.values.text(right)
        if any(OPEN in one for one in texts) or how in ("=~", "<", ">"):
            return None
        if how in _COMPARISONS:
            numbers = [int(one) if _INTEGER.fullmatch(one) else self.values.number(one) for one in texts]
            return None if None in numbers else bool(getattr(operator, how[1:])(*numbers))
        quoted = all(one.quoted for one in right.pieces)
        equal = fnmatchcase(*texts) if self.patterns and not quoted else texts[0] == texts[1]
        return equal if how != "!=" else not equal


def apply_builtin(words: list[str], runs: Truth, values: Values) -> None:
    """Change the known variables as a shell builtin (`read`, `eval`, `unset`, ...) does; `runs` is None if it
    is unknown whether the builtin runs."""
    names: list[str] = []
    if words[0] in CALLS:
        text = " ".join(words)
        values.assumptions[f"nothing that the command needs from `{plain(text)[:60]}`"] = None
        names = re.findall(r"([A-Za-z_]\w*)\+?=", text, re.ASCII) if words[0] == "eval" else []
    elif words[0] in _SETS_VARIABLES or words[:2] == ["printf", "-v"]:
        names = [name for word in words[1:] if word[:1] != "-" for name in _NAME.findall(word)]
    elif words[0] == "unset":
        names = words[1:]
    for name in names:
        values.assign(name, [] if words[0] == "unset" and runs else UNKNOWN)


_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.ASCII | re.DOTALL)
_ELEMENT = re.compile(r"\[([^\]]+)\]=(.*)", re.DOTALL)
_LOOPS = ("for", "while", "until", "select")
_DECLARE = ("export", "declare", "typeset", "local", "readonly")
_OPTION = re.compile(r"(?!--$)[-+].{0,2}", re.DOTALL)
"""Options of `declare`."""
_DEEPEST_SCRIPT = 4


class Command(NamedTuple):
    """One command of a script with its expanded words and its environment."""

    words: tuple[str, ...]
    environment: dict[str, str]
    """Values of variables when the command starts, by variable."""
    starter: tuple[str, ...] = ()
    """Words of another command that starts this command: `srun --nodes 4 sh -c`."""


@dataclass(slots=True)
class _Frame:
    """Part of a script that is not ended at the current line: an `if`, loop, `case`, subshell or group, or
    the entire script."""

    kind: str
    runs: Truth
    """Whether the current branch runs."""
    remains: Truth = False
    """Whether a further branch may run: the enclosing frame runs, and no branch before did."""
    subject: str = ""
    """Subject of a `case`."""
    patterns: list[Word] | None = None
    """Patterns of a branch of a `case` while they are read, else None."""
    outside: dict[str, list[str]] = field(default_factory=dict)
    """Variables before a subshell, which restores them."""

    def enter(self, test: Truth) -> None:
        """Enter the next branch: it runs if `test` is true and no earlier branch has run."""
        self.runs, self.remains = all_of(self.remains, test), all_of(self.remains, negation(test))


@dataclass(slots=True)
class Script:
    """Bash script interpreted line by line, with the commands found and the variables at the current line."""

    values: Values = field(default_factory=Values)
    commands: list[Command] = field(default_factory=list)
    frames: list[_Frame] = field(default_factory=lambda: [_Frame("whole", True)])
    status: Truth = True
    """Whether the last command succeeded."""
    gate: Truth = True
    """Whether `&&` and `||` in front of the next command let it run."""
    defines: bool = False
    """Whether the next braces are the body of a function."""
    declares: bool = False
    """Whether the line starts with `export`, `declare` or the like."""
    negates: bool = False
    """Whether an odd number of `!` is in front of the command."""
    starter: tuple[str, ...] = ()
    depth: int = 0
    """Number of scripts that this one lies within."""
    ended: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """Values of the variables at the current line, by variable; of an array, the first element."""
        return {name: value[0] for name, value in self.values.variables.items() if value}

    @property
    def runs(self) -> Truth:
        """Whether the next command runs; None if unknown."""
        return all_of(self.frames[-1].runs, self.gate)

    def read(self, text: str) -> None:
        """Interpret a bash text, and collect the commands that it runs."""
        for line in _Reader(text).lines():
            if self.ended:
                return
            self.declares = self.negates = False
            self._line(line)
            for document in line.documents:
                self._document(document)

    def _inner(self, text: str, values: Values, runs: Truth, starter: tuple[str, ...]) -> None:
        """Interpret a script inside the script, at most `_DEEPEST_SCRIPT` levels deep."""
        if self.depth < _DEEPEST_SCRIPT:
            frames = [_Frame("whole", runs)]
            Script(values, self.commands, frames, starter=starter, depth=self.depth + 1).read(text)

    def _document(self, text: str) -> None:
        """Interpret a here-document as a script, if it can be parsed; its assignments are undone afterwards."""
        values = replace(self.values, variables=dict(self.values.variables), tables=dict(self.values.tables))
        command_count = len(self.commands)
        try:
            self._inner(text, values, self.frames[-1].runs, self.starter)
        except InputError:  # plain text
            del self.commands[command_count:]

    def _line(self, line: Line) -> None:
        """Interpret one command with the reserved words, brackets and marks around it."""
        words, frame = list(line.words), self.frames[-1]
        if frame.patterns is not None and self._pattern(frame, words, line.end):
            return
        self._take_reserved(words, line.end)
        if line.end == "(":
            self.defines = bool(words)
            if not words:
                self._open("(", self.runs).outside = dict(self.values.variables)
            return
        if words:
            runs, status = self.runs, self._command(words)
            if runs is not False:
                status = negation(status) if self.negates else status
                self.status = status if runs else None
        if line.end == ")" and self.frames[-1].kind == "(" and not self.defines:
            self.values.variables = self.frames.pop().outside
        if line.end == ";;" and self.frames[-1].kind == "case":
            self.frames[-1].patterns = []
        self.gate = {"&&": self.status, "||": negation(self.status)}.get(line.end, True)
        if line.end in ("|", "&"):
            self.status = None

    def _open(self, kind: str, runs: Truth) -> _Frame:
        """Enter a new frame (such as an `if` or a loop)."""
        self.frames.append(_Frame(kind, runs, self.runs))
        self.gate = True
        if len(self.frames) > _MOST_TEXT // 1000:
            raise InputError("the script nests too deep to be read")
        return self.frames[-1]

    def _take_reserved(self, words: list[Word], end: str) -> None:
        """Interpret the reserved words at the front of a line, and remove them."""
        while words and (word := words[0].literal):
            frame = self.frames[-1]
            if word == "!":
                self.negates = not self.negates
            elif word == "if":
                self._open("if", self.runs)
            elif word == "then" and frame.kind == "if":
                self.gate = True
                frame.enter(self.status)
            elif word in ("elif", "else") and frame.kind == "if":
                self.gate, frame.runs = True, frame.remains
            elif word in ("fi", "done", "esac") and len(self.frames) > 1:
                self.frames.pop()
                self.status = None
            elif word in _LOOPS:
                self._open("loop", all_of(self.runs, None))
                if word in ("for", "select") and words[1:] and _NAME.fullmatch(words[1].start):
                    self.values.assign(words[1].start, UNKNOWN)
                del words[1:]
            elif word == "case" and len(words) > 2:
                frame = self._open("case", False)
                frame.subject, frame.patterns = self.values.text(words[1]), []
                if not self._pattern(frame, words[3:], end):  # `case .. in esac`
                    self.frames.pop()
                del words[1:]
            elif word == "{":
                self._open("{", None if self.defines else self.runs)
                self.defines = False
            elif word == "}" and len(self.frames) > 1:
                self.frames.pop()
            elif word == "function":
                self.defines = True
                del words[1:2]
            elif word in ("do", "then", "time", "exec", *_DECLARE):
                self.declares |= word in _DECLARE
            elif not _OPTION.fullmatch(word):
                return
            del words[:1]

    def _pattern(self, frame: _Frame, words: list[Word], end: str) -> bool:
        """Read the patterns of a branch of `case`, and determine whether the branch runs. Returns False if
        the line ends the `case`."""
        if words and words[0].start == "esac":
            return False
        frame.patterns = [*(frame.patterns or ()), *words]
        if end == ")":
            fits: Truth = False
            for text in map(self.values.text, frame.patterns):
                unknown = text != "*" and OPEN in frame.subject + text
                fits = any_of(fits, None if unknown else fnmatchcase(frame.subject, text))
            frame.enter(fits)
            frame.patterns, self.gate = None, True
        return True

    def _command(self, words: list[Word]) -> Truth:
        """Apply the assignments of one simple command, and record the command. Returns whether it succeeds."""
        runs = self.runs
        if words[0].start == COUNT:
            arithmetic = words[0].pieces[1].text
            if re.search(r"(?<![=!<>])=(?!=)|\+\+|--", arithmetic):  # it assigns
                for name in _NAME.findall(arithmetic):
                    self.values.assign(name, UNKNOWN)
            return exit_status(words, self.values)
        if self.declares:
            words[:] = [word for word in words if _ASSIGNMENT.fullmatch(word.start)]
        assigning = [*takewhile(lambda word: _ASSIGNMENT.fullmatch(word.start), words)]
        del words[: len(assigning)]
        command_words = [] if runs is False else [*chain.from_iterable(map(self.values.expand, words))]
        variables_before = dict(self.values.variables)
        for word in assigning:
            self._assign(word)
        if not command_words:
            return True
        environment, values = self.environment, self.values
        if assigning:  # `TP=4 command $TP`: the command's alone, and its words are as before
            values, self.values.variables = replace(self.values), variables_before
        if command_words[0] in ("exit", "return"):
            self.ended = bool(runs)
        apply_builtin(command_words, runs, self.values)
        self.commands.append(Command(tuple(command_words), environment, self.starter))
        for at, argument in enumerate(command_words) if command_words[0] not in BUILTINS else ():
            if re.search(r"\s", argument) and ".py" in argument:  # `sh -c "python .."`
                self._inner(argument, values, runs, (*self.starter, *command_words[:at]))
        return exit_status(words, self.values)

    def _assign(self, word: Word) -> None:
        """Apply an assignment `NAME=value`, `NAME+=value`, `NAME[key]=value` or `NAME=(..)`."""
        target, _, start = word.start.partition("=")
        name, appends = target.removesuffix("+"), target.endswith("+")
        previous = self.values.variables.get(name, []) if appends else []
        if self.runs is False:
            return
        if self.runs is None:
            values = UNKNOWN
        elif word.array is None:
            text = self.values.text(Word([Piece(start, True), *word.pieces[1:]]))
            values = ["".join(previous[:1]) + text]
        else:
            table = [_ELEMENT.fullmatch(self.values.text(each)) for each in word.array]
            if word.array and all(table):
                new = {one[1].strip("\"'"): one[2] for one in table if one is not None}
                self.values.tables[name] = self.values.tables.get(name, {}) | new if appends else new
                return
            values = [*previous, *chain.from_iterable(map(self.values.expand, word.array))]
        self.values.assign(name, UNKNOWN if previous == UNKNOWN else values)


def read_script(text: str, environment: Mapping[str, str] | None = None) -> Script:
    """Interpret a bash script, given its environment variables, and return it with the commands that it runs.

    Raises:
        InputError: a quote or a bracket never closes.
    """
    if len(text) > _MOST_TEXT:
        raise InputError(f"a script of {len(text):,} characters is none that starts a training")
    script = Script(Values({name: [value] for name, value in (environment or {}).items()}))
    script.read(text.translate({ord(OPEN): None, ord(CLOSE): None}))
    return script
