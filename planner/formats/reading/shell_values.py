"""What a shell would put in for `$X`, `${X:-8}`, `${A[@]}` and `$((8 * N))`, as far as a script's own words say it.

All else (`$(..)`, `$1`, what is assigned where only a shell knows whether) stays marked as unknown.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cost_models.errors import InputError
from planner.formats.reading.shell_words import CLOSE, OPEN, Piece, Word, word_of

_PARAMETER = re.compile(
    r"(?P<count>#)?(?P<name>[A-Za-z_]\w*|[1-9])(?:\[(?P<at>[^\]]*)\])?(?P<how>,,|\^\^|:?[-=?+]|:|%%?|##?)?(?P<rest>.*)",
    re.ASCII | re.DOTALL,
)
_PIECES = re.compile(rf"(?:{OPEN}[^{CLOSE}]*{CLOSE}|[^\s{OPEN}])+")
_PLAIN = re.compile(r"\$\{?([A-Za-z_]\w*|[1-9])\}?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,15})", re.ASCII)
_RUNS = (
    "MASTER_",
    "NODE_RANK",
    "RANK",
    "LOCAL_RANK",
    "WANDB",
    "NCCL_",
    "HF_",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "OMP_",
)
"""Variables that say where a run meets and what it logs."""
UNKNOWN = [f"{OPEN}{CLOSE}"]
"""Value of a name that is assigned where only a shell knows whether."""
_MOST_TEXT = 1_000_000
_LARGEST = 10**18
_DEEPEST = 8


def _quotient(left: int, right: int) -> int:
    """Towards zero, as a shell divides."""
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


_COUNTED: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
    ast.Eq: lambda left, right: int(left == right),
    ast.NotEq: lambda left, right: int(left != right),
    ast.Lt: lambda left, right: int(left < right),
    ast.LtE: lambda left, right: int(left <= right),
    ast.Gt: lambda left, right: int(left > right),
    ast.GtE: lambda left, right: int(left >= right),
}


@dataclass(slots=True)
class Values:
    """Names with what is known of them."""

    known: dict[str, list[str]] = field(default_factory=dict)
    """Name → its value, or the elements of an array."""
    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    """Name of an associative array → its elements."""
    assumptions: dict[str, None] = field(default_factory=dict)

    def assign(self, name: str, values: list[str], *, more: bool = False) -> None:
        """Set a name, or add to it. Raises InputError where it grows beyond reason."""
        before = self.known.get(name, []) if more else []
        self.known[name] = UNKNOWN if before == UNKNOWN else values
        if sum(map(len, self.known[name])) > _MOST_TEXT:
            raise InputError(f"`{name}` grows beyond {_MOST_TEXT:,} characters")

    def said(self, word: Word) -> list[str]:
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

    def text(self, word: Word) -> str:
        """A word that is not split into several."""
        return " ".join(self.said(Word([Piece(one.text, True, one.expands) for one in word.pieces])))

    def _fill(self, text: str, depth: int) -> str:
        if depth > _DEEPEST:
            return f"{OPEN}{text[:40]}{CLOSE}"
        said: list[str] = []
        for piece in word_of(text).pieces:
            said += self._value(piece.text, depth + 1)[0] if piece.expands else [piece.text]
        return "".join(said)

    def _value(self, text: str, depth: int = 0) -> tuple[list[str], bool]:
        """What stands for an expansion, and whether each is a word of its own."""
        if text in ("$@", "$*", "${@}", "${*}"):
            self.assumptions["the script is started without arguments of its own (`$@`)"] = None
            return [], True
        unknown = [f"{OPEN}{text}{CLOSE}"], False
        if text.startswith("$((") and text.endswith("))"):
            number = self.number(text[3:-2], depth)
            return unknown if number is None else ([str(number)], False)
        inner = text[2:-1] if text.startswith("${") and text.endswith("}") else text[1:]
        found = _PARAMETER.fullmatch(inner)
        if found is None or text.startswith(("$(", "`")) or not (found["how"] or not found["rest"]):
            return unknown
        values = self._elements(found["name"], found["at"], depth)
        if found["count"]:
            return (
                unknown
                if values is None or values == UNKNOWN
                else ([str(_length(values, found["at"]))], False)
            )
        said = self._changed(text, found, values, depth)
        return unknown if said is None else (said, found["at"] in ("@", "*"))

    def _elements(self, name: str, at: str | None, depth: int) -> list[str] | None:
        """The value of a name, or of elements of an array; None: the script never assigns it."""
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

    def _changed(
        self, text: str, found: re.Match[str], values: list[str] | None, depth: int
    ) -> list[str] | None:
        """A value behind `:-`, `,,`, `:0:2` and the like; None: only the shell knows."""
        how, rest = found["how"], found["rest"]
        if values == UNKNOWN or (values is None and how is None):
            return None
        is_set = values is not None and (bool("".join(values)) or not (how or "").startswith(":"))
        match how:
            case None:
                return values
            case ":-" | "-" | ":=" | "=" if is_set:
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
            case ":?" | "?" if is_set:
                return values
            case ":" if values is not None:
                places = [self.number(one, depth) for one in rest.split(":")]
                if None in places or len(places) > 2 or any(one < 0 for one in places if one is not None):
                    return None
                return [one[places[0] :][: places[1] if len(places) > 1 else None] for one in values]
            case "%" | "%%" | "#" | "##" if values is not None:
                return _trimmed(values, how, rest)
        return None

    def assume_unset(self, word: Word) -> None:
        """Take names that a script asks for and never assigns as empty."""
        for piece in word.pieces:
            found = _PLAIN.fullmatch(piece.text) if piece.expands else None
            if found is not None and self._elements(found[1], None, 0) is None:
                self._assume_unset(found[1], "")
                self.known[found[1]] = []

    def _assume_unset(self, name: str, default: str) -> None:
        if name.startswith(_RUNS):
            return
        if name.isdecimal():
            self.assumptions["the script is started without arguments of its own (`$@`)"] = None
        else:
            self.assumptions[f"`{name}` is not set" + (f", so that it is `{default}`" if default else "")] = (
                None
            )

    def number(self, text: str, depth: int = 0) -> int | None:
        """Arithmetic on whole numbers; None: only the shell knows."""
        filled = _NAME.sub(lambda name: self._operand(name[0], depth), self._fill(text, depth))
        if OPEN in filled or len(filled) > 1000:
            return None
        plain = filled.replace("&&", " and ").replace("||", " or ")
        plain = re.sub(r"!(?!=)", " not ", plain)
        try:
            return _counted(ast.parse(plain.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None

    def _operand(self, name: str, depth: int) -> str:
        values = self.known.get(name)
        if not values or not _NUMBER.fullmatch(values[0].strip()):
            return f"{OPEN}{name}{CLOSE}"
        return f"({values[0].strip()})"


def _length(values: list[str], at: str | None) -> int:
    return len(values) if at in ("@", "*") else len("".join(values))


def _trimmed(values: list[str], how: str, rest: str) -> list[str] | None:
    """Without a beginning or an end: a plain one, or one up to a plain mark (`##*/`, `%.*`)."""
    mark = rest.strip("\"'")
    plain = mark.replace("*", "", 1)
    if re.search(r"[*?\[\]$\\`]", plain) or not plain:
        return None
    found = []
    for one in values:
        if "*" not in mark:
            cut = one.removeprefix(plain) if "#" in how else one.removesuffix(plain)
        elif "#" in how and mark.startswith("*"):
            cut = (one.partition(plain) if how == "#" else one.rpartition(plain))[2] if plain in one else one
        elif "%" in how and mark.endswith("*"):
            cut = (one.rpartition(plain) if how == "%" else one.partition(plain))[0] if plain in one else one
        else:
            return None
        found.append(cut)
    return found


def _counted(node: ast.expr) -> int:
    """Raises ValueError where it is more than arithmetic, or beyond what a shell counts to."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            found = value
        case ast.UnaryOp(op=ast.USub(), operand=one):
            found = -_counted(one)
        case ast.UnaryOp(op=ast.Not(), operand=one):
            found = int(not _counted(one))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COUNTED:
            found = _COUNTED[type(op)](_counted(left), _counted(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COUNTED:
            found = _COUNTED[type(op)](_counted(left), _counted(right))
        case ast.BoolOp(op=op, values=values):
            both = [bool(_counted(one)) for one in values]
            found = int(any(both) if isinstance(op, ast.Or) else all(both))
        case _:
            raise ValueError("more than arithmetic")
    if abs(found) > _LARGEST:
        raise ValueError("too large")
    return found
