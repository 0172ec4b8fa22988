"""Python that an exporter writes: values by `repr`, which quotes them, and lines as `ast.unparse` lays them out."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any


class Code(str):
    """Python source whose `repr` is the source itself, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def call(path: str, *arguments: Any, **keywords: Any) -> Code:
    """Source of a Python call, such as `a.b(1, c=2)`."""
    words = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in keywords.items())]
    return Code(f"{path}({', '.join(words)})")


def assign(path: str, value: Any) -> str:
    """Source of a Python assignment, such as `a.b = 1`."""
    return f"{path} = {value!r}"


def module(about: str, sources: Mapping[str, str], body: Iterable[str], last: str = "") -> str:
    """Source of a Python module whose function `plan()` sets and returns `config`, given docstring, lines of the
    function, and code behind it; names that the code uses are imported from their `sources` (name → module)."""
    code = "\n".join(["def plan():", *(f"    {line}" for line in body), "    return config", last])
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)} & sources.keys()
    imports = [
        f"from {source} import {', '.join(sorted(name for name in names if sources[name] == source))}"
        for source in sorted({sources[name] for name in names})
    ]
    return ast.unparse(ast.parse("\n".join([repr(about), *imports, code]))) + "\n"
