"""The reference: a page of the command line, of files and of Python, each read from the program itself."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

import meshwright
from cost_models.base import Spec
from cost_models.files.catalog import KINDS
from cost_models.flags import field_docstrings
from meshwright.cli import command_line as typer_app

PAGES = ("command-line", "files", "python")
_SECTIONS = ("Args:", "Raises:", "Returns:", "Yields:")


def write_reference(folder: Path) -> None:
    """A Markdown page of each kind, and one that leads to them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in zip(PAGES, (command_line(), files(), python()), strict=True):
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", "utf-8")


def command_line() -> Iterator[str]:
    """Every verb with its arguments and options, in the order of `--help`."""
    group = typer.main.get_command(typer_app())
    yield "# Command line\n\nExit codes: 0 done, 1 the answer is no, 2 bad input, 130 interrupted.\n"
    for name, verb in group.commands.items():  # type: ignore[attr-defined]
        context = verb.context_class(verb, info_name=f"meshwright {name}")
        usage = " ".join(verb.collect_usage_pieces(context))
        yield f"## {name}\n\n{_escaped(inspect.cleandoc(verb.help or ''))}\n\n```text\nmeshwright {name} {usage}\n```\n"
        yield from _table("argument or option", _flags(verb, context))


def _flags(verb: Any, context: Any) -> Iterator[tuple[str, str]]:
    for flag in verb.get_params(context):
        record = flag.get_help_record(context)
        if record is not None and "--help" not in flag.opts:
            yield record[0], record[1]


def files() -> Iterator[str]:
    """Every kind of file that people write, and what stands inside it, field by field."""
    yield "# Files\n\nQuantities are written with their unit (`400 Gb/s`, `80 GB`, `5 us`). For an editor"
    yield "`meshwright catalog schema KIND` prints the JSON schema of a kind for an editor.\n"
    inside: dict[str, type[Spec]] = {}
    for kind, spec in KINDS.items():
        yield f"## {kind}\n"
        yield from _spec(spec, inside)
    shown: set[str] = set()
    while left := [name for name in inside if name not in shown]:
        for name in left:
            shown.add(name)
            if inside[name] not in KINDS.values():
                yield f"## {name}\n"
                yield from _spec(inside[name], inside)


def _spec(spec: type[Spec], inside: dict[str, type[Spec]]) -> Iterator[str]:
    yield _docstring(spec) + "\n"
    rows, docstrings = [], field_docstrings(spec)
    for name, field in spec.model_fields.items():
        inside |= {one.__name__: one for one in _specs_in(field.annotation)}
        told = docstrings.get(name, field.description or "")
        rows.append((name, f"{told} {'' if 'Default: ' in told else _default(field)}"))
    yield from _table("field", rows)


def _default(field: FieldInfo) -> str:
    if field.default_factory_takes_validated_data:
        return ""
    if field.is_required():
        return "Required."
    value = (
        field.get_default(call_default_factory=True)
        if field.default_factory is None
        else field.default_factory()
    )  # type: ignore[call-arg]
    return (
        "" if value is None or isinstance(value, Spec) or len(repr(value)) > 60 else f"Default: `{value!r}`."
    )


def _specs_in(annotation: Any) -> Iterator[type[Spec]]:
    """The specs that an annotation speaks of: `tuple[LinkSpec, ...] | None` → LinkSpec."""
    if isinstance(annotation, type) and not get_origin(annotation):
        if issubclass(annotation, Spec):
            yield annotation
        return
    for part in get_args(annotation):
        if not isinstance(part, (str, bytes, int, float)):
            yield from _specs_in(part)


def python() -> Iterator[str]:
    """Every public name: functions with their signatures, classes with their methods."""
    yield "# Python\n\n```python\nimport meshwright as mw\n```\n"
    for name in meshwright.__all__:
        value = getattr(meshwright, name)
        if inspect.isclass(value):
            yield f"## mw.{name}\n\n{_docstring(value)}\n"
            yield from _table("method or property", _members(value))
        else:
            yield f"## mw.{name}\n\n```python\n{name}{_signature(value)}\n```\n\n{_docstring(value)}\n"


def _members(value: type) -> Iterator[tuple[str, str]]:
    # pydantic's own members are left alone: asked for anything, they are built, which adds to the class
    public = [(name, member) for name, member in vars(value).items() if not name.startswith("_")]
    for name, member in public:
        known = getattr(member, "__func__", member)
        told = inspect.getdoc(known)
        if told and isinstance(known, (types.FunctionType, property)):
            yield name, " ".join(told.split("\n\n")[0].split())


def _signature(function: Any) -> str:
    """One parameter a line, with names of types as they are in the source."""
    words = []
    star = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        words.append(
            re.sub(
                r"typing\.|pathlib\.(?:_local\.)?|\b(?:cost_models|planner|executor|meshwright)\.[\w.]*\.",
                "",
                str(parameter),
            )
        )
    return "(\n" + "".join(f"    {word},\n" for word in words) + ")"


def _docstring(value: Any) -> str:
    """Paragraphs as they are, the entries of `Args:` and `Raises:` as a list."""
    lines: list[str] = []
    listing = False
    for line in (inspect.getdoc(value) or "").splitlines():
        if line in _SECTIONS:
            listing = True
            lines += [f"**{line}**", ""]
        elif not listing or not line.strip():
            lines.append(_escaped(line) if not line.startswith("    ") else line)
        elif re.match(r" {4}\S", line):
            lines.append(f"- {_escaped(line.strip())}")
        elif line.startswith("     "):
            lines.append(f"  {_escaped(line.strip())}")
        else:
            listing = False
            lines.append(_escaped(line))
    return "\n".join(lines)


def _table(head: str, rows: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> Iterator[str]:
    told = [(left, " ".join(right.split())) for left, right in rows]
    if told:
        yield f"| {head} | |\n| --- | --- |"
        yield from (f"| `{left}` | {_escaped(right)} |".replace("||", "&#124;&#124;") for left, right in told)
        yield ""


def _escaped(text: str) -> str:
    """Text outside of backticks in which Markdown finds nothing to read."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part.replace("|", r"\|") if part.startswith("`") else re.sub(r"([*_<>\[\]|$])", r"\\\1", part)
        for part in parts
    )
