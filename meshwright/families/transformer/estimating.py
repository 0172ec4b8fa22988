"""Estimates of transformers: the price of one layout, as it is written."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.axes.layout import Layout, parse_layout
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from meshwright.answers.estimated import Estimated
from meshwright.inputs.problems import Problems
from meshwright.inputs.questions import Inputs, question_of
from planner.rules.legality import require_legal
from planner.search.given_layout import place_layout
from planner.space.notes import notes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateQuestion:
    """A question and a layout that were read: what is left is to price it."""

    question: Question
    layout: Layout
    trainer: str | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the answer passes over of the question."""
        return notes_of(self.question)

    def answer(self) -> Estimated:
        """Price the layout; blocks whose stages it leaves open are placed as well as possible.

        Raises:
            InputError: the layout cannot run, or the trainer refuses it.
        """
        require_legal(self.question, self.layout, self.trainer, hosts=False)
        return Estimated(
            question=self.question,
            estimate=price(self.question, place_layout(self.question, self.layout)),
            assumptions=self.assumptions,
            split_chosen=not self.layout.layers,
            trainer=self.trainer,
        )


def ask(inputs: Inputs, layout: str) -> EstimateQuestion:
    """Read everything that `estimate` is given.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    problems = Problems()
    found = problems.read(lambda: question_of(inputs))
    written = problems.read(lambda: parse_layout(layout))
    problems.require()
    assert found is not None
    assert written is not None
    question, assumptions = found
    return EstimateQuestion(
        question=question, layout=written, trainer=inputs.trainer, assumptions=assumptions
    )
