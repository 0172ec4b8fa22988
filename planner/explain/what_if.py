"""What-if analysis: one quantity of the question changed, the plan priced again as it is, and a better one searched."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import Array
from cost_models.errors import InfeasibleError
from cost_models.estimate import Estimate
from cost_models.pipeline.pricing import estimate as price
from cost_models.question import Question, each_pool, mixed_question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.hardware import CurvePoint
from planner.bounds.cores import best_known_bounds, ideal_seconds, known_infeasible
from planner.plan import PlanCache, Searched
from planner.search.search import Budget
from planner.space.limits import tensor_degrees
from planner.space.restrictions import Restrictions
from planner.space.space import Space, legal_space

if TYPE_CHECKING:
    import pandas as pd

NEGLIGIBLE_GAIN = 1e-4
"""Relative gain of step time below which two steps count as the same."""
SEARCH_SECONDS = 10.0
"""Time limit of one changed question, seconds; its answer is then the best found."""
TORNADO_FACTORS = (0.75, 1.25)
"""Factors of a tornado chart, the same for every quantity, so that its bars can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The effect of one change of the question on a plan."""

    change: str
    """The change in words: "half inter-node bandwidth"."""
    repriced: Estimate
    """Price of the plan as it is, under the change."""
    replanned: Estimate | None
    """The best plan of the changed question; None where none is worth the change, or none was searched for."""

    @property
    def best(self) -> Estimate:
        """The plan as it is, unless the new plan is faster, or fits where the old one does not."""
        other = self.replanned
        worth = NEGLIGIBLE_GAIN * self.repriced.step_seconds
        slower = other is None or self.repriced.step_seconds - other.step_seconds <= worth
        return self.repriced if other is None or (self.repriced.fits and slower) else other


def sensitivities(
    question: Question,
    estimate: Estimate,
    restrictions: Restrictions,
    cache: PlanCache | None = None,
    *,
    replan: bool = True,
) -> tuple[Sensitivity, ...]:
    """The effect of every change in `CHANGES` that applies: the plan priced again and, with `replan`, the best plan
    then, from the cache or searched for."""
    effects = []
    for words, change in CHANGES.items():
        if (changed := change.of(question)) is None:
            continue
        limits = scaled(restrictions, question, changed)
        repriced, best = price(changed, estimate.layout).within(limits.max_memory), None
        if replan:
            below = seconds_to_beat(repriced) * (1 - NEGLIGIBLE_GAIN)
            search = partial(_search, change, (question, changed), restrictions, below)
            layouts = cache.layouts(f"if {words}", search) if cache else search()[0]
            repriced_layouts = (
                price(limits.apply_confidence(changed), one).within(limits.max_memory) for one in layouts
            )
            best = next(repriced_layouts, None)
        effects.append(Sensitivity(change=words, repriced=repriced, replanned=best))
    return tuple(effects)


def _search(
    change: Change, questions: tuple[Question, Question], restrictions: Restrictions, below: float
) -> Searched:
    budget, space = Budget(time_limit=SEARCH_SECONDS), searched_space(questions[0], restrictions)
    best = faster_under(change, questions, restrictions, below, space, budget)
    return [best.layout] if best else [], budget.seconds_left > 0


def tornado_frame(
    question: Question,
    estimate: Estimate,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> pd.DataFrame:
    """Effect of a quarter more and a quarter less of each quantity on a plan's step: a row for each quantity and
    factor, those first that move the step most.

    Columns: `quantity`, `factor`, `held_seconds` of the plan as it is, `held_fits`, `step_seconds` and `layout` of the
    best plan then (NaN and empty where nothing fits, or time ran out), `plan_seconds`. Quantities that the question
    lacks are left out.
    """
    import pandas as pd

    spending, limits, rows = budget or Budget(), restrictions or Restrictions(), []
    with spending.spaces.shared():
        space = searched_space(question, limits)
    for change in (Change(name, factor) for name in QUANTITIES for factor in TORNADO_FACTORS):
        if (changed := change.of(question)) is None:
            continue
        spending.tell(f"{change.factor:.0%} of {change.quantity}")
        repriced = price(changed, estimate.layout).within(scaled(limits, question, changed).max_memory)
        below = seconds_to_beat(repriced)
        faster = faster_under(change, (question, changed), limits, below, space, spending)
        best = faster or (repriced if repriced.fits else None)
        step_seconds = float("nan") if best is None else best.step_seconds
        moves = np.abs(np.array([repriced.step_seconds, step_seconds]) - estimate.step_seconds)
        rows.append(
            {
                "quantity": change.quantity,
                "factor": change.factor,
                "held_seconds": repriced.step_seconds,
                "held_fits": repriced.fits,
                "step_seconds": step_seconds,
                "layout": "" if best is None else best.layout.brief,
                "plan_seconds": estimate.step_seconds,
                "order": np.nanmax(moves),
            }
        )
    frame = pd.DataFrame(rows)
    order = frame["order"].groupby(frame["quantity"]).transform("max")
    keys = ["order", "quantity", "factor"]
    ranked = frame.assign(order=order).sort_values(keys, ascending=[False, True, True], ignore_index=True)
    return ranked.drop(columns="order")


def faster_under(
    change: Change,
    questions: tuple[Question, Question],
    restrictions: Restrictions,
    below: float,
    space: Space | None,
    budget: Budget | None = None,
) -> Estimate | None:
    """The fastest plan after a change, of those that take less than `below` seconds; None where there is none, or none
    was found in time.

    `questions` are that before the change and that after it; `space` the layouts of the first. Cores that the change
    cannot make fast enough are left out: the bounds that are known of them say so.
    """
    before, after = questions
    limits = scaled(restrictions, before, after)
    question = limits.apply_confidence(after)
    if tensor_degrees(before.cluster) != tensor_degrees(after.cluster):
        space = None  # it lacks degrees that are tried after the change
    if space is not None:
        space = space.with_rates(question).of_cores(change.least_seconds(space, restrictions) < below)
    try:
        return (budget or Budget()).faster_than(below, question, limits, seconds=SEARCH_SECONDS, space=space)
    except InfeasibleError:
        return None


def seconds_to_beat(repriced: Estimate) -> float:
    """Seconds of a step of the plan as it is; infinite where it does not fit."""
    return repriced.compared_seconds if repriced.fits else math.inf


def searched_space(question: Question, restrictions: Restrictions) -> Space | None:
    """The layouts that a search within some restrictions tries; None where there is no single space."""
    if question.has_pools:
        return None
    return legal_space(restrictions.apply_confidence(question), restrictions)


def scaled(restrictions: Restrictions, before: Question, after: Question) -> Restrictions:
    """The restrictions with their memory limit scaled as device memory was."""
    if restrictions.max_memory is None:
        return restrictions
    factor = after.cluster.gpu.memory / before.cluster.gpu.memory
    return replace(restrictions, max_memory=restrictions.max_memory * factor)


def _compute(question: Question, factor: float) -> Question:
    """Speed up matrix products and attention, whether given by efficiency or by measured curve."""

    def faster(points: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
        return tuple(point.model_copy(update={"seconds": point.seconds / factor}) for point in points)

    hardware = question.hardware
    names = ("gemm_efficiency", "attention_forward_efficiency", "attention_backward_efficiency")
    curves = tuple(
        curve.model_copy(update={"forward": faster(curve.forward), "backward": faster(curve.backward)})
        for curve in hardware.attention
    )
    rates = {name: getattr(hardware, name) * factor for name in names}
    return question.updated("hardware", attention=curves, **rates)


def _memory(question: Question, factor: float) -> Question:
    gpu = question.cluster.gpu
    return question.updated("cluster", gpu=gpu.model_copy(update={"memory": gpu.memory * factor}))


def _links(question: Question, **factors: float) -> Question:
    return question.updated("cluster", links=question.cluster.links.faster(**factors))


def _intra_node(question: Question, factor: float) -> Question | None:
    # measured curves replace the formula
    unchanged = question.cluster.gpus_per_node == 1 or question.hardware.collectives
    return None if unchanged else _links(question, intra_node=factor)


def _inter_node(question: Question, factor: float) -> Question | None:
    cluster = question.cluster
    unchanged = cluster.nodes == 1 or cluster.links.inter_node is None
    return None if unchanged else _links(question, inter_node=factor)


def _between_buildings(question: Question, factor: float) -> Question | None:
    buildings = question.cluster.buildings
    if buildings is None or question.cluster.nodes <= buildings.nodes:
        return None
    farther = buildings.model_copy(update={"link": buildings.link.faster(factor)})
    return question.updated("cluster", buildings=farther)


QUANTITIES: dict[str, Callable[[Question, float], Question | None]] = {
    "compute efficiency": _compute,
    "device memory": _memory,
    "intra-node bandwidth": _intra_node,
    "inter-node bandwidth": _inter_node,
    "bandwidth between buildings": _between_buildings,
}
"""Quantities of a cluster's pools that a factor scales."""
_INSIDE_NODES = ("compute efficiency", "intra-node bandwidth")
"""Those that ideal bounds of cores (`planner.bounds.cores`) depend on; others are links, where a tensor group
crosses nodes."""
_BETWEEN_POOLS = "bandwidth between pools"


@dataclass(frozen=True, slots=True)
class Change:
    """More or less of one quantity."""

    quantity: str
    """A key of `QUANTITIES`, or the link between pools."""
    factor: float

    def of(self, question: Question) -> Question | None:
        """The question with so much of it; None where it has none."""
        if self.quantity != _BETWEEN_POOLS:
            return each_pool(question, lambda pool: QUANTITIES[self.quantity](pool, self.factor))
        if question.mixed is None:
            return None
        link = question.between.faster(self.factor)
        return mixed_question(question.mixed.model_copy(update={"between": link}), question.pools)

    def least_seconds(self, space: Space, restrictions: Restrictions) -> Array:
        """(N,) bounds of cores after the change, from those that are known of the space before it.

        Bounds of cores are sums of seconds and maxima of such sums, and know no memory. Where nothing gets faster none
        falls. What gets faster by a factor makes no sum smaller by more than that, and none of which it is no part; of
        links that holds for ideal bounds alone, as more than one transfer may hide behind the same compute. Backward
        passes that are split are left out: their bounds subtract what hides transfers.
        """
        policies = restrictions.recompute(space.question)
        allowed = np.array([policy in policies for policy in RECOMPUTE_POLICIES])
        of_memory = self.quantity == "device memory"
        crosses = space.cores.tp > space.question.cluster.gpus_per_node
        touched = (crosses | (self.quantity in _INSIDE_NODES)) & (not of_memory)
        if of_memory or self.factor <= 1:
            bounds = best_known_bounds(space, allowed)
        elif self.quantity == "compute efficiency":
            bounds = best_known_bounds(space, allowed) / self.factor
        else:
            bounds = ideal_seconds(space, allowed) / np.where(touched, self.factor, 1.0)
        if space.splits_backward:
            bounds = np.where(touched, 0.0, bounds)
        if of_memory and self.factor > 1:
            return bounds
        return np.where(known_infeasible(space, allowed, restrictions.max_memory), np.inf, bounds)


CHANGES = {
    "+10 % intra-node bandwidth": Change("intra-node bandwidth", 1.1),
    "half inter-node bandwidth": Change("inter-node bandwidth", 0.5),
    "double inter-node bandwidth": Change("inter-node bandwidth", 2.0),
    "half bandwidth between buildings": Change("bandwidth between buildings", 0.5),
    "double bandwidth between buildings": Change("bandwidth between buildings", 2.0),
    "+25 % device memory": Change("device memory", 1.25),
    "+10 % compute efficiency": Change("compute efficiency", 1.1),
    "double bandwidth between pools": Change(_BETWEEN_POOLS, 2.0),
}
"""Changes that users ask about first: links, memory, kernels."""
