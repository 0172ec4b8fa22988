"""Answers of verbs: flat rows for CSV and frames, text for people, one document for JSON, and files to keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from meshwright.records import JSON_SCHEMA, frame_of

if TYPE_CHECKING:
    import pandas as pd

    from meshwright.render.tables import Table
    from planner.plan import AnyPlan
    from planner.search.search import Budget


class Answer:
    """What a verb answers, which says its rows, its text and its document."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Flat rows, for `--csv`."""
        raise NotImplementedError

    @property
    def text(self) -> Sequence[str | Table]:
        """What is printed."""
        raise NotImplementedError

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
        """Write it."""
        raise NotImplementedError

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        """Notes printed below the answer; without those on a search that is not proved where it was interrupted."""
        return ()

    def next_commands(self, path: Path) -> str:
        """Commands for the file at `path`; empty: none."""
        return ""


class PlanAnswer(SavedAnswer):
    """An answer that is kept as a plan file."""

    @property
    def more(self) -> str:
        """What else there is to ask for; empty where there is nothing."""
        return ""

    @property
    def plan(self) -> AnyPlan:
        """The answer as a plan."""
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Write the plan."""
        from planner.plan import save_plan

        save_plan(self.plan, Path(path))

    def next_commands(self, path: Path) -> str:
        """Commands for the plan file at `path`."""
        return f"meshwright explain {path}"


class Asked(Protocol):
    """A question that was read whole."""

    @property
    def assumptions(self) -> Sequence[str]:
        """What had to be assumed to read it."""

    @property
    def notes(self) -> Sequence[str]:
        """What its answer leaves out."""


class PlanAsked(Asked, Protocol):
    """A question that a plan answers."""

    def answer(self, budget: Budget | None = None, top: int | None = None) -> PlanAnswer:
        """Search within the budget, or price, and rank `top` plans. Raises InputError, InfeasibleError."""
