"""Minimum costs of the layouts in each box of counts (`planner.space.axes`), and whether late rules allow
any of them.

Bytes of every coefficient are concave in the counts, so least at a corner: with offload they are sums over a
rank's blocks, affine, plus the ring and the parked states in use, min(buffers, count). Forward and backward
seconds do not depend on counts; offload itself bounds the update (`least_update`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload.price import least_update
from cost_models.axes.offload.residency import host_bytes
from cost_models.axes.rule import objections, unbroken
from cost_models.axes.words import EVERY
from cost_models.errors import InfeasibleError
from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.pricing import scenarios_of, weighed_costs
from cost_models.pipeline.stage_costs import BYTES, StageCosts, memory_terms, stage_costs
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.rules.legality import LATE_RULES
from planner.space.axes import Boxes, with_counts


def least_costs(question: Question, columns: LayoutColumns, boxes: Boxes) -> StageCosts:
    """Minimum cost of any layout in each box of offload counts, (N,) for each coefficient; the memory limit is
    zero where hosts or drives lack room for every corner of the box under all recompute policies."""
    costs, corners = weighed_costs(question, columns), boxes.corners(columns)
    if not boxes.is_single.all():
        sized = [stage_costs(question, corner, memory_terms) for corner in corners]
        update = -boxes.room * costs.layer_optimizer
        if not scenarios_of(question):
            update = least_update(question, corners)
        values = {name: reduce(np.minimum, [getattr(own, name) for own in sized]) for name in BYTES}
        values["rank_optimizer"] = np.where(boxes.is_single, costs.rank_optimizer, update)
        kinds = tuple(
            own | {name: reduce(np.minimum, [x.kinds[k][name] for x in sized]) for name in {*own} & {*BYTES}}
            for k, own in enumerate(costs.kinds)
        )
        costs = replace(costs, **values, kinds=kinds)
    limit = np.where(some_allowed(question, corners), costs.memory_limit, 0.0)
    if not any((own.offload_activations > 0).any() for own in corners):
        return replace(costs, memory_limit=limit)
    overflow = np.zeros_like(costs.working)
    for policy in question.training.recompute:
        is_legal = some_allowed(question.recomputing(policy), corners)
        overflow[:, RECOMPUTE_POLICIES.index(policy)] = np.where(is_legal, 0.0, 2 * costs.memory_limit)
    working = tuple(own | {"working": own["working"] + overflow} for own in costs.kinds)
    return replace(costs, memory_limit=limit, working=costs.working + overflow, kinds=working)


def some_allowed(question: Question, corners: list[LayoutColumns]) -> Bools:
    """For each box, whether hosts and drives have room for one of the layouts at its corners, (N,)."""
    allowed: Bools = np.any([unbroken(LATE_RULES, question, corner) for corner in corners], axis=0)
    return allowed


def most_held(question: Question, columns: LayoutColumns, boxes: Boxes) -> tuple[LayoutColumns, Bools]:
    """For each box of offload counts, a layout with as many offloaded blocks as host memory holds, and whether
    hosts hold it, (N,)."""
    lowest, highest = with_counts(columns, boxes.least), with_counts(columns, boxes.most)
    low, high = host_bytes(question, lowest), host_bytes(question, highest)
    room = usable_host_memory(question.cluster)
    share = np.clip((room - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    sides = boxes.most - boxes.least
    spare = boxes.room - (boxes.least % EVERY).sum(axis=1)
    share = np.minimum(share, spare / np.maximum(sides.sum(axis=1), 1))
    fullest = with_counts(columns, boxes.least + np.floor(share[:, None] * sides).astype(np.int64))
    return fullest, unbroken(LATE_RULES, question, fullest)


def nothing_held(question: Question, columns: LayoutColumns) -> InfeasibleError:
    """Error to raise if hosts hold the offloaded blocks of no layout. It names the layout that offloads least."""
    lightest = columns.layout(int(host_bytes(question, columns).argmin()))
    words = objections(LATE_RULES, question, lightest)[0]
    return InfeasibleError(words.what, hint=words.hint)
