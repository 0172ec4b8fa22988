"""JSON schemas of the files that people write, with the docstring of every field."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from cost_models.base import Spec
from cost_models.errors import UnknownNameError
from cost_models.files.parsing import KINDS
from cost_models.specs.model.filling import DERIVED_FIELDS


def json_schema(kind: str) -> dict[str, Any]:
    """The JSON schema of what people write: quantities are text with a unit, a cluster's GPU may be a name.

    Raises:
        UnknownNameError: no such kind of file.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of file", kind, KINDS, hint=f"kinds: {', '.join(KINDS)}")
    schema = KINDS[kind].model_json_schema(mode="serialization")
    specs = {spec.__name__: spec for spec in _specs(Spec)}
    for name, part in {KINDS[kind].__name__: schema, **schema.get("$defs", {})}.items():
        if name in specs:
            _describe(part, field_docstrings(specs[name]))
    schema["required"] = [name for name in schema.get("required", []) if name not in DERIVED_FIELDS]
    if kind in ("cluster", "pools"):
        cluster = schema if kind == "cluster" else schema["$defs"]["ClusterSpec"]
        gpu = cluster["properties"]["gpu"]
        inline = {"$ref": gpu.pop("$ref")}
        gpu["anyOf"] = [{"type": "string"}, inline]
    return schema


def _specs(base: type[Spec]) -> Iterator[type[Spec]]:
    for spec in base.__subclasses__():
        yield spec
        yield from _specs(spec)


def _describe(part: dict[str, Any], docstrings: dict[str, str]) -> None:
    """Add the docstrings of fields to a schema, keys in order as pydantic has them."""
    for name, field in part.get("properties", {}).items():
        if name in docstrings:
            whole = sorted({"description": docstrings[name], **field}.items())
            field.clear()
            field.update(whole)


def field_docstrings(spec: type[Spec]) -> dict[str, str]:
    """Field → the string below it, of a spec and those it inherits from."""
    found: dict[str, str] = {}
    for owner in reversed([one for one in spec.__mro__ if issubclass(one, Spec)]):
        written = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(written, ast.ClassDef)
        for field, below in zip(written.body, written.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[field.target.id] = inspect.cleandoc(str(below.value.value))
    return found
