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
OPERATIONS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
"""Operations of two numbers that Python and a shell do alike."""
_OPERATIONS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    **OPERATIONS,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.In: lambda one, many: one in many if isinstance(many, list | tuple | dict) else _NOTHING,
}


@dataclass(frozen=True, slots=True)
class Unknown:
    """A Python expression whose value is unknown without running the file."""

    text: str
    """Source text of the expression."""

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Call:
    """A call to a function outside the file, with arguments and with attributes set on the result
    afterwards."""

    name: str
    arguments: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Module:
    """A parsed Python file with functions, imports and constants."""

    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Imported name → the module that it comes from; empty where that is the file's own package."""
    constants: dict[str, Any] = field(default_factory=dict)
    steps: int = 0

    def result(self, function: str, depth: int = 0, arguments: Mapping[str, Any] | None = None) -> Any:
        """Evaluate a function of the file without running it, given some arguments."""
        if depth > _DEEPEST:
            raise InputError(f"`{function}` calls itself, or functions too deep to follow")
        given, node = dict(arguments or {}), self.functions[function]
        positional = [*node.args.posonlyargs, *node.args.args]
        without_default = [None] * (len(positional) - len(node.args.defaults))
        defaults = [*without_default, *node.args.defaults, *node.args.kw_defaults]
        names: dict[str, Any] = {}
        for parameter, default in zip([*positional, *node.args.kwonlyargs], defaults, strict=True):
            value = Unknown(parameter.arg) if default is None else self.value(default, given, depth)
            names[parameter.arg] = value
        if node.args.kwarg is not None:
            names[node.args.kwarg.arg] = {key: value for key, value in given.items() if key not in names}
        returned = self.run(node.body, names | given, depth)
        return None if returned is _NOTHING else returned

    def run(self, body: Iterable[ast.stmt], names: dict[str, Any], depth: int) -> Any:
        """Interpret the statements of a function body. Returns what they return, or `_NOTHING`."""
        for line in body:
            if isinstance(line, ast.Return):
                return None if line.value is None else self.value(line.value, names, depth)
            if isinstance(line, ast.If):
                test = self.value(line.test, names, depth)
                if not isinstance(test, Unknown | Call):
                    value = self.run(line.body if test else line.orelse, names, depth)
                    if value is not _NOTHING:
                        return value
                    continue
                if any(isinstance(one, ast.Return) for one in ast.walk(line)):
                    return Unknown(f"what is returned if {ast.unparse(line.test)[:60]}")
            self._line(line, names, depth)
        return _NOTHING

    def _line(self, line: ast.stmt, names: dict[str, Any], depth: int) -> None:
        match line:
            case ast.Assign(targets=targets, value=value):
                new_value = self.value(value, names, depth)
                for target in targets:
                    self._set(target, new_value, names, depth)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._set(target, self.value(value, names, depth), names, depth)
            case ast.AugAssign(target=target, op=op, value=value):
                read = ast.parse(ast.unparse(target), mode="eval").body
                result = _operation(op, self.value(read, names, depth), self.value(value, names, depth))
                new_value = Unknown(ast.unparse(line)[:60]) if result is _NOTHING else result
                self._set(target, new_value, names, depth)
            case ast.FunctionDef(name=name):
                self.functions.setdefault(name, line)
            case ast.ImportFrom() | ast.Import():
                self.imports(line)
            case _:  # loops, branches, calls that change something: what they set is not known
                for part in ast.walk(line):
                    if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store):
                        self._set(part, Unknown(f"set inside `{ast.unparse(line)[:60]}`"), names, depth)
                    elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                        owner = part.func.value  # `config.things.append(..)`
                        if isinstance(owner, ast.Attribute):
                            self._set(owner, Unknown(ast.unparse(part)[:60]), names, depth)

    def imports(self, line: ast.ImportFrom | ast.Import) -> None:
        """Record which module each imported name comes from."""
        for name in line.names:
            source = "" if isinstance(line, ast.ImportFrom) and line.level else getattr(line, "module", "")
            self.sources[name.asname or name.name] = source or ""

    def _set(self, target: ast.expr, value: Any, names: dict[str, Any], depth: int) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            values = value if isinstance(value, list | tuple) and len(value) == len(target.elts) else None
            for at, part in enumerate(target.elts):
                element = values[at] if values is not None else Unknown(ast.unparse(target)[:60])
                self._set(part, element, names, depth)
        elif isinstance(target, ast.Attribute):
            holder = self.value(target.value, names, depth)
            if isinstance(holder, Unknown) and isinstance(target.value, ast.Attribute):
                self._set(target.value, holder := Call(""), names, depth)
            if isinstance(holder, Call):
                holder.fields[target.attr] = value

    def value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        """Evaluate a Python expression; `Unknown` if that would need running the file."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise InputError("the file computes too much to be a recipe")
        value = self._value(node, names, depth)
        return Unknown(ast.unparse(node)[:60]) if value is _NOTHING else value

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        match node:
            case ast.Constant(value=value):
                return value if isinstance(value, bool | int | float | str | None) else _NOTHING
            case ast.List(elts=elts) | ast.Tuple(elts=elts) | ast.Set(elts=elts):
                return [self.value(item, names, depth) for item in elts]
            case ast.Dict(keys=keys, values=values):
                items = zip(keys, [self.value(item, names, depth) for item in values], strict=True)
                return {key.value: item for key, item in items if isinstance(key, ast.Constant)}
            case ast.Name(id=name):
                return names.get(name, self.constants.get(name, _NOTHING))
            case ast.Attribute(value=owner, attr=attr):
                holder = self.value(owner, names, depth)
                return holder.fields.get(attr, _NOTHING) if isinstance(holder, Call) else _NOTHING
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                item = self.value(operand, names, depth)
                return -item if _is_number(item) else _NOTHING
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                item = self.value(operand, names, depth)
                return _NOTHING if isinstance(item, Unknown | Call) else not item
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]):
                return _operation(op, self.value(left, names, depth), self.value(right, names, depth))
            case ast.BoolOp(op=op, values=values):
                return _boolean_operand(op, [self.value(item, names, depth) for item in values])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self.value(test, names, depth)
                if isinstance(condition, Unknown | Call):
                    return _NOTHING
                return self.value(body if condition else orelse, names, depth)
            case ast.Call():
                return self._call(node, names, depth)
        return _NOTHING

    def _call(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        arguments = [self.value(keyword, names, depth) for keyword in node.args]
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            keyword_value = self.value(keyword.value, names, depth)
            if keyword.arg is not None:
                keywords[keyword.arg] = keyword_value
            elif isinstance(keyword_value, dict):
                keywords |= {str(key): value for key, value in keyword_value.items()}
            else:
                keywords["**"] = Unknown(ast.unparse(keyword.value)[:60])
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            places = [keyword.arg for keyword in self.functions[node.func.id].args.args]
            given = dict(zip(places, arguments, strict=False)) | keywords
            return self.result(node.func.id, depth + 1, given)
        return Call(ast.unparse(node.func)[:200], arguments, keywords)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= LARGEST


def _operation(op: ast.operator | ast.cmpop, left: Any, right: Any) -> Any:
    """Value of arithmetic or a comparison of two evaluated operands; `_NOTHING` if that is unknown."""
    if isinstance(op, ast.cmpop):
        is_known = not isinstance(left, Unknown | Call) and not isinstance(right, Unknown)
    else:
        is_known = _is_number(left) and _is_number(right)
        if isinstance(left, list) and isinstance(right, list) and isinstance(op, ast.Add):
            return [*left, *right] if len(left) + len(right) <= _MOST_STEPS else _NOTHING
    try:
        return _OPERATIONS[type(op)](left, right) if is_known else _NOTHING
    except (KeyError, TypeError, ZeroDivisionError, OverflowError):
        return _NOTHING


def _boolean_operand(op: ast.boolop, values: list[Any]) -> Any:
    """Value of `and` or `or` over evaluated operands, which is the first operand that decides it."""
    for value in values:
        if isinstance(value, Unknown | Call):
            return _NOTHING
        if bool(value) == isinstance(op, ast.Or):
            return value
    return values[-1]


def module_of(text: str) -> Module:
    """Parse a Python file into functions, imports and constants. Raises InputError: it is no Python, or too
    much of it."""
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
    """Result of calling a function of a parsed Python file, evaluated without running the file. Raises
    InputError where it cannot be followed."""
    try:
        return module.result(function)
    except (RecursionError, MemoryError):
        raise InputError(f"`{function}` nests too deep to be read") from None
