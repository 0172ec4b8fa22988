"""`catalog`: what is known by name."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING

from cost_models.errors import InputError
from cost_models.flags import Options, argument
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from meshwright.render.tables import Table
    from meshwright.terminal.output import Output


class CatalogKind(StrEnum):
    """Kind of catalogue entry."""

    MODELS = "models"
    GPUS = "gpus"
    CLUSTERS = "clusters"
    STACKS = "stacks"
    PROFILES = "profiles"
    OPERATIONS = "operations"
    SCHEMA = "schema"


class CatalogOptions(Options, kw_only=True):
    """Options of `meshwright catalog`."""

    kind: CatalogKind | None = field(
        default=None, metadata=argument("KIND", f"{', '.join(CatalogKind)}.", kind=CatalogKind)
    )
    name: str | None = field(default=None, metadata=argument("", completion="entries"))
    """One entry in full; for schema: model, cluster, training, ..."""


@command(CatalogOptions)
def catalog_command(options: CatalogOptions, output: Output) -> None:
    """List what is known, or print a YAML schema."""
    if options.kind is None:
        _kinds(output)
    elif options.kind is CatalogKind.SCHEMA:
        _schema(options.name, output)
    elif options.name is None:
        _list(options.kind.value, output)
    else:
        _show(options.kind.value, options.name, output)


def _kinds(output: Output) -> None:
    """A row for each kind with how many entries it has."""
    from meshwright.records import JSON_SCHEMA
    from meshwright.render.tables import table
    from meshwright.verbs.catalog.entries import entries

    listed = [one.value for one in CatalogKind if one is not CatalogKind.SCHEMA]
    counts = {kind: len(entries(kind)) for kind in listed}
    rows = [{"kind": kind, "entries": number} for kind, number in counts.items()]
    headers = ("kind", "entries", "lists them")
    cells = [(kind, str(number), f"meshwright catalog {kind}") for kind, number in counts.items()]
    listing = table(headers, cells, names=("kind", "lists them"))
    output.answer({"schema": JSON_SCHEMA, "kinds": rows}, rows, listing)


def _list(kind: str, output: Output) -> None:
    """A row for each entry; models of each kind in a table of their own."""
    from itertools import groupby

    from meshwright.records import JSON_SCHEMA
    from meshwright.render.tables import table
    from meshwright.verbs.catalog.entries import cell_texts, entries

    listed = entries(kind)
    rows = [{name: one[0] if isinstance(one, tuple) else one for name, one in row.items()} for row in listed]
    text: list[str | Table] = []
    for kind_name, run in groupby(listed, key=lambda row: row.get("kind", "")):
        cells_of = [cell_texts(row) for row in run]
        headers = list(cells_of[0])
        text += [*([""] if text else []), *([f"{kind_name}s"] if kind_name else [])]
        cells = [list(row.values()) for row in cells_of]
        text.append(table(headers, cells, names=headers[:1], words=headers[-1:]))
    output.answer({"schema": JSON_SCHEMA, kind: rows}, rows, *text)


def _show(kind: str, name: str, output: Output) -> None:
    """One entry in full, as YAML."""
    import yaml

    from meshwright.records import JSON_SCHEMA
    from meshwright.verbs.catalog.entries import entry

    fields = entry(kind, name)
    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True).rstrip()
    rows = [{"field": field, "value": value} for field, value in fields.items()]
    output.answer({"schema": JSON_SCHEMA, "entry": fields}, rows, text)


def _schema(name: str | None, output: Output) -> None:
    """The schema is the answer itself, so that it can be redirected into a file for an editor."""
    from cost_models.files.catalog import KINDS, json_schema
    from meshwright.terminal.output import as_json

    if name is None:
        raise InputError("which schema?", hint=f"meshwright catalog schema {'|'.join(KINDS)}")
    schema = json_schema("transformer" if name == "model" else name)
    rows = [{"field": field} for field in schema["properties"]]
    output.answer(schema, rows, as_json(schema))
