"""Settings of another trainer's file by their paths, and the run that a file describes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import LARGEST
from planner.formats.table import Table

_OF_TABLE: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A run of another trainer: a question but for its cluster, and the layout that it runs."""

    model: TransformerSpec
    training: TrainingSpec
    layout: Layout
    stack: StackSpec
    assumptions: tuple[str, ...] = ()
    """What the file does not say, and what was taken instead; settings that are not known here."""


@dataclass(slots=True)
class Settings:
    """Settings by their paths, as `training.seq_len`, with the trainer's defaults."""

    values: Mapping[str, Any]
    table: Table
    read: set[str] = field(default_factory=set)

    def usual(self, path: str) -> Any:
        """The trainer's default; None where the table has none."""
        row = self.table.arguments.get(path)
        return row.default if row is not None else None

    def get(self, path: str, default: Any = _OF_TABLE) -> Any:
        """A setting; where the file does not set it the given default, else the trainer's."""
        self.read.add(path)
        return self.values.get(path, self.usual(path) if default is _OF_TABLE else default)

    def whole(self, path: str, default: Any = _OF_TABLE) -> Any:
        """A whole number above zero. Raises InputError where the file sets something else."""
        default = self.usual(path) if default is _OF_TABLE else default
        value = self.get(path, default)
        if value is default:
            return value
        if not isinstance(value, int | float) or not 1 <= value <= LARGEST or value != int(value):
            raise InputError(f"`{path}: {printable(str(value))}` is no whole number above zero")
        return int(value)

    def listed(self, path: str) -> list[Any] | None:
        """A list; None where it is not set. Raises InputError where the file sets something else."""
        value = self.get(path)
        if value is not None and not isinstance(value, list):
            raise InputError(f"`{path}: {printable(str(value))}` is no list")
        return value

    def unread(self, column: str = "name") -> list[str]:
        """What is assumed of settings that nothing read and the table does not ignore."""
        ignored = self.table.ignored[column]
        unread = [
            f"`{path}: {printable(str(value))}`"
            for path, value in self.values.items()
            if path not in self.read and not path.startswith(ignored)
        ]
        names = ", ".join(unread)
        return [f"nothing of a step from settings that are not known here: {names}"] if unread else []


def also_words(text: str) -> list[str]:
    """The words of `--also`. Raises InputError for a quote that nothing closes."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"--also: {str(error).lower()}") from None


def by_path(document: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values of tables within tables by their paths."""
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from by_path(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
