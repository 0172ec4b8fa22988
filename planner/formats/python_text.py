"""Python that an exporter writes, as a syntax tree: values are constants of the tree, so nothing has to be quoted."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any


def value(what: Any) -> ast.expr:
    """A plain value: a number, a text, a list of such .. or a tree as it is."""
    if isinstance(what, ast.expr):
        return what
    if isinstance(what, (list, tuple)):
        items = [value(one) for one in what]
        return (ast.List if isinstance(what, list) else ast.Tuple)(elts=items, ctx=ast.Load())
    assert what is None or isinstance(what, (bool, int, float, str)), what
    return ast.Constant(what)


def name(path: str) -> ast.expr:
    """`a.b.c`."""
    first, *rest = path.split(".")
    tree: ast.expr = ast.Name(first, ast.Load())
    for part in rest:
        tree = ast.Attribute(tree, part, ast.Load())
    return tree


def call(path: str, *arguments: Any, **named: Any) -> ast.expr:
    """`a.b(1, c=2)`."""
    keywords = [ast.keyword(key, value(one)) for key, one in named.items()]
    return ast.Call(name(path), [value(one) for one in arguments], keywords)


def assign(path: str, what: Any) -> ast.stmt:
    """`a.b = 1`."""
    target = name(path)
    assert isinstance(target, (ast.Name, ast.Attribute))
    target.ctx = ast.Store()
    return ast.Assign([target], value(what))


def when_started(what: ast.expr) -> ast.stmt:
    """`if __name__ == "__main__": what`."""
    test = ast.Compare(name("__name__"), [ast.Eq()], [value("__main__")])
    return ast.If(test, [ast.Expr(what)], [])


def module(
    about: str,
    imports: Mapping[str, Iterable[str]],
    function: str,
    body: list[ast.stmt],
    last: Iterable[ast.stmt] = (),
) -> str:
    """A module of one function without arguments: what it is, imports from each module, the function's lines, and
    what follows it."""
    lines: list[ast.stmt] = [ast.Expr(ast.Constant(about))]
    lines += [
        ast.ImportFrom(source, [ast.alias(one) for one in sorted(set(names))], 0)
        for source, names in sorted(imports.items())
    ]
    no_arguments = ast.arguments([], [], None, [], [], None, [])
    lines += [ast.FunctionDef(function, no_arguments, body, [], None), *last]
    tree = ast.fix_missing_locations(ast.Module(lines, []))
    return ast.unparse(tree) + "\n"


def returned(path: str) -> ast.stmt:
    """`return a`."""
    return ast.Return(name(path))
