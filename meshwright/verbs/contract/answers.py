"""What the answers of each verb have, whatever family they are of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from meshwright.terminal.output import Answer as Shown

if TYPE_CHECKING:
    import pandas as pd

    from executor.measure.any_report import AnyReport
    from planner.plan import AnyPlan


class Answer(Shown, Protocol):
    """What a verb found."""

    def to_frame(self) -> pd.DataFrame:
        """The rows as a frame; seconds, bytes, shares."""


class SavedAnswer(Answer, Protocol):
    """An answer that can be kept."""

    def save(self, path: str | Path) -> None:
        """Write it."""


class PlanAnswer(SavedAnswer, Protocol):
    """The best plans, of which one can be saved, to be run."""

    @property
    def plan(self) -> AnyPlan:
        """The answer as a plan."""

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


class EstimateAnswer(SavedAnswer, Protocol):
    """The price of one layout, which can be saved as a plan."""

    @property
    def plan(self) -> AnyPlan:
        """The answer as a plan."""

    @property
    def fits(self) -> bool:
        """Whether it fits in memory."""

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
