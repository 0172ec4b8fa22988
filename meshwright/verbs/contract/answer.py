"""What every answer of a verb does alike: its text is what it prints in Python, its rows are a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.records import JSON_SCHEMA, frame_of

if TYPE_CHECKING:
    import pandas as pd

    from meshwright.render.tables import Table
    from planner.plan import AnyPlan


class AnswerBase:
    """The base of answers, which say their rows, their text and their document."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Flat rows, for `--csv`."""
        raise AssertionError("an answer has rows")

    @property
    def text(self) -> Sequence[str | Table]:
        """What is printed."""
        raise AssertionError("an answer has text")

    def document(self) -> dict[str, Any]:
        """The JSON document but for the version of its schema."""
        raise AssertionError("an answer has a document")

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


class WithPlan(AnswerBase):
    """An answer that is kept as a plan file."""

    @property
    def plan(self) -> AnyPlan:
        """The answer as a plan."""
        raise AssertionError("it has a plan")

    def save(self, path: str | Path) -> None:
        """Write the plan."""
        from planner.plan import save_plan

        save_plan(self.plan, Path(path))
