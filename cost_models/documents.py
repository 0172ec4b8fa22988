"""Parsed input files with the line number of each value, and readable sentences for pydantic's validation
errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails

from cost_models.errors import MOST_PROBLEMS, InputError, MeshwrightError, Problem, did_you_mean
from cost_models.units import counted

Key = tuple[str | int, ...]
"""Path to a value in a document: field names and list positions from the root, such as ("links", 2,
"latency")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed input file, with plain Python values and their line numbers."""

    source: str
    """Name of the file to print in messages: the path as the user gave it."""
    value: Any
    lines: Mapping[Key, int] = field(default_factory=dict)
    """Line number, from 1, of each key and list item by path; empty where lines are unknown (JSON)."""
    flags: Mapping[Key, str] = field(default_factory=dict)
    """Command-line flag or other key that set a value, by path to the value, for values from elsewhere than
    this place in the file."""
    problems: Mapping[Key, Problem] = field(default_factory=dict)
    """Problem found while parsing a value, by path to the value; validation reports these together with its own
    problems."""

    ended: bool = True
    """Whether the file has the end mark that shows that it is not truncated. JSON always has one; YAML has
    one if it ends with `...`."""

    def where(self, key: Key) -> str:
        """Location of the value at path `key` for error messages, as `file:line field.path`. A value without
        a line number has that of its nearest parent."""
        if key in self.flags:
            return self.flags[key]
        line = self.line(key)
        place = f"{self.source}:{line}" if line else self.source
        return f"{place}  {printable(show_key(key))}" if key else place

    def line(self, key: Key) -> int:
        """Line number, from 1, of the value at path `key`, or of its nearest parent with a line number; 0 if
        none has one."""
        parents = (self.lines.get(key[:length], 0) for length in range(len(key), 0, -1))
        return next(filter(None, parents), 0)


NO_FILE = Document(source="", value=None)
"""Document in place of a file, without lines, for values that were made in Python."""


def show_key(key: Key) -> str:
    """Dotted text of a field path, such as `links.tiers[2].latency` for ("links", "tiers", 2, "latency")."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def printable(text: str, limit: int | None = 300) -> str:
    """Copy of `text` without control characters, which could control the terminal, cut to `limit` characters
    (None for no cut)."""
    clean = text[: None if limit is None else limit + 1]
    if not clean.isprintable():
        clean = "".join(char if char.isprintable() else "?" for char in clean)
    return clean if limit is None or len(text) <= limit else clean[:limit] + "…"


def spec_error(error: ValidationError, spec_type: type[BaseModel] = BaseModel) -> InputError:
    """Convert pydantic's validation errors of a spec created in Python (not read from a file) to one
    InputError. If the spec's type is given, misspelt names get suggestions."""
    sentences, _ = spec_problems(error, spec_type, limit=None)
    problems = [Problem(show_key(key), what) for key, what in sentences.items()]
    return InputError(f"{counted(len(problems), 'problem')} in {error.title}", problems=problems)


def spec_problems(
    error: ValidationError, spec: type[BaseModel], file: Document = NO_FILE, limit: int | None = MOST_PROBLEMS
) -> tuple[dict[Key, str], int]:
    """Convert validation errors of a spec into a sentence for each wrong field, by path, and the number of
    further errors. Only the first `limit` paths, in the order of lines in `file`, have sentences.

    Values at or inside a path of the file's `problems` are left out.
    """
    errors: dict[Key, ErrorDetails] = {}
    for details in error.errors(include_url=False):
        key: Key = tuple(part for part in details["loc"] if not str(part).startswith("["))
        # a list that is too short because its items are wrong, or a default from wrong fields, repeats their errors
        follows = details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]
        follows |= details["type"] == "default_factory_not_called"
        if not follows and not any(one in file.problems or one in errors for one in (key[:1], key)):
            errors[key] = details
    first = sorted(errors, key=file.line)[:limit]
    sentences = {key: printable(_sentence(spec, key, errors[key])) for key in first}
    return sentences, len(errors) - len(sentences)


_GROUPS = ("dict_type", "model_type", "model_attributes_type")
_SENTENCES = {
    "missing": "required field `{name}` is missing",
    "greater_than": "must be above {gt:g}, not {value}",
    "greater_than_equal": "must be at least {ge:g}, not {value}",
    "less_than": "must be below {lt:g}, not {value}",
    "less_than_equal": "must be at most {le:g}, not {value}",
    "string_pattern_mismatch": "{value} is not a name: letters, digits, spaces and `._+/-`, 100 at most",
    "too_short": "lists {actual_length}; at least {min_length} is needed",
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "{value} is not a whole number"),
    "int_parsing_size": "{value} is not a whole number of sensible size",
    **dict.fromkeys(("float_type", "float_parsing"), "{value} is not a number"),
    "finite_number": "{value} is not a finite number",
    "bool_type": "{value} is not `true` or `false`",
    "string_type": "{value} is not text",
    "tuple_type": "{value} is not a list",
    **dict.fromkeys(_GROUPS, "{value} is not a group of `field: value` pairs"),
}
"""Sentence for each type of a pydantic error, with places for the field's name, the wrong value, and limits."""


def _sentence(spec_type: type[BaseModel], key: Key, details: ErrorDetails) -> str:
    """Convert one pydantic validation error to a readable sentence without a full stop."""
    name, value, context = show_key(key[-1:]), _show(details["input"]), details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return f"unknown field `{name}`{did_you_mean(name, _field_names(spec_type, key[:-1]))}"
        case "greater_than" if not context["gt"]:
            return f"must be above zero, not {value}"
        case "literal_error":
            words = [word.strip(" '") for word in context["expected"].replace(" or ", ", ").split(",")]
            listed = ", ".join(f"`{word}`" for word in words)
            return f"{value} is not one of {listed}{did_you_mean(str(details['input']), words)}"
        case "value_error":
            cause = context.get("error")
            sentences = [cause.headline, *cause.problems] if isinstance(cause, MeshwrightError) else [cause]
            return "; ".join(map(str, sentences))
        case kind if kind in _SENTENCES:
            return _SENTENCES[kind].format(name=name, value=value, **context)
        case _:
            return f"{details['msg'][:1].lower()}{details['msg'][1:]}"


def _show(value: Any) -> str:
    """Text of an invalid value for an error message, as the user wrote it, in backticks and truncated."""
    if isinstance(value, dict | list):
        return "this group" if isinstance(value, dict) else "this list"
    if value is None:
        return "nothing"
    return f"`{str(value).lower() if isinstance(value, bool) else printable(str(value), limit=60)}`"


def _field_names(spec_type: type[BaseModel], key: Key) -> list[str]:
    """Names of the fields allowed at path `key` of a spec type; empty if there is no spec at that path."""
    specs = [spec_type]
    for part in key:
        if isinstance(part, str):
            field = specs[0].model_fields.get(part) if specs else None
            specs = _inner_specs(field.annotation) if field else []
        elif lists := [spec for spec in specs if issubclass(spec, RootModel)]:
            specs = _inner_specs(lists[0].model_fields["root"].annotation)
    return list(specs[0].model_fields) if specs else []


def _inner_specs(annotation: Any) -> list[type[BaseModel]]:
    """Spec classes in a type annotation such as `X`, `X | None`, `tuple[X, ...]`, or a named list of specs."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [spec for inner in get_args(annotation) for spec in _inner_specs(inner)]
