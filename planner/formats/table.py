"""A trainer's arguments in one table of the folder `arguments`, which readers and writers share.

Columns: name; kind (how its value is written); default of the release that the folder's readers name; unit; field of
a plan that the argument sets; when an export writes the field from the table alone (`always`, `changed` from the
default, of `mixtures`; empty: the folder's code translates it); values as `ours=theirs`, of several the one to write
first; other spellings; role in code that several trainers share (`planner.formats.fsdp2`); why, of arguments that no
price is made of. These are of three kinds: `ignored` changes neither time nor memory of a step, `noted` changes them a
little and is named where it is set, `unpriced` changes them and stops a reader unless its value is the default or
switches it off. A name that ends with `*` stands for all that begin so.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cost_models.documents import printable
from cost_models.errors import InputError
from planner.formats.exporter import JobExport

_FOLDER = Path(__file__).parent / "arguments"
_PARSERS: dict[str, Callable[[str], Any]] = {"whole": int, "share": float, "pattern": int, "list": str.split}
"""Kind of an argument → how the table's text becomes its default; of others it is the text, or a switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a trainer (a row of its table), with default and matching plan field."""

    name: str
    """Name of the value in the trainer's own code."""
    kind: str
    default: Any
    """Value where a file does not set it; None: there is none, or it follows from other arguments."""
    field: str
    """Path of the field of a plan, as `layout.tp`; of a switch perhaps behind `not`."""
    written: str
    values: Mapping[Any, Any]
    """Value of the field → the trainer's value that is written for it, where they differ."""
    synonyms: Mapping[Any, Any]
    """Every value of the trainer's, in lower case → value of the field."""
    why: str
    """Why no price depends on it, though it is read: how long a job trains; else empty."""
    spellings: Mapping[str, str]
    """Column of other spellings, or of the role in what several trainers share → the word there."""

    def export(self, export: JobExport) -> None:
        """Express the argument's plan field as a setting of the trainer."""
        path = self.field.removeprefix("not ")
        ours = export.job.value(path)
        value = self.trainer_value(ours)
        is_idle = "mixtures" in self.written and not export.job.model.has_experts
        is_idle |= "changed" in self.written and value == self.default
        export.sets(path, {} if is_idle else {self.name: value})
        export.lacks(path, f"it has no {ours}", when=self.values and ours not in self.values)

    def trainer_value(self, value: Any) -> Any:
        """Convert a value of the plan field into the trainer's value."""
        return not value if self.field.startswith("not ") else self.values.get(value, value)

    def plan_value(self, value: Any) -> Any:
        """Convert a trainer's value into the value of the plan field. Raises InputError where the table lists
        values, and not this one."""
        if self.field.startswith("not "):
            return not value
        if self.values and str(value).lower() not in self.synonyms:
            message = f"`{self.name}: {printable(str(value))}` is not priced here"
            raise InputError(message, hint=f"priced are {', '.join(map(str, self.values.values()))}")
        return self.synonyms[str(value).lower()] if self.values else value


class Fate(NamedTuple):
    """Treatment of a trainer's argument that no price depends on, with the reason."""

    kind: str
    """`ignored`, `noted` or `unpriced`."""
    reason: str
    default: str = ""


_FATES = ("ignored", "noted", "unpriced")


@dataclass(frozen=True, slots=True)
class Table:
    """All known arguments of one trainer, read from its table."""

    arguments: Mapping[str, Argument]
    fates: Mapping[str, Mapping[str, Fate]]
    """Column → spelling → fate, for arguments that no price depends on."""

    def fate(self, spelling: str, column: str = "name") -> Fate | None:
        """Treatment of an argument that no price depends on; None if the table lacks the argument."""
        fates = self.fates.get(column, {})
        starts = (one for name, one in fates.items() if name[-1] == "*" and spelling.startswith(name[:-1]))
        return fates.get(spelling) or next(starts, None)

    def fields(self, part: str, get: Callable[[str], Any], *, mixtures: bool = False) -> dict[str, Any]:
        """Values of the plan fields of one part that a single argument expresses, by name of the field."""
        values = {}
        for argument in self.arguments.values():
            argument_part, _, field = argument.field.removeprefix("not ").partition(".")
            if argument_part == part and argument.written and ("mixtures" in argument.written) == mixtures:
                values[field] = argument.plan_value(get(argument.name))
        return values

    def spelled(self, column: str) -> dict[str, str]:
        """Map from each spelling in a column ("earlier", "role", ...) to the name of the argument."""
        words = {name: one.spellings.get(column, "").split() for name, one in self.arguments.items()}
        return {spelling: name for name, spellings in words.items() for spelling in spellings}


@cache
def table_of(trainer: str) -> Table:
    """Read the arguments of a trainer, given the name of its table."""
    with (_FOLDER / f"{trainer}.csv").open(encoding="utf-8", newline="") as file:
        rows = [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]
    fates: dict[str, dict[str, Fate]] = {}
    for row in rows:
        if row["kind"] in _FATES:
            for column in row.keys() - {"kind", "why", "default"}:
                fate = Fate(row["kind"], row.get("why", ""), row.get("default", ""))
                fates.setdefault(column, {})[row[column]] = fate
    return Table({row["name"]: _argument(row) for row in rows if row["kind"] not in _FATES}, fates)


def _argument(row: Mapping[str, str]) -> Argument:
    text, kind = row.get("default"), row["kind"]
    default = None if text is None else _PARSERS.get(kind, str)(text)
    if kind in ("switch", "off"):
        default = text == "true" or (kind == "off" and text is None)
    pairs = [pair.split("=", 1) for pair in row.get("values", "").split()]
    return Argument(
        **{key: row.get(key, "") for key in ("name", "kind", "field", "written", "why")},
        default=default,
        values={ours: next(two for one, two in pairs if one == ours) for ours, _ in pairs},
        synonyms={theirs.lower(): ours for ours, theirs in pairs},
        spellings={key: row[key] for key in ("flag", "earlier", "nemo", "bridge", "role") if key in row},
    )
