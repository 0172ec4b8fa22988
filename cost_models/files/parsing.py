"""Validating plain values as specs: complaints name file, line and field in the user's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from cost_models.base import Spec
from cost_models.documents import Document, printable
from cost_models.errors import InputError, MeshwrightError, Problem
from cost_models.families import FAMILIES
from cost_models.files.reading import read_document
from cost_models.files.yaml_text import parse_yaml
from cost_models.spec_problems import spec_problems
from cost_models.units import counted

S = TypeVar("S", bound=Spec)

Replacements = Mapping[str, Callable[[Any], Any]]
"""Field at the root → function from the file's value to the one that is validated, as a GPU's name to its fields."""


def load_spec(path: str | Path, spec_type: type[S], *, replace: Replacements | None = None) -> S:
    """Read one spec from a YAML or JSON file.

    Raises:
        InputError: the file cannot be read, or does not say what `spec_type` needs; all problems at once.
    """
    return validate(read_document(path), spec_type, replace=replace)


def parse_spec(text: str, spec_type: type[S], *, source: str, replace: Replacements | None = None) -> S:
    """Read one spec from YAML text; `source` is the name that problems print."""
    return validate(parse_yaml(text, source=source), spec_type, replace=replace)


def validate(document: Document, spec_type: type[S], *, replace: Replacements | None = None) -> S:
    """A parsed document as a spec.

    Raises:
        InputError: with one problem for each thing that is wrong, the first of many.
    """
    check_kind(document, spec_type)
    fields = dict(document.value)
    problems = dict(document.problems)
    for name in (replace or {}).keys() & fields.keys():
        try:
            fields[name] = (replace or {})[name](fields[name])
        except ValueError as error:
            said = error.headline if isinstance(error, MeshwrightError) else str(error)
            problems[name,] = Problem(document.where((name,)), printable(said))
    more = 0
    try:
        spec = spec_type.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        told, more = spec_problems(error, spec_type, known=problems, order=document.line)
        problems |= {key: Problem(document.where(key), what) for key, what in told.items()}
    if problems:
        in_order = [problems[key] for key in sorted(problems, key=document.line)]
        raise input_error(document.source, in_order, more)
    return spec


def check_kind(document: Document, spec_type: type[Spec]) -> None:
    """Check that a document is a mapping of the spec's kind; raises InputError."""
    kinds = get_args(spec_type.model_fields["kind"].annotation) if "kind" in spec_type.model_fields else ()
    wanted = kinds[0] if len(kinds) == 1 else None  # a GPU's kind is one of several, no file kind
    if not isinstance(document.value, dict):
        raise InputError(f"`{document.source}` holds no `field: value` pairs")
    given = document.value.get("kind", wanted)
    if wanted is not None and given != wanted:
        raise InputError(
            f"`{document.source}` is a `{printable(str(given))}`; a `{wanted}` is needed here"
            f"{_more_of_kind(given, wanted)}"
        )


def _more_of_kind(given: object, wanted: str) -> str:
    """What else to know where a model is of another kind than was read for."""
    if wanted not in FAMILIES:
        return ""
    if not isinstance(given, str) or given not in FAMILIES:
        return f" (kinds of models: {', '.join(FAMILIES)})"
    return ""


def input_error(source: str, problems: list[Problem], more: int = 0) -> InputError:
    """The error `4 problems in cluster.yaml`; `more` is the number of problems not listed."""
    return InputError(f"{counted(len(problems) + more, 'problem')} in {source}", problems=problems, more=more)
