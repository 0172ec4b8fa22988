"""Evaluator of Python files that finds the object a function builds by following its syntax tree, without
running the file.

Constants, arithmetic of numbers, functions of the same file, branches on known values and assignments to attributes are
followed. Every other call is an object with its arguments. All else is marked as unknown, and refused where a reader
needs it.

Python that an exporter writes: values by `repr`, which quotes them, and lines as `ast.unparse` lays them out.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import add, eq, floordiv, ge, gt, le, lt, mod, mul, ne, sub, truediv
from typing import Any

from cost_models.errors import InputError
from cost_models.units import LARGEST

_NOTHING: Any = object()
_MOST_TEXT = 1_000_000
_MOST_STEPS = 100_000
_DEEPEST = 20
OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {ast.Add: add, ast.Sub: sub, ast.Mult: mul}
OPERATIONS |= {ast.Eq: eq, ast.NotEq: ne, ast.Lt: lt, ast.LtE: le, ast.Gt: gt, ast.GtE: ge}
"""Operations on two numbers that are equal in Python and in a shell, by node of the syntax tree."""
_OPERATIONS = OPERATIONS | {ast.FloorDiv: floordiv, ast.Div: truediv, ast.Mod: mod, ast.Is: eq, ast.IsNot: ne}
_OPERATIONS[ast.In] = lambda one, values: one in (values if isinstance(values, list | dict) else _NOTHING)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Python expression whose value is unknown without running the file."""

    text: str
    """Source text of the expression."""

    def __str__(self) -> str:
        return self.text


def _unknown(node: ast.AST, words: str = "{}") -> Unknown:
    """Unknown value of a node of the syntax tree; `words` describe it, with `{}` for its source text."""
    return Unknown(words.format(ast.unparse(node)[:60]))


@dataclass(slots=True)
class Call:
    """Call of a function outside the file, with its arguments and the attributes set on its result
    afterwards."""

    name: str
    arguments: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}(..)"


@dataclass(slots=True)
class Module:
    """Parsed Python file with functions, imports and constants."""

    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Module of each imported name, unless it is in the file's own package."""
    constants: dict[str, Any] = field(default_factory=dict)
    steps: int = 0

    def result(self, function: str, depth: int = 0, arguments: Mapping[str, Any] | None = None) -> Any:
        """Evaluate a function of the file for some given arguments, without running it."""
        if depth > _DEEPEST:
            raise InputError(f"`{function}` calls itself, or functions too deep to follow")
        given_arguments, node = dict(arguments or {}), self.functions[function]
        args, positional = node.args, [*node.args.posonlyargs, *node.args.args]
        pairs: list[tuple[ast.arg, ast.expr | None]] = [*zip(args.kwonlyargs, args.kw_defaults, strict=True)]
        pairs += zip(positional[::-1], args.defaults[::-1], strict=False)
        names: dict[str, Any] = {one.arg: Unknown(one.arg) for one in (*positional, *args.kwonlyargs)}
        names |= {one.arg: self.value(default, given_arguments, depth) for one, default in pairs if default}
        if args.kwarg is not None:
            names[args.kwarg.arg] = {key: value for key, value in given_arguments.items() if key not in names}
        returned = self.run(node.body, names | given_arguments, depth)
        return None if returned is _NOTHING else returned

    def run(self, body: Iterable[ast.stmt], names: dict[str, Any], depth: int) -> Any:
        """Interpret the statements of a function body. Returns their return value, or `_NOTHING` if they do
        not return."""
        for line in body:
            if (returned := self._line(line, names, depth)) is not _NOTHING:
                return returned
        return _NOTHING

    def _line(self, line: ast.stmt, names: dict[str, Any], depth: int) -> Any:
        """Interpret one statement; returns its return value, or `_NOTHING`."""
        if isinstance(line, ast.If):
            test = self.value(line.test, names, depth)
            if not isinstance(test, Unknown | Call):
                return self.run(line.body if test else line.orelse, names, depth)
            if any(isinstance(one, ast.Return) for one in ast.walk(line)):
                return _unknown(line.test, "what is returned if {}")
        match line:
            case ast.Return(value=value):
                return None if value is None else self.value(value, names, depth)
            case ast.Assign(targets=targets, value=value):
                new_value = self.value(value, names, depth)
                for target in targets:
                    self._set(target, new_value, names, depth)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._set(target, self.value(value, names, depth), names, depth)
            case ast.AugAssign(target=target, op=op, value=value):
                total = self.value(ast.BinOp(target, op, value), names, depth)
                self._set(target, _unknown(line) if isinstance(total, Unknown) else total, names, depth)
            case ast.FunctionDef(name=name):
                self.functions.setdefault(name, line)
            case ast.ImportFrom(module=str(source), names=imported, level=0):
                self.sources |= {one.asname or one.name: source for one in imported}
            case _:  # loops, branches, calls that change something: what they set is not known
                for part in ast.walk(line):
                    match part:
                        case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                            self._set(part, _unknown(line, "set inside `{}`"), names, depth)
                        case ast.Call(func=ast.Attribute(value=ast.Attribute() as owner)):  # `a.b.append(..)`
                            self._set(owner, _unknown(part), names, depth)
        return _NOTHING

    def _set(self, target: ast.expr, value: Any, names: dict[str, Any], depth: int) -> None:
        """Assign a value to a target: a name, a tuple of targets, or an attribute."""
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            fits = isinstance(value, list) and len(value) == len(target.elts)
            values = value if fits else [_unknown(target)] * len(target.elts)
            for part, element in zip(target.elts, values, strict=True):
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
        try:
            return self._value(node, names, depth)
        except (ArithmeticError, AttributeError, LookupError, TypeError):
            return _unknown(node)

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        """Evaluate an expression; raises an error (such as LookupError) if its value is unknown."""
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.List(elts=elts) | ast.Tuple(elts=elts) | ast.Set(elts=elts):
                return [self.value(item, names, depth) for item in elts]
            case ast.Dict(keys=keys, values=values):
                items = zip(keys, [self.value(item, names, depth) for item in values], strict=True)
                return {key.value: item for key, item in items if isinstance(key, ast.Constant)}
            case ast.Name(id=name):
                return names[name] if name in names else self.constants[name]
            case ast.Attribute(value=owner, attr=attr):
                return self.value(owner, names, depth).fields[attr]
            case ast.UnaryOp(op=ast.USub(), operand=item):
                return _operation(ast.Mult(), -1, self.value(item, names, depth))
            case ast.UnaryOp(op=ast.Not(), operand=item):
                return not _decide(self.value(item, names, depth))
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]):
                return _operation(op, self.value(left, names, depth), self.value(right, names, depth))
            case ast.BoolOp(op=op, values=values):
                for operand in map(_decide, [self.value(item, names, depth) for item in values]):
                    if bool(operand) == isinstance(op, ast.Or):
                        break
                return operand
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if _decide(self.value(test, names, depth)) else orelse, names, depth)
            case ast.Call():
                return self._call(node, names, depth)
        raise LookupError

    def _call(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        """Result of a call of a function that the file defines; for a call of any other function, a
        `Call`."""
        arguments = [self.value(argument, names, depth) for argument in node.args]
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, names, depth)
            if keyword.arg is None and not isinstance(value, dict):
                value = {"**": _unknown(keyword.value)}
            keywords |= value if keyword.arg is None else {keyword.arg: value}
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            places = [keyword.arg for keyword in self.functions[node.func.id].args.args]
            by_name = dict(zip(places, arguments, strict=False)) | keywords
            return self.result(node.func.id, depth + 1, by_name)
        return Call(ast.unparse(node.func)[:200], arguments, keywords)


def _decide(value: Any) -> Any:
    """Return a known value unchanged; refuse an unknown one. Raises LookupError for an unknown value or a
    call."""
    if isinstance(value, Unknown | Call):
        raise LookupError
    return value


def _operation(op: ast.operator | ast.cmpop, left: Any, right: Any) -> Any:
    """Value of an arithmetic operation or comparison of two evaluated operands. Raises LookupError or
    ArithmeticError if it is unknown."""
    if isinstance(op, ast.cmpop):
        is_computable = not isinstance(left, Unknown | Call) and not isinstance(right, Unknown)
    elif isinstance(op, ast.Add) and isinstance(left, list) and isinstance(right, list):
        is_computable = len(left) + len(right) <= _MOST_STEPS
    else:
        is_computable = all(isinstance(one, int | float) and abs(one) <= LARGEST for one in (left, right))
    if not is_computable:
        raise LookupError
    return _OPERATIONS[type(op)](left, right)


def module_of(text: str) -> Module:
    """Parse a Python file into functions, imports and constants. Raises InputError if it is not Python, or
    too long."""
    if len(text) > _MOST_TEXT:
        raise InputError(f"a file of {len(text):,} characters is no recipe")
    module = Module()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        module.functions |= {line.name: line for line in tree.body if isinstance(line, ast.FunctionDef)}
        of_module = (ast.ImportFrom, ast.Assign, ast.AnnAssign)
        module.run((line for line in tree.body if isinstance(line, of_module)), module.constants, 0)
    except SyntaxError as error:
        raise InputError(f"line {error.lineno} is no Python: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):
        raise InputError("the file nests too deep to be read") from None
    return module


def built_by(module: Module, function: str) -> Any:
    """Result of calling a function of a parsed Python file, evaluated without running the file. Raises
    InputError if it is nested too deeply."""
    try:
        return module.result(function)
    except (RecursionError, MemoryError):
        raise InputError(f"`{function}` nests too deep to be read") from None


class Code(str):
    """Python source text whose `repr` is the text itself, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def call_source(path: str, *arguments: Any, **keywords: Any) -> Code:
    """Source text of a Python call, such as `a.b(1, c=2)`."""
    words = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in keywords.items())]
    return Code(f"{path}({', '.join(words)})")


def module_source(
    about: str, sources: Mapping[str, str], body: Iterable[tuple[str, Any]], last: str = ""
) -> str:
    """Source text of a Python module whose function `plan()` builds `config` by the assignments `body` (path,
    value) and returns it. `about` is the docstring, `last` is code after the function; names in use are
    imported from the modules in `sources`."""
    lines = (f"    {path} = {value!r}" for path, value in body)
    code = "\n".join(["def plan():", *lines, "    return config", last])
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)} & sources.keys()
    imports = [
        f"from {source} import {', '.join(sorted(name for name in names if sources[name] == source))}"
        for source in sorted({sources[name] for name in names})
    ]
    return ast.unparse(ast.parse("\n".join([repr(about), *imports, code]))) + "\n"
