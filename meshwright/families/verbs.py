"""What the verbs ask of a family of models: the same of every one, whatever its questions and plans are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from planner.any_plan import AnyPlan

if TYPE_CHECKING:
    from executor.measure.any_report import AnyReport
    from meshwright.families.chapters import PageRequest
    from meshwright.families.pictures import PictureRequest
    from meshwright.inputs.plan_inputs import PlanInputs
    from meshwright.inputs.questions import Inputs
    from meshwright.pages.chapters import Chapter
    from meshwright.plots.drawn import Drawing
    from meshwright.render.tables import Table
    from planner.proof.checks import Check
    from planner.search.budget import Budget

P = TypeVar("P", bound=AnyPlan, contravariant=True)


class Answer(Protocol):
    """What a verb found."""

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

    def save(self, path: str | Path) -> None:
        """Write the plan to run."""

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        """What is said below the answer."""

    def next_commands(self, path: Path) -> str:
        """What to do with the plan in this file."""


class AdviceAnswer(SavedAnswer, Protocol):
    """Changes of what is run today, and the best plan, which can be saved."""

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        """What is said below the answer."""


class EstimateAnswer(Answer, Protocol):
    """The price of one layout, which can be saved as a plan."""

    @property
    def fits(self) -> bool:
        """Whether it fits in memory."""

    def save(self, path: str | Path) -> None:
        """Write it as a plan."""

    def next_commands(self, path: Path) -> str:
        """What to do with the plan in this file."""


class Asked(Protocol):
    """A question that was read whole."""

    @property
    def assumptions(self) -> Sequence[str]:
        """What had to be assumed to read it."""

    @property
    def notes(self) -> Sequence[str]:
        """What its answer passes over."""


class PlanAsked(Asked, Protocol):
    """A question for the best plans: what is left is to search."""

    def answer(self, top: int | None, budget: Budget) -> PlanAnswer:
        """Search within the budget and rank `top` plans. Raises InfeasibleError where nothing fits."""


class EstimateAsked(Asked, Protocol):
    """A question for the price of one layout."""

    def answer(self) -> EstimateAnswer:
        """Price it. Raises InputError where it cannot run."""


class Running(Protocol):
    """A plan that is run, and how that is told."""

    def before(self, *, compiled: bool) -> str | None:
        """What to know before it is compared with what is measured."""

    def step_line(self, step: Mapping[str, Any]) -> str:
        """One step, with what was predicted."""

    def answer(self, report: AnyReport, steps: int) -> Answer:
        """Predicted beside measured."""

    def told_again(self, report: AnyReport) -> Answer:
        """Predicted beside measured, of a report that was kept."""

    def next_step(self, report: AnyReport, path: Path) -> str:
        """What to do with the report in this file."""

    def built(self) -> Answer:
        """What ranks hold, built without their devices."""

    def alone(self, rank: int, *, steps: int, fake: bool) -> SavedAnswer:
        """What one rank does without the others; `fake`: memory only, and no device.

        Raises:
            InputError: the plan cannot be trained, or has no such rank.
            HostError: the device has too little memory.
            RunError: the rank failed or ran out of memory.
        """


class Verbs(Protocol[P]):
    """One family: its questions from what the user gives, and its plans read and answered for."""

    @property
    def noun(self) -> str:
        """A model of it in words, as in "a recommender"."""

    @property
    def takes(self) -> Mapping[str, frozenset[str]]:
        """Verb → the options that mean something to it; a verb that is missing is not for this family."""

    @property
    def pictures(self) -> Mapping[str, Callable[[PictureRequest], Drawing]]:
        """Kind of `plot` → what draws it of plans of this family."""

    def ask(self, asked: PlanInputs) -> PlanAsked:
        """Read everything that `plan` is given. Raises InputError: everything that is wrong, at once."""

    def ask_again(self, plan: P) -> PlanAsked:
        """The question that a plan file answers."""

    def ask_estimate(self, inputs: Inputs, layout: str) -> EstimateAsked:
        """Read everything that `estimate` is given. Raises InputError: everything that is wrong, at once."""

    def about(self, plan: P) -> str:
        """The model and its GPUs in a few words."""

    def notes(self, plan: P) -> Sequence[str]:
        """What a plan's prediction passes over."""

    def drift(self, plan: P, name: object) -> str:
        """A note where the plan in a file is priced otherwise today; else nothing."""

    def explain(self, plan: P) -> Answer:
        """What binds a plan, its rivals, and what would change it."""

    def chapters(self, plan: P, request: PageRequest) -> Iterator[Chapter]:
        """What a page tells of a plan: the answer, why, pictures, how far to trust it."""

    def why_not(self, plan: P, layout: str) -> Answer:
        """Why a layout is not the plan."""

    def advise(self, plan: P, layout: str | None, budget: Budget) -> AdviceAnswer:
        """What to change of a plan, or of another layout of its question, that is run today. Raises InputError."""

    def compare(self, first: P, others: Sequence[str | Path | AnyPlan], trainer: str | None) -> Answer:
        """Plans and layouts side by side, measured against the first. Raises InputError."""

    def verify(self, plan: P, budget: Budget) -> Sequence[Check]:
        """Price a plan again and prove it again."""

    def running(self, plan: P) -> Running:
        """How a run of the plan is told."""
