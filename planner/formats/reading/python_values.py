"""The object that a function of a Python file builds, followed in its syntax tree without running it.

Constants, arithmetic of numbers, functions of the same file, branches on known values and assignments to attributes are
followed. Every other call is an object with its arguments. All else is marked as unknown, and refused where a reader
needs it.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.errors import InputError
from cost_models.units import LARGEST

_NOTHING: Any = object()
_MOST_TEXT = 1_000_000
_MOST_STEPS = 100_000
_DEEPEST = 20
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many if isinstance(many, list | tuple | dict) else _NOTHING,
}


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only running the file would show."""

    text: str
    """As it is written."""

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Built:
    """Result of a call to something outside the file: its name, its arguments, and attributes set since."""

    name: str
    arguments: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Module:
    """A Python file: its functions, imports and constants."""

    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Imported name → the module that it comes from; empty where that is the file's own package."""
    constants: dict[str, Any] = field(default_factory=dict)
    steps: int = 0

    def result(self, function: str, depth: int = 0, given: Mapping[str, Any] | None = None) -> Any:
        """Result of a function of the file, given some of its arguments."""
        if depth > _DEEPEST:
            raise InputError(f"`{function}` calls itself, or functions too deep to follow")
        names = dict(given or {})
        node = self.functions[function]
        spare = node.args.defaults
        for one, default in zip(node.args.args[len(node.args.args) - len(spare) :], spare, strict=True):
            names.setdefault(one.arg, self.value(default, names, depth))
        for one, said in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if said is not None:
                names.setdefault(one.arg, self.value(said, names, depth))
        named = [one.arg for one in (*node.args.args, *node.args.kwonlyargs)]
        for name in named:
            names.setdefault(name, Unknown(name))
        if node.args.kwarg is not None:
            names[node.args.kwarg.arg] = {key: value for key, value in names.items() if key not in named}
        found = self.run(node.body, names, depth)
        return None if found is _NOTHING else found

    def run(self, body: Iterable[ast.stmt], names: dict[str, Any], depth: int) -> Any:
        """Follow lines of a function. Returns what they return, or `_NOTHING`."""
        for line in body:
            if isinstance(line, ast.Return):
                return None if line.value is None else self.value(line.value, names, depth)
            if isinstance(line, ast.If):
                test = self.value(line.test, names, depth)
                if not isinstance(test, Unknown | Built):
                    found = self.run(line.body if test else line.orelse, names, depth)
                    if found is not _NOTHING:
                        return found
                    continue
                if any(isinstance(one, ast.Return) for one in ast.walk(line)):
                    return Unknown(f"what is returned if {ast.unparse(line.test)[:60]}")
            self._line(line, names, depth)
        return _NOTHING

    def _line(self, line: ast.stmt, names: dict[str, Any], depth: int) -> None:
        match line:
            case ast.Assign(targets=targets, value=value):
                said = self.value(value, names, depth)
                for target in targets:
                    self._set(target, said, names, depth)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._set(target, self.value(value, names, depth), names, depth)
            case ast.AugAssign(target=target, op=op, value=value):
                read = ast.parse(ast.unparse(target), mode="eval").body
                said = _arithmetic(op, self.value(read, names, depth), self.value(value, names, depth))
                self._set(target, Unknown(ast.unparse(line)[:60]) if said is _NOTHING else said, names, depth)
            case ast.FunctionDef(name=name):
                self.functions.setdefault(name, line)
            case ast.ImportFrom() | ast.Import():
                self.imports(line)
            case _:  # loops, branches, calls that change something: what they set is not known
                for one in ast.walk(line):
                    if isinstance(one, ast.Name | ast.Attribute) and isinstance(one.ctx, ast.Store):
                        self._set(one, Unknown(f"set inside `{ast.unparse(line)[:60]}`"), names, depth)
                    elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
                        held = one.func.value  # `config.things.append(..)`
                        if isinstance(held, ast.Attribute):
                            self._set(held, Unknown(ast.unparse(one)[:60]), names, depth)

    def imports(self, line: ast.ImportFrom | ast.Import) -> None:
        """Keep the modules that names are imported from."""
        for one in line.names:
            source = "" if isinstance(line, ast.ImportFrom) and line.level else getattr(line, "module", "")
            self.sources[one.asname or one.name] = source or ""

    def _set(self, target: ast.expr, value: Any, names: dict[str, Any], depth: int) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            many = value if isinstance(value, list | tuple) and len(value) == len(target.elts) else None
            for at, one in enumerate(target.elts):
                said = many[at] if many is not None else Unknown(ast.unparse(target)[:60])
                self._set(one, said, names, depth)
        elif isinstance(target, ast.Attribute):
            holder = self.value(target.value, names, depth)
            if isinstance(holder, Unknown) and isinstance(target.value, ast.Attribute):
                self._set(target.value, holder := Built(""), names, depth)
            if isinstance(holder, Built):
                holder.fields[target.attr] = value

    def value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        """Value of an expression."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise InputError("the file computes too much to be a recipe")
        found = self._value(node, names, depth)
        return Unknown(ast.unparse(node)[:60]) if found is _NOTHING else found

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        match node:
            case ast.Constant(value=value):
                return value if isinstance(value, bool | int | float | str | None) else _NOTHING
            case ast.List(elts=elts) | ast.Tuple(elts=elts) | ast.Set(elts=elts):
                return [self.value(one, names, depth) for one in elts]
            case ast.Dict(keys=keys, values=values):
                said = [(key, self.value(one, names, depth)) for key, one in zip(keys, values, strict=True)]
                return {key.value: one for key, one in said if isinstance(key, ast.Constant)}
            case ast.Name(id=name):
                return names.get(name, self.constants.get(name, _NOTHING))
            case ast.Attribute(value=of, attr=attr):
                holder = self.value(of, names, depth)
                return holder.fields.get(attr, _NOTHING) if isinstance(holder, Built) else _NOTHING
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                one = self.value(operand, names, depth)
                return -one if _is_number(one) else _NOTHING
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                one = self.value(operand, names, depth)
                return _NOTHING if isinstance(one, Unknown | Built) else not one
            case ast.BinOp(left=left, op=op, right=right):
                return _arithmetic(op, self.value(left, names, depth), self.value(right, names, depth))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                both = self.value(left, names, depth), self.value(right, names, depth)
                return _compared(op, *both)
            case ast.BoolOp(op=op, values=values):
                return _chosen(isinstance(op, ast.Or), [self.value(one, names, depth) for one in values])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                known = self.value(test, names, depth)
                if isinstance(known, Unknown | Built):
                    return _NOTHING
                return self.value(body if known else orelse, names, depth)
            case ast.Call():
                return self._call(node, names, depth)
        return _NOTHING

    def _call(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        given = [self.value(one, names, depth) for one in node.args]
        named: dict[str, Any] = {}
        for one in node.keywords:
            said = self.value(one.value, names, depth)
            if one.arg is not None:
                named[one.arg] = said
            elif isinstance(said, dict):
                named |= {str(key): value for key, value in said.items()}
            else:
                named["**"] = Unknown(ast.unparse(one.value)[:60])
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            places = [one.arg for one in self.functions[node.func.id].args.args]
            return self.result(node.func.id, depth + 1, {**dict(zip(places, given, strict=False)), **named})
        return Built(ast.unparse(node.func)[:200], given, named)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= LARGEST


def _arithmetic(op: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(left, list) and isinstance(right, list) and isinstance(op, ast.Add):
        return [*left, *right] if len(left) + len(right) <= _MOST_STEPS else _NOTHING
    if not (_is_number(left) and _is_number(right)) or type(op) not in _ARITHMETIC:
        return _NOTHING
    try:
        return _ARITHMETIC[type(op)](left, right)
    except (ZeroDivisionError, OverflowError):
        return _NOTHING


def _compared(op: ast.cmpop, left: Any, right: Any) -> Any:
    if isinstance(left, Unknown | Built) or isinstance(right, Unknown) or type(op) not in _COMPARED:
        return _NOTHING
    try:
        return _COMPARED[type(op)](left, right)
    except TypeError:
        return _NOTHING


def _chosen(is_or: bool, values: list[Any]) -> Any:
    """Value of an `and` or an `or`: the operand that decides it."""
    for one in values:
        if isinstance(one, Unknown | Built):
            return _NOTHING
        if bool(one) == is_or:
            return one
    return values[-1]


def module_of(text: str) -> Module:
    """The functions and constants of a Python file. Raises InputError: it is no Python, or too much of it."""
    if len(text) > _MOST_TEXT:
        raise InputError(f"a file of {len(text):,} characters is no recipe")
    module = Module()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        for line in tree.body:
            if isinstance(line, ast.FunctionDef):
                module.functions[line.name] = line
            elif isinstance(line, ast.Import | ast.ImportFrom):
                module.imports(line)
            elif isinstance(line, ast.Assign | ast.AnnAssign):
                module.run([line], module.constants, 0)
    except SyntaxError as error:
        raise InputError(f"line {error.lineno} is no Python: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):
        raise InputError("the file nests too deep to be read") from None
    return module


def built_by(module: Module, function: str) -> Any:
    """Result of a function of the file. Raises InputError where it cannot be followed."""
    try:
        return module.result(function)
    except (RecursionError, MemoryError):
        raise InputError(f"`{function}` nests too deep to be read") from None
