"""Python that an exporter writes: values by `repr`, which quotes them, and lines as `ast.unparse` lays them out."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any


class Code(str):
    """Python that is written as it is, where `repr` would quote a text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def call(path: str, *arguments: Any, **keywords: Any) -> Code:
    """`a.b(1, c=2)`."""
    words = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in keywords.items())]
    return Code(f"{path}({', '.join(words)})")


def assign(path: str, value: Any) -> str:
    """`a.b = 1`, a line of a function."""
    return f"{path} = {value!r}"


def module(about: str, imports: Mapping[str, Iterable[str]], body: Iterable[str], last: str = "") -> str:
    """A module whose function `plan()` sets and returns `config`: what it is about, imports by module, the function's
    lines, and what follows it."""
    lines = [repr(about)]
    lines += [
        f"from {source} import {', '.join(sorted(set(names)))}" for source, names in sorted(imports.items())
    ]
    lines += ["def plan():", *(f"    {line}" for line in body), "    return config", last]
    return ast.unparse(ast.parse("\n".join(lines))) + "\n"
