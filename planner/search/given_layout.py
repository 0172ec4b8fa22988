"""Placement of the blocks of a layout that the user wrote."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.offload.residency import named_blocks as offloaded_by_number
from cost_models.axes.stages import blocks_by_policy, named_blocks, policy_mask
from cost_models.errors import InputError
from cost_models.pipeline.pools import costs_of_ranks
from cost_models.pipeline.pricing import estimate_each
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN
from planner.exact.program import best_placement
from planner.placement.leaf import Leaf, Placement, Task
from planner.placement.mixes import good_placement
from planner.placement.patterns import chunk_sizes
from planner.placement.rank_costs import RankCosts
from planner.rules.legality import require_legal
from planner.search.pools import orders_of


def place_layout(question: Question, layout: Layout) -> Layout:
    """The layout with the fastest placement of its blocks on stages, under the recompute policies that the
    layout names.

    A layout that is already placed is returned unchanged. A layout that does not fit devices or hosts is
    placed as if memory had no limit, so that it still has a price.

    Raises:
        InputError: the layout breaks a rule of `planner.rules.legality`, or recompute names more blocks than stages
            have.
    """
    require_legal(question, layout, hosts=False)
    if layout.layers:
        return layout
    if layout.replicas or layout.schedule not in PLAIN or layout.num_stages > question.model.num_layers:
        return _in_equal_stages(question, layout)
    placements = [(_place_plain(question, candidate), candidate) for candidate in orders_of(question, layout)]
    (_, _, placement), best_layout = min(placements, key=lambda result: result[0][:2])
    return best_layout.model_copy(update={"layers": placement.layers})


def _place_plain(question: Question, layout: Layout) -> tuple[bool, float, Placement]:
    """Best placement of a plain pipeline, as (overflows, step seconds, placement). It overflows memory only
    where every placement does."""
    costs = costs_of_ranks(question, layout)
    for overflows, rows in ((False, costs), (True, replace(costs, memory_limit=np.full(len(costs), np.inf)))):
        leaf = _leaf(question, layout, rows)
        solution = best_placement(Task(leaf, good_placement(leaf)))
        if solution.placement is not None:
            return overflows, solution.objective, solution.placement
    raise names_too_many(layout)


def _in_equal_stages(question: Question, layout: Layout) -> Layout:
    """The layout with its blocks in stages as equal as possible, smaller ones at the ends. This is the fastest
    of these placements that fits, among equals the first.

    Used for replicas, which have the same blocks in all pools, and for several chunks a rank.

    Raises:
        InputError: the recompute of some stage names more blocks than such a stage has.
    """
    sizes_ZS = chunk_sizes(question.model.num_layers, layout.num_stages, layout.num_stages)
    named_S = np.array([named_blocks(mix) for mix in layout.stage_recompute])
    sizes_ZS = sizes_ZS[(sizes_ZS >= named_S).all(axis=1)]
    leaf = None if layout.replicas else _leaf(question, layout, costs_of_ranks(question, layout))
    if leaf is not None:
        blocks_ZR = sizes_ZS[:, leaf.stage_of].sum(axis=1)
        sizes_ZS = sizes_ZS[(blocks_ZR >= leaf.least_blocks).all(axis=1)]
    if not len(sizes_ZS):
        raise names_too_many(layout)
    placed = [layout.model_copy(update={"layers": tuple(sizes)}) for sizes in sizes_ZS.tolist()]
    if leaf is None:
        estimates = estimate_each(question, placed)
        seconds, fits = [one.step_seconds for one in estimates], [one.fits for one in estimates]
    else:
        blocks = [blocks_by_policy(sizes, layout.stage_recompute) for sizes in sizes_ZS.tolist()]
        blocks_ZSP = leaf.kinds.in_sorts(np.stack(blocks))
        seconds, fits = leaf.step_seconds(blocks_ZSP).tolist(), leaf.fits(blocks_ZSP).tolist()
    return placed[min(range(len(placed)), key=lambda index: (not fits[index], seconds[index]))]


def names_too_many(layout: Layout) -> InputError:
    """Error for a layout whose recompute names more blocks than a stage has."""
    return InputError(
        f"recompute of `{layout}` names more blocks than its stages have",
        hint="name fewer, or say the blocks of each stage: `layers=`",
    )


def _leaf(question: Question, layout: Layout, costs: StageCosts) -> Leaf:
    """Problem of placing a given layout's blocks on stages, with only the recompute policies that it names."""
    columns = LayoutColumns.of([layout])
    leaf = RankCosts.of_rows(question, columns, costs, policy_mask(layout.policies)).leaf
    least_blocks = int(offloaded_by_number(columns)[0])
    return replace(leaf, recompute=layout.stage_recompute, least_blocks=least_blocks)
