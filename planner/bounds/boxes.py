"""Costs that no layout of a box of counts undercuts (`planner.space.counts`), and whether any of it is allowed.

Bytes of every coefficient are concave in the counts, so least at a corner: of offload they are sums over a rank's
blocks, affine, with the ring and the parked states at work, min(buffers, count), besides. Passes know nothing of
counts. What a rank does once a step offload bounds itself (`least_update`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import reduce

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload.hosts import host_bytes
from cost_models.axes.offload.price import least_update
from cost_models.axes.words import EVERY
from cost_models.errors import InfeasibleError
from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.stage_costs import StageCosts, byte_costs
from cost_models.pipeline.terms.memory_terms import MemoryTerms
from cost_models.pipeline.under_scenarios import scenarios_of, weighed_costs
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.rules.legality import LATE_RULES
from planner.space.counts import Boxes, with_counts


def corner_columns(columns: LayoutColumns, boxes: Boxes) -> list[LayoutColumns]:
    """The layouts at the corners of each box."""
    return [with_counts(columns, counts) for counts in boxes.corners()]


def least_costs(question: Question, columns: LayoutColumns, boxes: Boxes) -> StageCosts:
    """(N,) costs of layouts, each of which stands for a box; its memory limit is 0 where late rules
    allow none of it.

    Where scenarios are weighed the device updates none of the blocks that counts may name, and channels take no time:
    which scenarios count differs between counts.
    """
    costs = weighed_costs(question, columns)
    wide = np.flatnonzero(~boxes.is_single)
    if len(wide):
        corners = corner_columns(columns.rows(wide), boxes.rows(wide))
        if scenarios_of(question):
            once = -boxes.room[wide] * costs.layer_optimizer[wide]
        else:
            once = least_update(question, corners)
        sized = [byte_costs(question, own) for own in corners]
        costs = _with_rows(costs, wide, sized, {"rank_optimizer": once})
    return within_corners(question, costs, corner_columns(columns, boxes))


def within_corners(question: Question, costs: StageCosts, corners: list[LayoutColumns]) -> StageCosts:
    """Costs with no room at all where late rules allow no corner, nor under a recompute policy with which they do."""
    limit = np.where(some_allowed(question, corners), costs.memory_limit, 0.0)
    if not any((own.offload_activations > 0).any() for own in corners):
        return replace(costs, memory_limit=limit)
    beyond = np.zeros_like(costs.working)
    for policy in question.training.recompute:
        held = some_allowed(question.recomputing(policy), corners)
        beyond[:, RECOMPUTE_POLICIES.index(policy)] = np.where(held, 0.0, 2 * costs.memory_limit)
    kinds = tuple(own | {"working": own["working"] + beyond} for own in costs.kinds)
    return replace(costs, memory_limit=limit, working=costs.working + beyond, kinds=kinds)


def some_allowed(question: Question, corners: list[LayoutColumns]) -> Bools:
    """(N,): whether late rules allow one of the corners."""
    some: Bools = np.any([within_late_rules(question, own) for own in corners], axis=0)
    return some


def within_late_rules(question: Question, columns: LayoutColumns) -> Bools:
    """(N,): which layouts break no rule that prices what it asks, as that hosts hold what is offloaded."""
    broken = [rule.broken(question, columns) for rule in LATE_RULES]
    holds: Bools = ~np.any(broken, axis=0)
    return holds


def most_held(question: Question, columns: LayoutColumns, boxes: Boxes) -> tuple[LayoutColumns, Bools]:
    """The layout of each box with as many offloaded blocks as hosts hold on the way from its least to its most counts,
    and (N,) whether they hold it."""
    one, other = with_counts(columns, boxes.least), with_counts(columns, boxes.most)
    low, high, room = (
        host_bytes(question, one),
        host_bytes(question, other),
        usable_host_memory(question.cluster),
    )
    share = np.clip((room - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    sides = boxes.most - boxes.least
    spare = boxes.room - np.where(boxes.least < EVERY, boxes.least, 0).sum(axis=1)
    share = np.minimum(share, spare / np.maximum(sides.sum(axis=1), 1))
    found = with_counts(columns, boxes.least + np.floor(share[:, None] * sides).astype(np.int64))
    return found, within_late_rules(question, found)


def nothing_held(question: Question, columns: LayoutColumns) -> InfeasibleError:
    """The error to raise when no host holds what any layout of some offloads: the one that offloads least."""
    least = columns.layout(int(host_bytes(question, columns).argmin()))
    small = next(rule for rule in LATE_RULES if rule.broken(question, LayoutColumns.of([least]))[0])
    words = small.sentence(question, least)
    return InfeasibleError(words.what, hint=words.hint)


def _with_rows(
    costs: StageCosts, rows: Ints, sized: Sequence[StageCosts], values: dict[str, Array]
) -> StageCosts:
    """The same costs with other values of some coefficients in some rows, and the least bytes of some of these rows."""
    names = [field.name for field in fields(MemoryTerms)]
    values = {name: reduce(np.minimum, [getattr(own, name) for own in sized]) for name in names} | values

    def changed(column: Array, value: Array) -> Array:
        new = column.copy()
        new[rows] = value
        return new

    kinds = tuple(
        own
        | {
            name: changed(own[name], reduce(np.minimum, [one.kinds[kind][name] for one in sized]))
            for name in own
            if name in names
        }
        for kind, own in enumerate(costs.kinds)
    )
    columns = {name: changed(getattr(costs, name), value) for name, value in values.items()}
    return replace(costs, **columns, kinds=kinds)
