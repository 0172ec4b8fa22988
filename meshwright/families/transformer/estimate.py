"""`estimate` for transformers: read a layout, price it, and show its step and memory part by part."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import Any

from cost_models.estimate import Estimate
from cost_models.expected import ExpectedStep, expected_step
from cost_models.pipeline.pricing import crossing
from cost_models.question import Question
from meshwright.families.transformer.training import TrainingRun, training_run
from meshwright.records import present
from meshwright.records.estimates import completed_record, estimate_record, estimate_row, question_record
from meshwright.render.estimates import estimate_text, expected_lines, expected_record
from meshwright.render.explanation import filled_sentence
from meshwright.render.links import crossing_sentence
from meshwright.render.ranked import layout_text
from meshwright.render.tables import Table
from meshwright.render.words import wrapped
from meshwright.verbs.contract import PlanAnswer
from planner.explain.reasons import CompletedLayout, complete_layout
from planner.objectives import Objective
from planner.plan import Plan, make_plan
from planner.search.search import Budget
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions


class Estimated(PlanAnswer):
    """Answer of `estimate` for a transformer: a question and a layout, priced when its price is first used."""

    suggestion = "meshwright explain {path}, meshwright advise {path}"
    question: Question
    layout: str
    """Layout as the user wrote it."""
    trainer: str | None = None
    """Trainer whose rules the layout obeys."""
    assumptions: tuple[str, ...] = ()
    """Sentences on assumptions made to read the question."""
    objective: Objective = field(default_factory=Objective)
    """Objective; of it only the price of GPU-hours is used."""

    def answer(self, budget: Budget | None = None, top: int | None = None) -> Estimated:
        """Price the layout, and return this answer. Raises InputError if the layout cannot run, or the trainer
        refuses it."""
        assert self.completed
        return self

    @cached_property
    def completed(self) -> CompletedLayout:
        """Full layout with its price: axes left open are filled in by a search, and blocks are placed for the fastest
        step."""
        return complete_layout(self.question, self.layout, Restrictions(trainer=self.trainer))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on effects that the answer leaves out."""
        return notes_of(self.question)

    @property
    def estimate(self) -> Estimate:
        """Price of the layout."""
        return self.completed.estimate

    @property
    def fits(self) -> bool:
        """Whether the layout fits in GPU memory, and its offloads in host memory."""
        return self.estimate.fits

    @property
    def plan(self) -> Plan:
        """Layout as a plan without a proof, since it was given and not searched for."""
        return make_plan(self.question, self.estimate, None, Restrictions(trainer=self.trainer))

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """The priced layout, as the only element."""
        return (self.estimate,)

    def csv_rows(self) -> list[dict[str, Any]]:
        """One flat row: the layout's price."""
        return [estimate_row(self.estimate)]

    def document(self) -> dict[str, Any]:
        """JSON document: question, price, expected step time, and axes of the layout that a search filled in."""
        layout = self.estimate.layout
        return {
            "question": question_record(self.question),
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "estimate": estimate_record(self.estimate, self.question),
            "expected": expected_record(self.question, layout, self.expected),
            "split": {"layers": list(layout.layers), "chosen": "layers=" not in self.layout},
            **completed_record(self.completed),
            **present(training=self.training and self.training.record()),
        }

    @cached_property
    def expected(self) -> ExpectedStep | None:
        """Step time expected in a real run, with its 90 % interval; None if the profile has no scenarios, or on
        several GPU pools."""
        return expected_step(self.question, self.estimate)

    @cached_property
    def training(self) -> TrainingRun | None:
        """Duration and cost of the training job; None if the number of tokens is unknown."""
        return training_run(self.question, self.objective, self.estimate, self.expected)

    def view(self) -> tuple[str | Table, ...]:
        """Text that `meshwright estimate` prints."""
        return layout_text(self.question, self.estimate, repr(self))

    def __repr__(self) -> str:
        """Text on the layout, without the question's header."""
        is_searched = "layers=" not in self.layout
        words = [filled_sentence(self.completed), estimate_text(self.estimate, searched=is_searched)]
        words += expected_lines(self.question, self.estimate.layout, self.expected)
        words += [wrapped(f"Training: {self.training.words}")] if self.training else []
        return "\n".join(filter(None, [*words, crossing_sentence(crossing(self.question, self.estimate))]))
