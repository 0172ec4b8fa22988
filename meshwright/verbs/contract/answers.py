"""What the answers of each verb have, whatever family they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd

    from executor.measure.any_report import AnyReport
    from meshwright.render.tables import Table
    from planner.any_plan import AnyPlan


class Answer(Protocol):
    """What a verb found."""

    def to_frame(self) -> pd.DataFrame:
        """The rows as a frame; seconds, bytes, shares."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Flat rows, for `--csv`."""

    @property
    def text(self) -> Sequence[str | Table]:
        """What is printed."""

    def record(self) -> Mapping[str, Any]:
        """The JSON document."""


class SavedAnswer(Answer, Protocol):
    """An answer that can be kept."""

    def save(self, path: str | Path) -> None:
        """Write it."""


class PlanAnswer(Answer, Protocol):
    """The best plans, of which one can be saved."""

    @property
    def plan(self) -> AnyPlan:
        """The answer as a plan."""

    def save(self, path: str | Path) -> None:
        """Write the plan to run."""

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        """What is said below the answer."""

    @property
    def more(self) -> str:
        """What else there is to ask for; empty where there is nothing."""

    def next_commands(self, path: Path) -> str:
        """What to do with the plan in this file."""


class AdviceAnswer(SavedAnswer, Protocol):
    """Changes of what is run today, and the best plan, which can be saved."""

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        """What is said below the answer."""


class EstimateAnswer(Answer, Protocol):
    """The price of one layout, which can be saved as a plan."""

    @property
    def plan(self) -> AnyPlan:
        """The answer as a plan."""

    @property
    def fits(self) -> bool:
        """Whether it fits in memory."""

    def save(self, path: str | Path) -> None:
        """Write it as a plan."""

    def next_commands(self, path: Path) -> str:
        """What to do with the plan in this file."""


class LargestAnswer(SavedAnswer, Protocol):
    """The largest sizes that fit, of which the largest can be saved as a plan."""

    @property
    def plan(self) -> AnyPlan | None:
        """The plan of the largest; None where nothing fits."""

    @property
    def remarks(self) -> Sequence[str]:
        """What is said below the answer."""


class ServedAnswer(SavedAnswer, Protocol):
    """A cache of every GPU."""

    @property
    def assumptions(self) -> Sequence[str]:
        """What had to be assumed to read the question."""


class ImportAnswer(EstimateAnswer, Protocol):
    """The price of what another trainer runs."""


class RunAnswer(Answer, Protocol):
    """Predicted beside measured, of a run."""

    @property
    def report(self) -> AnyReport:
        """What was measured."""


class MeasuredAnswer(RunAnswer, SavedAnswer, Protocol):
    """Predicted beside measured, of a job of another trainer; its report can be saved."""

    def table(self, kind: str) -> Answer:
        """`products` or `collectives` of its traces, beside what the profile expects."""

    def next_commands(self, path: Path) -> str:
        """What to do with the report in this file."""
