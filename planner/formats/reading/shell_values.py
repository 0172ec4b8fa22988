"""Expansions of a shell as far as a script's own words determine them: `$X`, `${X:-8}`, `${A[@]}`, `$((8 * N))`.

All else (`$(..)`, `$1`, what is assigned where only a shell knows whether) stays marked as unknown.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cost_models.errors import InputError
from planner.formats.reading.shell_words import CLOSE, OPEN, Piece, Word, may_hold_arguments, word_of

UNKNOWN = [f"{OPEN}{CLOSE}"]
"""Value of a variable that is assigned where only a shell knows whether."""
_PARAMETER = re.compile(
    r"(?P<count>#)?(?P<name>[A-Za-z_]\w*|[1-9])(?:\[(?P<at>[^\]]*)\])?(?P<how>,,|\^\^|:?[-=?+]|:|%%?|##?)?(?P<rest>.*)",
    re.ASCII | re.DOTALL,
)
_PIECES = re.compile(rf"(?:{OPEN}[^{CLOSE}]*{CLOSE}|[^\s{OPEN}])+")
_PLAIN = re.compile(r"\$\{?([A-Za-z_]\w*|[1-9])\}?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,15})", re.ASCII)
_OF_A_RUN = re.compile("MASTER_|NODE_RANK|RANK|LOCAL_RANK|WANDB|NCCL_|HF_|CUDA_DEVICE_MAX_CONNECTIONS|OMP_")
"""Beginnings of variables that say where a run meets and what it logs."""
_NO_ARGUMENTS = "the script is started without arguments of its own (`$@`)"
_MOST_TEXT = 1_000_000
_LARGEST = 10**18
_DEEPEST = 8


def _quotient(left: int, right: int) -> int:
    """Division towards zero, as a shell divides."""
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


_OPERATIONS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(slots=True)
class Values:
    """Variables of a script with their values, as far as they are known."""

    known: dict[str, list[str]] = field(default_factory=dict)
    """Variable → its value, or the elements of an array."""
    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    """Associative array → its elements."""
    assumptions: dict[str, None] = field(default_factory=dict)

    def assign(self, name: str, values: list[str], *, more: bool = False) -> None:
        """Set a variable, or append to it. Raises InputError where it grows beyond reason."""
        before = self.known.get(name, []) if more else []
        self.known[name] = UNKNOWN if before == UNKNOWN else values
        if sum(map(len, self.known[name])) > _MOST_TEXT:
            raise InputError(f"`{name}` grows beyond {_MOST_TEXT:,} characters")

    def said(self, word: Word) -> list[str]:
        """The words that a command gets for a word: none, one or several."""
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

    def text(self, word: Word) -> str:
        """A word that is not split into several."""
        return " ".join(self.said(Word([Piece(one.text, True, one.expands) for one in word.pieces])))

    def _fill(self, text: str, depth: int) -> str:
        """A text with the values of its expansions."""
        if depth > _DEEPEST:
            return f"{OPEN}{text[:40]}{CLOSE}"
        said: list[str] = []
        for piece in word_of(text).pieces:
            said += self._value(piece.text, depth + 1)[0] if piece.expands else [piece.text]
        return "".join(said)

    def _value(self, text: str, depth: int = 0) -> tuple[list[str], bool]:
        """Values of an expansion, and whether each is a word of its own."""
        if text in ("$@", "$*", "${@}", "${*}"):
            self.assumptions[_NO_ARGUMENTS] = None
            return [], True
        unknown = [f"{OPEN}{text}{CLOSE}"], False
        if text.startswith("$((") and text.endswith("))"):
            number = self.number(text[3:-2], depth)
            return unknown if number is None else ([str(number)], False)
        inner = text[2:-1] if text.startswith("${") and text.endswith("}") else text[1:]
        found = _PARAMETER.fullmatch(inner)
        if found is None or text.startswith(("$(", "`")) or not (found["how"] or not found["rest"]):
            return unknown
        values, listed = self._elements(found["name"], found["at"], depth), found["at"] in ("@", "*")
        if not found["count"]:
            said = self._changed(found, values, depth)
            return unknown if said is None else (said, listed)
        if values is None or any(may_hold_arguments(one) for one in values):
            return unknown
        return [str(len(values) if listed else len("".join(values)))], False

    def _elements(self, name: str, at: str | None, depth: int) -> list[str] | None:
        """The value of a variable, or elements of an array; None: the script never assigns it."""
        table = self.tables.get(name)
        if name not in self.known and table is None:
            return None
        if self.known.get(name) == UNKNOWN:
            return UNKNOWN
        values = list(table.values()) if table is not None else self.known[name]
        if at in ("@", "*"):
            return values
        if at is None:
            return values[:1]
        key = self._fill(at, depth)
        if OPEN in key:
            return UNKNOWN
        if table is not None:
            return [table[key]] if key in table else []
        index = self.number(key, depth)
        return UNKNOWN if index is None else values[index : index + 1] if index >= 0 else values[index:][:1]

    def _changed(self, found: re.Match[str], values: list[str] | None, depth: int) -> list[str] | None:
        """Values behind `:-`, `,,`, `:0:2` and the like; None: only the shell knows."""
        how, rest = found["how"], found["rest"]
        if values == UNKNOWN or (values is None and how is None):
            return None
        is_set = values is not None and (bool("".join(values)) or not (how or "").startswith(":"))
        match how:
            case None:
                return values
            case ":-" | "-" | ":=" | "=" | ":?" | "?" if is_set:
                return values
            case ":-" | "-" | ":=" | "=":
                default = self._fill(rest, depth)
                if OPEN in default:
                    return None
                if values is None:
                    self._assume_unset(found["name"], default)
                if how.endswith("="):
                    self.assign(found["name"], [default])
                return [default] if default else []
            case ":+" | "+":
                if values is None:
                    self._assume_unset(found["name"], "")
                filled = self._fill(rest, depth) if is_set else ""
                return None if OPEN in filled else [filled] if filled else []
            case ",," | "^^" if values is not None and not rest:
                return [one.lower() if how == ",," else one.upper() for one in values]
            case ":" if values is not None:
                places = [self.number(one, depth) for one in rest.split(":")]
                if None in places or len(places) > 2 or any(one < 0 for one in places if one is not None):
                    return None
                return [one[places[0] :][: places[1] if len(places) > 1 else None] for one in values]
            case "%" | "%%" | "#" | "##" if values is not None:
                return _trimmed(values, how, rest.strip("\"'"))
        return None

    def assume_unset(self, word: Word) -> None:
        """Take variables that a script tests and never assigns as empty."""
        for piece in word.pieces:
            found = _PLAIN.fullmatch(piece.text) if piece.expands else None
            if found is not None and self._elements(found[1], None, 0) is None:
                self._assume_unset(found[1], "")
                self.known[found[1]] = []

    def _assume_unset(self, name: str, default: str) -> None:
        if name.isdecimal():
            self.assumptions[_NO_ARGUMENTS] = None
        elif not _OF_A_RUN.match(name):
            so = f", so that it is `{default}`" if default else ""
            self.assumptions[f"`{name}` is not set{so}"] = None

    def number(self, text: str, depth: int = 0) -> int | None:
        """The value of arithmetic on whole numbers; None: only the shell knows."""
        filled = _NAME.sub(lambda name: self._operand(name[0]), self._fill(text, depth))
        if OPEN in filled or len(filled) > 1000:
            return None
        plain = filled.replace("&&", " and ").replace("||", " or ")
        plain = re.sub(r"!(?!=)", " not ", plain)
        try:
            return _computed(ast.parse(plain.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None

    def _operand(self, name: str) -> str:
        values = self.known.get(name)
        known = values and _NUMBER.fullmatch(values[0].strip())
        return f"({known[0]})" if known else f"{OPEN}{name}{CLOSE}"


def _trimmed(values: list[str], how: str, pattern: str) -> list[str] | None:
    """Values without a beginning (`#`) or an end (`%`): a plain text, or one up to a plain mark (`##*/`, `%.*`)."""
    mark = pattern.replace("*", "", 1)
    if re.search(r"[*?\[\]$\\`]", mark) or not mark:
        return None
    at_start = "#" in how
    if "*" not in pattern:
        return [one.removeprefix(mark) if at_start else one.removesuffix(mark) for one in values]
    if not (pattern.startswith("*") if at_start else pattern.endswith("*")):
        return None
    part = str.partition if how in ("#", "%%") else str.rpartition
    return [part(one, mark)[2 if at_start else 0] if mark in one else one for one in values]


def _computed(node: ast.expr) -> int:
    """The value of arithmetic. Raises ValueError where it is something else, or beyond what a shell counts to."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            found = value
        case ast.UnaryOp(op=ast.USub(), operand=one):
            found = -_computed(one)
        case ast.UnaryOp(op=ast.Not(), operand=one):
            found = int(not _computed(one))
        case (
            ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right])
        ) if type(op) in _OPERATIONS:
            found = int(_OPERATIONS[type(op)](_computed(left), _computed(right)))
        case ast.BoolOp(op=op, values=values):
            both = [bool(_computed(one)) for one in values]
            found = int(any(both) if isinstance(op, ast.Or) else all(both))
        case _:
            raise ValueError("more than arithmetic")
    if abs(found) > _LARGEST:
        raise ValueError("too large")
    return found
