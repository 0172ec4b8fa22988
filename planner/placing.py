"""One layout that was asked for: where its blocks go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.estimating import estimate
from cost_models.question import MixedQuestion, Question
from cost_models.specs.layout import Layout
from cost_models.specs.recompute import RECOMPUTE_POLICIES, policies_in
from planner.chunks import chunk_sizes
from planner.exact import best_placement
from planner.heuristics import good_placement
from planner.legality import require_legal
from planner.placement import PLAIN, Leaf, Placement
from planner.pools.space import layout_costs, orders_of


def place(question: Question, layout: Layout) -> Layout:
    """A layout with its blocks placed as well as possible under the recompute policies it names.

    A layout that is already placed comes back as it is; one that fits nowhere is placed as if memory had no limit, so
    that its price can still be told.

    Raises:
        InputError: the layout breaks a rule of `planner.legality`.
    """
    require_legal(question, layout)
    if layout.layers:
        return layout
    if layout.schedule not in PLAIN:
        return _best_sizes(question, layout)
    candidates = list(orders_of(question, layout)) if isinstance(question, MixedQuestion) else [layout]
    found = [(_placed(question, candidate), candidate) for candidate in candidates]
    (_, _, placement), chosen = min(found, key=lambda one: one[0][:2])
    return chosen.model_copy(update={"layers": placement.layers})


def _placed(question: Question, layout: Layout) -> tuple[bool, float, Placement]:
    """Whether a layout overflows memory wherever its blocks lie, and its best step time with its placement."""
    costs = layout_costs(question, layout)
    named = {policy for mix in layout.stage_recompute for policy in policies_in(mix)}
    for overflows, rows in ((False, costs), (True, replace(costs, memory_limit=np.full(len(costs), np.inf)))):
        leaf = Leaf(
            costs=rows,
            pp=layout.pp,
            vpp=layout.vpp,
            schedule=layout.schedule,
            microbatches=layout.microbatches(question.training.global_batch),
            num_layers=question.model.num_layers,
            allowed=np.array([policy in named for policy in RECOMPUTE_POLICIES]),
            recompute=layout.stage_recompute,
        )
        solution = best_placement(leaf, incumbent=good_placement(leaf))
        if solution.placement is not None:
            return overflows, solution.objective, solution.placement
    raise AssertionError("without a memory limit every legal layout has a placement")


def _best_sizes(question: Question, layout: Layout) -> Layout:
    """The fastest of the sizes that the search covers for several chunks a rank; the first where they are equal."""
    sizes = chunk_sizes(question.model.num_layers, layout.num_stages).tolist()
    placed = [layout.model_copy(update={"layers": tuple(layers)}) for layers in sizes]
    return min((estimate(question, one) for one in placed), key=lambda priced: priced.step_seconds).layout
