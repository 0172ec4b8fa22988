"""Plain values → specs: strict validation whose complaints name file, line and field in the user's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cost_models.errors import InputError, MeshwrightError, Problem, did_you_mean
from cost_models.specs.base import Spec
from cost_models.specs.documents import Document, Key, printable, show_key
from cost_models.specs.reading import read_document
from cost_models.specs.yaml_text import parse_yaml

S = TypeVar("S", bound=Spec)

Replacements = Mapping[str, Callable[[Any], Any]]
"""For a field of the root: what stands in the file → what is validated, e.g. a GPU's name → its fields."""


def load_spec(path: str | Path, spec_type: type[S], *, replace: Replacements | None = None) -> S:
    """Read one spec from a YAML or JSON file.

    Raises:
        InputError: the file cannot be read, or does not say what `spec_type` needs; all problems at once.
    """
    return validate(read_document(path), spec_type, replace=replace)


def parse_spec(text: str, spec_type: type[S], *, source: str, replace: Replacements | None = None) -> S:
    """The same for YAML text already in memory; `source` is the name that problems print."""
    return validate(parse_yaml(text, source=source), spec_type, replace=replace)


def validate(document: Document, spec_type: type[S], *, replace: Replacements | None = None) -> S:
    """Check a parsed document against a spec.

    Raises:
        InputError: with one problem for each thing that is wrong.
    """
    check_kind(document, spec_type)
    fields = dict(document.value)
    problems = dict(document.problems)
    for name in (replace or {}).keys() & fields.keys():
        try:
            fields[name] = (replace or {})[name](fields[name])
        except MeshwrightError as error:
            problems[name,] = Problem(document.where((name,)), error.headline)
    try:
        spec = spec_type.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        for details in error.errors(include_url=False):
            key, what = _complaint(spec_type, details)
            if key[:1] not in problems:
                problems.setdefault(key, Problem(document.where(key), printable(what)))
    if problems:
        raise input_error(document.source, [problems[key] for key in sorted(problems, key=document.line)])
    return spec


def check_kind(document: Document, spec_type: type[Spec]) -> None:
    """Refuse a document that is no mapping, or that says it is something else; raises InputError."""
    kinds = get_args(spec_type.model_fields["kind"].annotation) if "kind" in spec_type.model_fields else ()
    wanted = kinds[0] if len(kinds) == 1 else None  # a GPU's kind is one of several, no file kind
    if not isinstance(document.value, dict):
        raise InputError(f"`{document.source}` holds no `field: value` pairs")
    given = document.value.get("kind", wanted)
    if wanted is not None and given != wanted:
        raise InputError(f"`{document.source}` is a `{printable(str(given))}`; a `{wanted}` is needed here")


def input_error(source: str, problems: list[Problem]) -> InputError:
    """`4 problems in cluster.yaml`, with the problems."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return InputError(f"{count} in {source}", problems=problems)


def _complaint(spec_type: type[Spec], details: ErrorDetails) -> tuple[Key, str]:
    """Pydantic's error → where it is and a sentence about it."""
    key: Key = tuple(part for part in details["loc"] if part != "[key]")
    name, given = show_key(key[-1:]), details["input"]
    context = details.get("ctx", {})
    match details["type"]:
        case "missing":
            return key, f"required field `{name}` is missing"
        case "extra_forbidden":
            return key, f"unknown field `{name}`{did_you_mean(name, _field_names(spec_type, key[:-1]))}"
        case "greater_than" if not context["gt"]:
            return key, f"must be above zero, not {_show(given)}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal" as kind:
            limit = next(iter(context.values()))
            return key, f"must be {_COMPARISONS[kind]} {limit:g}, not {_show(given)}"
        case "literal_error":
            words = [word.strip(" '") for word in context["expected"].replace(" or ", ", ").split(",")]
            listed = ", ".join(f"`{word}`" for word in words)
            return key, f"{_show(given)} is not one of {listed}{did_you_mean(str(given), words)}"
        case "string_pattern_mismatch":
            return key, f"{_show(given)} is not a name: letters, digits, spaces and `._+/-`, 100 at most"
        case "value_error":
            cause = context.get("error")
            if isinstance(cause, MeshwrightError):
                return key, "; ".join([cause.headline, *map(str, cause.problems)])
            return key, str(cause)
        case kind if kind in _NOUNS:
            return key, f"{_show(given)} is not {_NOUNS[kind]}"
        case _:
            return key, f"{details['msg'][:1].lower()}{details['msg'][1:]}"


_COMPARISONS = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
_NOUNS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of sensible size",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "`true` or `false`",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a group of `field: value` pairs",
    "model_type": "a group of `field: value` pairs",
    "model_attributes_type": "a group of `field: value` pairs",
}


def _show(value: Any) -> str:
    """What the user wrote, between backticks and not too long."""
    if isinstance(value, dict | list):
        return "this group" if isinstance(value, dict) else "this list"
    words = {None: "nothing", True: "`true`", False: "`false`"}
    if value is None or isinstance(value, bool):
        return words[value]
    return f"`{printable(str(value), limit=60)}`"


def _field_names(spec_type: type[BaseModel], key: Key) -> list[str]:
    """Names of the fields that may stand at `key`; empty where the place is not a spec."""
    if not key:
        return list(spec_type.model_fields)
    part, rest = key[0], key[1:]
    if part not in spec_type.model_fields:
        return []
    inner = _inner_spec(spec_type.model_fields[str(part)].annotation)
    while rest and isinstance(rest[0], int):
        rest = rest[1:]
    return _field_names(inner, rest) if inner else []


def _inner_spec(annotation: Any) -> type[BaseModel] | None:
    """The spec inside `X`, `X | None`, `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_inner_spec, get_args(annotation))), None)
