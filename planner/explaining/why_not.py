"""Why another layout is not the plan: it is illegal, does not fit, or is slower, and in which parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cost_models.axes.layout import parse_layout
from cost_models.errors import InputError, Problem
from cost_models.estimate import Breakdown, Estimate
from cost_models.question import Question
from planner.explaining.compare import difference
from planner.explaining.completing import Meant, meant
from planner.explaining.explain import gain, overflows
from planner.explaining.whatif import NEXT_TO_NOTHING
from planner.space.limits import left_out
from planner.space.restrictions import Restrictions, keeps_to


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """The reason why a layout is not the plan, with its price beside the plan's."""

    layout: str
    """The layout as the user wrote it."""
    reason: Literal["illegal", "memory", "slower", "same", "faster"]
    problems: tuple[Problem, ...] = ()
    """Rules that an illegal layout breaks."""
    meant: Meant | None = None
    """What it means, priced; None of an illegal one."""
    excluded: bool = False
    """Whether the restrictions of the search exclude the layout, however fast it is."""
    left_out: tuple[str, ...] = ()
    """The limits of the search that it lies beyond, each as a sentence."""
    difference: Breakdown | None = None
    """layout − plan, seconds by part, largest first."""

    @property
    def estimate(self) -> Estimate | None:
        """Its price; where nothing fits, that of what comes closest."""
        return None if self.meant is None else self.meant.estimate


def why_not(
    question: Question, estimate: Estimate, text: str, restrictions: Restrictions | None = None
) -> WhyNot:
    """Why the layout written in `text` is not the plan; `restrictions` are what the plan was asked to keep to.

    What the text leaves out is free (`planner.explaining.completing`).

    Raises:
        InputError: `text` is not a layout.
    """
    parse_layout(text)
    try:
        found = meant(question, text, restrictions)
    except InputError as error:
        problems = error.problems or (Problem("", error.headline),)
        return WhyNot(layout=text, reason="illegal", problems=tuple(problems))
    priced = found.estimate
    return WhyNot(
        layout=text,
        reason=_reason(estimate, priced),
        meant=found,
        excluded=restrictions is not None and not keeps_to(question, restrictions, priced.layout),
        left_out=left_out(question, restrictions or Restrictions(), priced.layout),
        difference=difference(estimate.time, priced.time),
    )


def _reason(estimate: Estimate, priced: Estimate) -> Literal["memory", "slower", "same", "faster"]:
    if overflows(estimate, priced):
        return "memory"
    won = gain(estimate, priced)
    if abs(won) <= NEXT_TO_NOTHING:
        return "same"
    return "faster" if won > 0 else "slower"
