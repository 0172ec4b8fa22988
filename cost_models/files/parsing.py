"""Specs from plain values and from files, with problems in the user's words; specs as YAML, and as JSON schemas with
the docstring of every field.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError

from cost_models.base import Spec
from cost_models.documents import Document, Key, printable, spec_problems
from cost_models.errors import InputError, MeshwrightError, Problem, UnknownNameError
from cost_models.families import FAMILIES
from cost_models.files.reading import read_document
from cost_models.files.whole import write_whole
from cost_models.specs.cluster import ClusterSpec, MixedCluster, OperationsSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import counted

S = TypeVar("S", bound=Spec)

_YAML_WIDTH = 100
_FLAGS = {"sequence_length": "--sequence", "target_length": "--decoder-sequence"}
"""Field → its flag, where the spelling differs."""
Replacements = Mapping[str, Callable[[Any], Any]]
"""Field at the root → function from the file's value to the value for validation, as a GPU's name to its fields."""


def load_spec(path: str | Path, spec_type: type[S], *, replace: Replacements | None = None) -> S:
    """Read a YAML or JSON file and validate the content as `spec_type`.

    Raises:
        InputError: the file cannot be read, or does not say what `spec_type` needs; all problems at once.
    """
    return validate(read_document(path), spec_type, replace=replace)


def load_job(
    path: str | None,
    spec_type: type[S],
    overrides: Mapping[str, Any],
    replacements: Callable[[Mapping[str, Any]], Replacements],
) -> S:
    """Build a training job of `spec_type` from a YAML file, flags, or both. `overrides` are the flags; None was
    not given.

    `replacements` are made from all its fields, as one may depend on another.

    Raises:
        InputError: all problems of file and flags at once.
    """
    flag_values = {name: value for name, value in overrides.items() if value is not None}
    document = Document(source="the training options", value={}) if path is None else read_document(path)
    check_kind(document, spec_type)
    named = spec_type.model_fields if path is None else flag_values
    flags: dict[Key, str] = {(name,): _FLAGS.get(name, "--" + name.replace("_", "-")) for name in named}
    document = dataclasses.replace(document, value=document.value | flag_values, flags=flags)
    return validate(document, spec_type, replace=replacements(document.value))


def validate(document: Document, spec_type: type[S], *, replace: Replacements | None = None) -> S:
    """Validate a parsed document as `spec_type`, with all problems reported by place in the file.

    Raises:
        InputError: with one problem for each thing that is wrong, the first of many.
    """
    check_kind(document, spec_type)
    fields = dict(document.value)
    problems = dict(document.problems)
    replacements = {name: convert for name, convert in (replace or {}).items() if name in fields}
    for name, convert in replacements.items():
        try:
            fields[name] = convert(fields[name])
        except ValueError as error:
            message = error.headline if isinstance(error, MeshwrightError) else str(error)
            problems[name,] = Problem(document.where((name,)), printable(message))
    unlisted = 0
    try:
        spec = spec_type.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        messages, unlisted = spec_problems(error, spec_type, dataclasses.replace(document, problems=problems))
        problems |= {key: Problem(document.where(key), what) for key, what in messages.items()}
    if problems:
        in_order = [problems[key] for key in sorted(problems, key=document.line)]
        number = counted(len(in_order) + unlisted, "problem")
        raise InputError(f"{number} in {document.source}", problems=in_order, more=unlisted)
    return spec


def check_kind(document: Document, spec_type: type[Spec]) -> None:
    """Raise InputError unless a document is a mapping whose `kind` is that of the spec."""
    kinds = get_args(spec_type.model_fields["kind"].annotation) if "kind" in spec_type.model_fields else ()
    expected = kinds[0] if len(kinds) == 1 else None  # a GPU's kind is one of several, no file kind
    if not isinstance(document.value, dict):
        raise InputError(f"`{document.source}` holds no `field: value` pairs")
    kind = document.value.get("kind", expected)
    if expected is not None and kind != expected:
        unknown = expected in FAMILIES and str(kind) not in FAMILIES
        known = f" (kinds of models: {', '.join(FAMILIES)})" if unknown else ""
        stated = f"`{document.source}` is a `{printable(str(kind))}`"
        raise InputError(f"{stated}; a `{expected}` is needed here{known}")


KINDS: dict[str, type[Spec]] = {
    "transformer": TransformerSpec,
    "cluster": ClusterSpec,
    "pools": MixedCluster,
    "recommender": RecommenderSpec,
    "training": TrainingSpec,
    "recommender-training": RecommenderTraining,
    "stack": StackSpec,
    "profile": HardwareProfile,
    "operations": OperationsSpec,
}
"""Kind of file → its spec; `pools` is a cluster of several pools."""


def save_spec(spec: Spec, path: Path) -> None:
    """Write a spec atomically as YAML that `load_spec` can read. Raises OSError, which names `path`."""
    text = yaml.safe_dump(spec.model_dump(mode="json", exclude_none=True), sort_keys=False, width=_YAML_WIDTH)
    write_whole(path, text)


def json_schema(kind: str) -> dict[str, Any]:
    """JSON schema of a kind of input file (such as `cluster`), for files as users write them. Quantities are text
    with a unit, a cluster's GPU may be a name.

    Raises:
        UnknownNameError: no such kind of file.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of file", kind, KINDS, hint=f"kinds: {', '.join(KINDS)}")
    schema = KINDS[kind].model_json_schema(mode="serialization")
    specs = {spec.__name__: spec for spec in _specs(Spec)}
    for name, part in {KINDS[kind].__name__: schema, **schema.get("$defs", {})}.items():
        docstrings = field_docstrings(specs[name]) if name in specs else {}
        for field in part.get("properties", {}).keys() & docstrings.keys():
            entry = {"description": docstrings[field], **part["properties"][field]}
            part["properties"][field] = dict(sorted(entry.items()))  # keys in the order of pydantic
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


def field_docstrings(spec: type[Spec]) -> dict[str, str]:
    """Map each field of a spec, inherited ones included, to the docstring below the field in the source code."""
    docstrings: dict[str, str] = {}
    for owner in reversed([one for one in spec.__mro__ if issubclass(one, Spec)]):
        written = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(written, ast.ClassDef)
        for field, statement in zip(written.body, written.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                docstrings[field.target.id] = inspect.cleandoc(str(statement.value.value))
    return docstrings
