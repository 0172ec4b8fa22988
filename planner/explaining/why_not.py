"""Why another layout is not the plan: it is illegal, does not fit, or is slower, and in which parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.pipeline import even_layers
from cost_models.errors import InfeasibleError, Problem
from cost_models.estimate import Breakdown, Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import MixedQuestion, Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.axes.replicas.leaf import place_replicas
from planner.axes.replicas.space import leaf_of
from planner.explaining.compare import difference
from planner.explaining.completing import Completed, completed
from planner.explaining.explain import Origin, gain, overflows
from planner.explaining.whatif import NEXT_TO_NOTHING
from planner.search.given_layout import place_layout
from planner.search.search import search
from planner.space.restrictions import AXES, Restrictions, keeps_to, settled

MOST_ORDERS = 24
"""Orders in which a pipeline can pass through four pools, the most a cluster has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """The reason why a layout is not the plan, with its price beside the plan's."""

    layout: str
    """The layout as the user wrote it."""
    completed: Completed
    """The layout that was meant, completed from the plan."""
    reason: Literal["illegal", "memory", "slower", "same", "faster"]
    excluded: bool = False
    """Whether the restrictions of the search exclude the layout, however fast it is."""
    estimate: Estimate | None = None
    """Its price at the best placement; where none fits, at the one that recomputes most."""
    difference: Breakdown | None = None
    """layout − plan, seconds by part, largest first."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Rules that an illegal layout breaks."""
        return self.completed.problems


def why_not(
    question: Question,
    estimate: Estimate,
    text: str,
    restrictions: Restrictions | None = None,
    origin: Origin | None = None,
) -> WhyNot:
    """Why the layout written in `text` is not the plan; `origin` and `restrictions` are the plan's.

    Words that the text leaves out are the plan's. The layout is priced at its best: with recompute as `text` says, as
    in the plan where that was given and not searched, and otherwise chosen stage by stage.

    Raises:
        InputError: `text` is not a layout.
    """
    searched = origin is None or origin.searched
    plan = estimate.layout.model_copy(update={"recompute": ("none",)}) if searched else estimate.layout
    meant = completed(question, plan, text, restrictions.trainer if restrictions else None)
    if meant.problems:
        return WhyNot(layout=text, completed=meant, reason="illegal")
    priced = _best_placed(
        question,
        meant.layout,
        max(estimate.rank_limits, default=estimate.memory_limit),
        recompute_given="recompute=" in " ".join([text, *meant.taken]),
    )
    return WhyNot(
        layout=text,
        completed=meant,
        reason=_reason(estimate, priced),
        excluded=restrictions is not None and not keeps_to(question, restrictions, priced.layout),
        estimate=priced,
        difference=difference(estimate.time, priced.time),
    )


def _reason(estimate: Estimate, priced: Estimate) -> Literal["memory", "slower", "same", "faster"]:
    if overflows(estimate, priced):
        return "memory"
    won = gain(estimate, priced)
    if abs(won) <= NEXT_TO_NOTHING:
        return "same"
    return "faster" if won > 0 else "slower"


def _best_placed(question: Question, layout: Layout, max_memory: float, *, recompute_given: bool) -> Estimate:
    """The price of a layout at its best: placement and recompute are searched where its text leaves them open.

    Where the search finds nothing, the layout is placed evenly with the least recompute that fits, or with the most
    there is, which needs nearly the least memory.
    """
    if layout.layers or recompute_given:
        return price(question, place_layout(question, layout))
    if isinstance(question, MixedQuestion) and layout.replicas:
        return _best_replicas(question, layout, max_memory)
    columns = settled(question, LayoutColumns.of([layout]))
    only = {axis: frozenset({int(getattr(columns, axis)[0])}) for axis in AXES}
    top = MOST_ORDERS if layout.pools else 1  # a layout in another order of the pools is a rival of its own
    try:
        found = search(
            question, top=top, restrictions=Restrictions(only=only, max_memory=max_memory)
        ).estimates
        return next(one for one in found if layout.pools in ((), one.layout.pools))
    except (InfeasibleError, StopIteration):
        policies = sorted(question.training.recompute, key=RECOMPUTE_POLICIES.index)
        layers = even_layers(question.model.num_layers, layout.num_stages)
        alike = [layout.model_copy(update={"recompute": (one,), "layers": layers}) for one in policies]
        priced = [price(question, one) for one in alike]
        return next((one for one in priced if one.peak_bytes <= max_memory), priced[-1])


def _best_replicas(question: MixedQuestion, layout: Layout, max_memory: float) -> Estimate:
    """The same of whole replicas in several pools."""
    allowed = np.array([policy in question.training.recompute for policy in RECOMPUTE_POLICIES])
    found = place_replicas(leaf_of(question, layout, allowed, max_memory))
    if found is not None:
        update = {"layers": found[0].layers, "recompute": found[0].recompute}
        return price(question, layout.model_copy(update=update))
    weakest = RECOMPUTE_POLICIES[int(np.flatnonzero(allowed)[-1])]
    return price(question, place_layout(question, layout.model_copy(update={"recompute": (weakest,)})))
