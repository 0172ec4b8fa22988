"""What-if analysis: one thing of the question changed, the plan priced again as it is, and a better one searched."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import MixedQuestion, Question, each_pool, mixed_question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.hardware import AttentionCurve, CurvePoint
from planner.bounds.relaxed import ideal_seconds, known_not_to_fit, known_seconds
from planner.kept import Found, Kept
from planner.search.budget import Budget
from planner.space.layouts import Restrictions, Space, legal_space
from planner.space.limits import tensor_degrees

NEXT_TO_NOTHING = 1e-4
"""Relative gain of step time below which nothing is said."""
SEARCH_SECONDS = 10.0
"""Time limit of one changed question, seconds; its answer is then the best found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The effect of one change of the question on a plan."""

    change: str
    """The change in words: "half inter-node bandwidth"."""
    held: Estimate
    """Price of the plan as it is, under the change."""
    replanned: Estimate | None
    """The best plan of the changed question; None where none is worth the change, or nobody searched."""

    @property
    def best(self) -> Estimate:
        """The plan as it is, unless the new plan is faster, or fits where the old one does not."""
        other = self.replanned
        worth = NEXT_TO_NOTHING * self.held.step_seconds
        if other is None or (self.held.fits and self.held.step_seconds - other.step_seconds <= worth):
            return self.held
        return other


def sensitivities(
    question: Question,
    estimate: Estimate,
    restrictions: Restrictions,
    kept: Kept | None = None,
    *,
    replan: bool = True,
) -> tuple[Sensitivity, ...]:
    """The effect of every change in `CHANGES` that applies: the plan priced again and, with `replan`, the best plan
    then, as it is kept or searched for."""
    answers = []
    for words, change in CHANGES.items():
        if (changed := change.of(question)) is None:
            continue
        limits = scaled(restrictions, question, changed)
        held, best = price(changed, estimate.layout).within(limits.max_memory), None
        if replan:
            below = seconds_to_beat(held) * (1 - NEXT_TO_NOTHING)
            search = partial(_searched, change, (question, changed), restrictions, below)
            found = kept.layouts(f"if {words}", search) if kept else search()[0]
            again = (price(limits.held(changed), one).within(limits.max_memory) for one in found)
            best = next(again, None)
        answers.append(Sensitivity(change=words, held=held, replanned=best))
    return tuple(answers)


def _searched(
    change: Change, questions: tuple[Question, Question], restrictions: Restrictions, below: float
) -> Found:
    budget, space = Budget(time_limit=SEARCH_SECONDS), searched_space(questions[0], restrictions)
    best = faster_under(change, questions, restrictions, below, space, budget)
    return [best.layout] if best else [], budget.seconds_left > 0


def same_degrees(one: Layout, other: Layout) -> bool:
    """Whether two layouts differ only in the placement of blocks and in recompute."""
    unplaced = {"layers": (), "recompute": ("none",)}
    return one.model_copy(update=unplaced) == other.model_copy(update=unplaced)


def with_memory(question: Question, factor: float) -> Question:
    """The question on devices with `factor` times the memory."""

    def change(one: Question) -> Question:
        gpu = one.cluster.gpu.model_copy(update={"memory": one.cluster.gpu.memory * factor})
        return replace(one, cluster=one.cluster.model_copy(update={"gpu": gpu}))

    changed = each_pool(question, change)
    assert changed is not None
    return changed


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
    question = limits.held(after)
    if tensor_degrees(before.cluster) != tensor_degrees(after.cluster):
        space = None  # it lacks degrees that are tried after the change
    if space is not None:
        space = space.asked_of(question).of_cores(change.least_seconds(space, restrictions) < below)
    try:
        return (budget or Budget()).faster_than(below, question, limits, seconds=SEARCH_SECONDS, space=space)
    except InfeasibleError:
        return None


def seconds_to_beat(held: Estimate) -> float:
    """Seconds of a step of the plan that is held; infinite where it does not fit."""
    return held.compared_seconds if held.fits else math.inf


def searched_space(question: Question, restrictions: Restrictions) -> Space | None:
    """The layouts that a search within some restrictions tries; None where there is no one space."""
    if isinstance(question, MixedQuestion):
        return None
    return legal_space(restrictions.held(question), restrictions)


def scaled(restrictions: Restrictions, before: Question, after: Question) -> Restrictions:
    """The restrictions with their memory limit scaled as device memory was."""
    if restrictions.max_memory is None:
        return restrictions
    factor = after.cluster.gpu.memory / before.cluster.gpu.memory
    return replace(restrictions, max_memory=restrictions.max_memory * factor)


def _intra_node(factor: float) -> Callable[[Question], Question | None]:
    def change(question: Question) -> Question | None:
        cluster = question.cluster
        if cluster.gpus_per_node == 1 or question.hardware.collectives:  # measured curves replace the formula
            return None
        links = cluster.links.faster(intra_node=factor)
        return replace(question, cluster=cluster.model_copy(update={"links": links}))

    return change


def _inter_node(factor: float) -> Callable[[Question], Question | None]:
    def change(question: Question) -> Question | None:
        cluster = question.cluster
        if cluster.nodes == 1 or cluster.links.inter_node is None:
            return None
        links = cluster.links.faster(inter_node=factor)
        return replace(question, cluster=cluster.model_copy(update={"links": links}))

    return change


def _between_buildings(factor: float) -> Callable[[Question], Question | None]:
    def change(question: Question) -> Question | None:
        buildings = question.cluster.buildings
        if buildings is None or question.cluster.nodes <= buildings.nodes:
            return None
        farther = buildings.model_copy(update={"link": buildings.link.faster(factor)})
        return replace(question, cluster=question.cluster.model_copy(update={"buildings": farther}))

    return change


def _between_pools(factor: float) -> Callable[[Question], Question | None]:
    def change(question: Question) -> Question | None:
        if not isinstance(question, MixedQuestion):
            return None
        link = question.mixed.link.faster(factor)
        return mixed_question(question.mixed.model_copy(update={"between": link}), question.pools)

    return change


def _compute(factor: float) -> Callable[[Question], Question | None]:
    """Speed up matrix products and attention, whether given by efficiency or by measured curve."""

    def change(question: Question) -> Question:
        hardware = question.hardware
        names = ("gemm_efficiency", "attention_forward_efficiency", "attention_backward_efficiency")
        update: dict[str, object] = {name: getattr(hardware, name) * factor for name in names}
        update["attention"] = tuple(_faster_attention(curve, factor) for curve in hardware.attention)
        return replace(question, hardware=hardware.model_copy(update=update))

    return change


def _memory(factor: float) -> Callable[[Question], Question | None]:
    return lambda question: with_memory(question, factor)


def _faster_attention(curve: AttentionCurve, factor: float) -> AttentionCurve:
    def faster(points: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
        return tuple(point.model_copy(update={"seconds": point.seconds / factor}) for point in points)

    return curve.model_copy(update={"forward": faster(curve.forward), "backward": faster(curve.backward)})


QUANTITIES: dict[str, Callable[[float], Callable[[Question], Question | None]]] = {
    "compute efficiency": _compute,
    "device memory": _memory,
    "intra-node bandwidth": _intra_node,
    "inter-node bandwidth": _inter_node,
    "bandwidth between buildings": _between_buildings,
}
"""What there can be more or less of, by a factor."""
_INSIDE_NODES = ("compute efficiency", "intra-node bandwidth")
"""Those that ideal bounds of cores (`planner.bounds.relaxed`) depend on; others are links, where a tensor group
crosses nodes."""


@dataclass(frozen=True, slots=True)
class Change:
    """More or less of one thing."""

    quantity: str
    """A key of `QUANTITIES`, or what pools are linked by."""
    factor: float

    def of(self, question: Question) -> Question | None:
        """The question with so much of it; None where it has none."""
        if self.quantity == BETWEEN_POOLS:
            return _between_pools(self.factor)(question)
        return each_pool(question, QUANTITIES[self.quantity](self.factor))

    def least_seconds(self, space: Space, restrictions: Restrictions) -> Array:
        """(N,) bounds of cores after the change, from those that are known of the space before it.

        Bounds of cores are sums of seconds and maxima of such sums, and know no memory. Where nothing gets faster none
        falls. What gets faster by a factor makes no sum smaller by more than that, and none of which it is no part; of
        links that holds for ideal bounds alone, as more than one transfer may hide behind the same compute. Backward
        passes that are split are left out: their bounds subtract what hides transfers.
        """
        policies = restrictions.recompute(space.question)
        allowed = np.array([policy in policies for policy in RECOMPUTE_POLICIES])
        of_memory, crosses = (
            self.quantity == "device memory",
            space.cores.tp > space.question.cluster.gpus_per_node,
        )
        touched = (crosses | (self.quantity in _INSIDE_NODES)) & (not of_memory)
        if of_memory or self.factor <= 1:
            known = known_seconds(space, allowed)
        elif self.quantity == "compute efficiency":
            known = known_seconds(space, allowed) / self.factor
        else:
            known = ideal_seconds(space, allowed) / np.where(touched, self.factor, 1.0)
        if space.splits_backward:
            known = np.where(touched, 0.0, known)
        if of_memory and self.factor > 1:
            return known
        return np.where(known_not_to_fit(space, allowed, restrictions.max_memory), np.inf, known)


BETWEEN_POOLS = "bandwidth between pools"
CHANGES = {
    "+10 % intra-node bandwidth": Change("intra-node bandwidth", 1.1),
    "half inter-node bandwidth": Change("inter-node bandwidth", 0.5),
    "double inter-node bandwidth": Change("inter-node bandwidth", 2.0),
    "half bandwidth between buildings": Change("bandwidth between buildings", 0.5),
    "double bandwidth between buildings": Change("bandwidth between buildings", 2.0),
    "+25 % device memory": Change("device memory", 1.25),
    "+10 % compute efficiency": Change("compute efficiency", 1.1),
    "double bandwidth between pools": Change(BETWEEN_POOLS, 2.0),
}
"""Changes that users ask about first: links, memory, kernels."""
