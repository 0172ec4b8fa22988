"""What-if analysis: one thing of the question changed, the plan priced again as it is, and a better one searched."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import MixedQuestion, Question, each_pool, mixed_question
from cost_models.specs.hardware import AttentionCurve, CurvePoint
from planner.search.search import faster_than
from planner.space.layouts import Restrictions, Space, legal_space

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
    question: Question, estimate: Estimate, restrictions: Restrictions, *, replan: bool = True
) -> tuple[Sensitivity, ...]:
    """The effect of every change in `CHANGES` that applies: the plan priced again and, with `replan`, a new search."""
    answers = []
    space = None if isinstance(question, MixedQuestion) or not replan else legal_space(question, restrictions)
    changes = {words: each_pool(question, change) for words, change in CHANGES.items()}
    if isinstance(question, MixedQuestion):
        changes["double bandwidth between pools"] = _between(question, 2.0)
    for words, changed in changes.items():
        if changed is not None:
            limits = scaled(restrictions, question, changed)
            held = price(changed, estimate.layout)
            held = held if limits.max_memory is None else held.within(limits.max_memory)
            best = _faster(changed, limits, held, space) if replan else None
            answers.append(Sensitivity(change=words, held=held, replanned=best))
    return tuple(answers)


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


def _faster(
    question: Question, restrictions: Restrictions, held: Estimate, space: Space | None
) -> Estimate | None:
    """The best plan that is worth a change from the one that is held; None where there is none."""
    question = restrictions.held(question)
    below = held.compared_seconds * (1 - NEXT_TO_NOTHING) if held.fits else math.inf
    try:
        return faster_than(
            below,
            question,
            restrictions,
            time_limit=SEARCH_SECONDS,
            space=None if space is None else space.asked_of(question),
        )
    except InfeasibleError:
        return None


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


def _between(question: MixedQuestion, factor: float) -> Question:
    link = question.mixed.link.faster(factor)
    return mixed_question(question.mixed.model_copy(update={"between": link}), question.pools)


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


CHANGES: dict[str, Callable[[Question], Question | None]] = {
    "+10 % intra-node bandwidth": _intra_node(1.1),
    "half inter-node bandwidth": _inter_node(0.5),
    "double inter-node bandwidth": _inter_node(2.0),
    "half bandwidth between buildings": _between_buildings(0.5),
    "double bandwidth between buildings": _between_buildings(2.0),
    "+25 % device memory": _memory(1.25),
    "+10 % compute efficiency": _compute(1.1),
}
"""Changes that users ask about first: links, memory, kernels."""

QUANTITIES: dict[str, Callable[[float], Callable[[Question], Question | None]]] = {
    "compute efficiency": _compute,
    "device memory": _memory,
    "intra-node bandwidth": _intra_node,
    "inter-node bandwidth": _inter_node,
    "bandwidth between buildings": _between_buildings,
}
"""What there can be more or less of, by a factor."""
