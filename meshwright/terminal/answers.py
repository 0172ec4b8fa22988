"""Answers of verbs: flat rows for CSV and frames, text for people, one document for JSON, and files to keep them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, dataclass_transform

from meshwright.records import JSON_SCHEMA, frame_of

if TYPE_CHECKING:
    import pandas as pd

    from meshwright.render.tables import Table


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Answer:
    """Answer of a verb: rows, text and a JSON document. Its classes are frozen dataclasses whose
    fields are given by name."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True, repr=False)(cls)

    def csv_rows(self) -> Sequence[Mapping[str, Any]]:
        """Flat rows, for `--csv`."""
        raise NotImplementedError

    def view(self) -> Iterable[str | Table]:
        """Sentences and tables for a person."""
        raise NotImplementedError

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Flat rows; seconds, bytes, shares."""
        return [dict(row) for row in self.csv_rows()]

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What is printed."""
        return tuple(self.view())

    def document(self) -> dict[str, Any]:
        """The JSON document but for the version of its schema."""
        raise NotImplementedError

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {"schema": JSON_SCHEMA, **self.document()}

    def to_frame(self) -> pd.DataFrame:
        """The rows as a frame; seconds, bytes, shares."""
        return frame_of(self.rows)

    def __repr__(self) -> str:
        return "\n".join(map(str, self.text))

    def _repr_html_(self) -> str:
        from meshwright.render.tables import in_notebook

        return in_notebook(self.text)


class SavedAnswer(Answer):
    """An answer that can be kept in a file."""

    @property
    def fits(self) -> bool:
        """Whether what is priced fits in memory; where it does not, a command leaves with exit code 1."""
        return True

    def save(self, path: str | Path) -> None:
        """Write the answer to a file."""
        raise NotImplementedError

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        """Notes printed below the answer; without those on a search that is not proved where it was interrupted."""
        return ()

    def next_commands(self, path: Path) -> str:
        """Commands for the file at `path`; empty: none."""
        return ""


class Asked(Protocol):
    """A question that was read whole."""

    @property
    def assumptions(self) -> Sequence[str]:
        """What had to be assumed to read it."""

    @property
    def notes(self) -> Sequence[str]:
        """What its answer leaves out."""


class Requested:
    """Answer that keeps the request it answers, in the field `request`."""

    request: Any

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences on what had to be assumed to read the request."""
        return tuple(self.request.assumptions)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the answer leaves out."""
        return tuple(self.request.notes)
