"""Costs that no layout of a box of counts undercuts (`planner.space.counts`), and whether hosts hold any of it.

Bytes of every coefficient are sums over a rank's blocks, affine in the counts, with the ring and the parked states at
work, min(buffers, count), besides: concave, so least at a corner. Passes know nothing of counts. What a rank does once
a step is the device's update, affine too, and what its channels outlast the passes by, which rises with each channel:
both are taken at the least of all corners.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import Ints, LayoutColumns
from cost_models.axes.layout import prices
from cost_models.axes.offload.hosts import host_bytes
from cost_models.axes.words import EVERY
from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.costs import byte_costs
from cost_models.pipeline.memory_terms import MemoryTerms
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.pipeline.under_scenarios import scenarios_of
from cost_models.pipeline.weighed_costs import weighed_costs
from cost_models.question import Question
from planner.rules.host import HOST_RULES
from planner.space.counts import Boxes, with_counts

Floats = npt.NDArray[np.float64]


def corner_columns(columns: LayoutColumns, boxes: Boxes) -> list[LayoutColumns]:
    """The layouts at the corners of each box."""
    return [with_counts(columns, counts) for counts in boxes.corners()]


def least_costs(question: Question, columns: LayoutColumns, boxes: Boxes) -> StageCosts:
    """(N,) costs of layouts, each of which stands for a box; its memory limit is 0 where hosts hold none of it.

    Where scenarios are weighed a box has nothing to do once a step: which scenarios count differs between counts.
    """
    costs = weighed_costs(question, columns)
    wide = np.flatnonzero(~boxes.is_single)
    if len(wide):
        costs = _with_rows(costs, wide, _of_boxes(question, columns.rows(wide), boxes.rows(wide)))
    return within_hosts(question, costs, corner_columns(columns, boxes))


def within_hosts(question: Question, costs: StageCosts, corners: list[LayoutColumns]) -> StageCosts:
    """Costs with no room at all where hosts hold no corner."""
    return replace(costs, memory_limit=np.where(some_host_holds(question, corners), costs.memory_limit, 0.0))


def some_host_holds(question: Question, corners: list[LayoutColumns]) -> npt.NDArray[np.bool_]:
    """(N,): whether hosts hold what one of the corners offloads."""
    some: npt.NDArray[np.bool_] = np.any([hosts_hold(question, own) for own in corners], axis=0)
    return some


def hosts_hold(question: Question, columns: LayoutColumns) -> npt.NDArray[np.bool_]:
    """(N,): whether hosts hold what layouts offload, in memory and on drives."""
    holds: npt.NDArray[np.bool_] = ~np.any([rule.broken(question, columns) for rule in HOST_RULES], axis=0)
    return holds


def most_held(
    question: Question, columns: LayoutColumns, boxes: Boxes
) -> tuple[LayoutColumns, npt.NDArray[np.bool_]]:
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
    return found, hosts_hold(question, found)


def _of_boxes(question: Question, columns: LayoutColumns, boxes: Boxes) -> dict[str, Floats]:
    """The coefficients that counts change."""
    corners = corner_columns(columns, boxes)
    sized = [byte_costs(question, own) for own in corners]
    least = {
        field.name: reduce(np.minimum, [getattr(own, field.name) for own in sized])
        for field in fields(MemoryTerms)
    }
    weighed = bool(scenarios_of(question))
    once = np.zeros(len(columns))
    for price in () if weighed else prices():
        once = np.maximum(once, price.least_update(question, corners)) if price.least_update else once
    return least | {"rank_optimizer": once}


def _with_rows(costs: StageCosts, rows: Ints, values: dict[str, Floats]) -> StageCosts:
    """The same costs with other values of some coefficients in some rows."""
    changed = {}
    for name, value in values.items():
        changed[name] = getattr(costs, name).copy()
        changed[name][rows] = value
    return replace(costs, **changed)
