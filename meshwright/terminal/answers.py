"""Base classes of a verb's answers: rows for CSV and data frames, text, a JSON document, and a file."""

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
    """Answer of a verb: rows, text and a JSON document. Subclasses become frozen dataclasses whose fields are given
    by name."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        """Make each subclass a frozen dataclass with fields given by name."""
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True, repr=False)(cls)

    def csv_rows(self) -> Sequence[Mapping[str, Any]]:
        """Flat rows for `--csv`."""
        raise NotImplementedError

    def view(self) -> Iterable[str | Table]:
        """Sentences and tables to print."""
        raise NotImplementedError

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Flat rows as dictionaries; units are seconds, bytes and shares."""
        return [dict(row) for row in self.csv_rows()]

    @property
    def text(self) -> tuple[str | Table, ...]:
        """Printed sentences and tables."""
        return tuple(self.view())

    def document(self) -> dict[str, Any]:
        """JSON document of the answer, without the schema's version."""
        raise NotImplementedError

    def record(self) -> dict[str, Any]:
        """JSON document of the answer, with the schema's version."""
        return {"schema": JSON_SCHEMA, **self.document()}

    def to_frame(self) -> pd.DataFrame:
        """Answer's rows as a data frame; units are seconds, bytes and shares."""
        return frame_of(self.rows)

    def __repr__(self) -> str:
        """Printed text of the answer."""
        return "\n".join(map(str, self.text))

    def _repr_html_(self) -> str:
        """Answer as HTML, for notebooks."""
        from meshwright.render.tables import in_notebook

        return in_notebook(self.text)


class SavedAnswer(Answer):
    """Answer that can be saved to a file."""

    suggestion: ClassVar[str] = ""
    """Commands to suggest for the answer's file at `{path}`."""

    @property
    def fits(self) -> bool:
        """Whether the priced layout fits in memory; if not, the command exits with code 1."""
        return True

    @property
    def is_proved(self) -> bool:
        """Whether the best plan is proved, or no proof is claimed; if not, the command exits with code 3."""
        return True

    def save(self, path: str | Path) -> None:
        """Write the answer to the file at `path`."""
        raise NotImplementedError

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        """Notes printed below the answer; if `interrupted`, without the note on a missing proof."""
        return ()

    def next_commands(self, path: Path) -> str:
        """Commands to suggest for the answer's file at `path`; empty: none."""
        return self.suggestion.format(path=path)


class VerbQuestion(Protocol):
    """Protocol of a question read from a request."""

    @property
    def assumptions(self) -> Sequence[str]:
        """Sentences on what was assumed to read the question."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on what the question's answer leaves out."""


class HoldsRequest:
    """Base class of answers that hold their request in the field `request`."""

    request: Any

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences on what was assumed to read the request."""
        return tuple(self.request.assumptions)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the answer leaves out."""
        return tuple(self.request.notes)
