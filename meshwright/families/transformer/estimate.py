"""`estimate` of a transformer: reads a layout, prices it, and tells what it costs part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cost_models.axes.layout import parse_layout
from cost_models.estimate import Estimate
from cost_models.expected import ExpectedStep, expected_step
from cost_models.pipeline.pricing import crossing
from cost_models.question import Question
from meshwright.families.transformer.planning.training import TrainingRun, training_run
from meshwright.inputs.goals import trained_at
from meshwright.inputs.problems import Problems
from meshwright.inputs.questions import question_of
from meshwright.plots.curves.drawing import draw
from meshwright.plots.drawn import Drawing
from meshwright.records.estimates import completed_record, estimate_record, estimate_row, question_record
from meshwright.render.estimates import estimate_text, host_sentences
from meshwright.render.expected import expected_record, expected_sentence, nearest_sentence
from meshwright.render.explanation import explanation_text, filled_sentence, why_not_text
from meshwright.render.links import crossing_sentence
from meshwright.render.ranked import placed_on_pools, question_header
from meshwright.render.tables import Table
from meshwright.render.words import wrapped
from meshwright.verbs.contract.answer import WithPlan
from meshwright.verbs.estimate import EstimateOptions
from planner.explain.reasons import CompletedLayout, complete_layout, explain, why_not
from planner.objectives import Objective
from planner.plan import Plan, make_plan
from planner.search.search import Budget
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions


@dataclass(frozen=True, kw_only=True, repr=False)
class Estimated(WithPlan):
    """A question and the price of one layout."""

    question: Question
    estimate: Estimate
    assumptions: tuple[str, ...] = ()
    split_chosen: bool = False
    """The layout did not say how many blocks go on which stage."""
    completed: CompletedLayout | None = None
    """How the words of the layout were read; None where it was not read."""
    trainer: str | None = None
    """Whose rules it obeys."""
    objective: Objective = field(default_factory=Objective)
    """What its GPUs cost."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the question the answer leaves out."""
        return notes_of(self.question)

    @property
    def fits(self) -> bool:
        """Whether it fits in memory, and what it offloads in that of its hosts."""
        return self.estimate.fits

    @property
    def plan(self) -> Plan:
        """The layout as a plan that was given, not searched for."""
        return make_plan(self.question, self.estimate, None, Restrictions(trainer=self.trainer))

    def explain(self) -> str:
        """Say what binds the layout, what a search finds, and what would change its step."""
        return explanation_text(explain(self.plan, self.estimate))

    def why_not(self, layout: str) -> str:
        """Say how another layout compares."""
        return why_not_text(why_not(self.question, self.estimate, layout), self.estimate)

    def next_commands(self, path: Path) -> str:
        """What to do with the plan in this file."""
        return f"meshwright explain {path}, meshwright advise {path}"

    def plot(self, kind: str, *, gpus: Sequence[int] | None = None) -> Drawing:
        """Draw one kind of picture, as of a plan; `scaling` shows the best layouts, not this one."""
        return draw(kind, self.question, [self.estimate], gpus)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row, flat."""
        return [estimate_row(self.estimate)]

    def document(self) -> dict[str, Any]:
        return {
            "question": question_record(self.question),
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "estimate": estimate_record(self.estimate, self.question),
            "expected": expected_record(self.question, self.estimate.layout, self.expected),
            "split": {"layers": list(self.estimate.layout.layers), "chosen": self.split_chosen},
            **completed_record(self.completed),
            **({} if self.training is None else {"training": self.training.record()}),
        }

    @cached_property
    def expected(self) -> ExpectedStep | None:
        """What its step should take."""
        return expected_step(self.question, self.estimate)

    @cached_property
    def training(self) -> TrainingRun | None:
        """All of the training job; None where nobody says on how many tokens."""
        return training_run(self.question, self.objective, self.estimate, self.expected)

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright estimate` prints."""
        return (
            question_header(self.question, self.estimate.trust),
            "",
            repr(self),
            *host_sentences(self.question, self.estimate),
            *placed_on_pools(self.question, self.estimate),
        )

    def __repr__(self) -> str:
        far = crossing_sentence(crossing(self.question, self.estimate))
        filled = "" if self.completed is None else filled_sentence(self.completed)
        trusted = (
            expected_sentence(self.expected),
            nearest_sentence(self.question, self.estimate.layout, self.expected),
        )
        told = estimate_text(self.estimate, chosen=self.split_chosen)
        whole = "" if self.training is None else wrapped(f"Training: {self.training.words}")
        return "\n".join(filter(None, [filled, told, *trusted, whole, far]))


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateQuestion:
    """A question and a layout that were read: what is left is to price it."""

    question: Question
    layout: str
    trainer: str | None = None
    assumptions: tuple[str, ...] = ()
    objective: Objective = field(default_factory=Objective)
    """What its GPUs cost."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the question the answer leaves out."""
        return notes_of(self.question)

    def answer(self, budget: Budget | None = None) -> Estimated:
        """Price the layout; what it leaves open is searched, blocks are placed as well as possible.

        Raises:
            InputError: the layout cannot run, or the trainer refuses it.
        """
        found = complete_layout(self.question, self.layout, Restrictions(trainer=self.trainer))
        return Estimated(
            question=self.question,
            estimate=found.estimate,
            assumptions=self.assumptions,
            split_chosen="layers=" not in self.layout,
            completed=found,
            trainer=self.trainer,
            objective=self.objective,
        )


def ask(options: EstimateOptions) -> EstimateQuestion:
    """Read everything that `estimate` is given.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    problems = Problems()
    found = problems.read(lambda: question_of(options))
    written = problems.read(lambda: parse_layout(options.layout))
    problems.require()
    assert found is not None
    assert written is not None
    question, objective, counted = trained_at(options, found[0])
    return EstimateQuestion(
        question=question,
        layout=options.layout,
        trainer=options.trainer,
        assumptions=(*found[1], *counted),
        objective=objective,
    )
