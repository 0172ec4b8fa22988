"""The layouts nearest to the fastest, from where a search ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cost_models.axes.layout import Layout
from planner.placement.chunks import best_pattern
from planner.placement.heuristics import good_placement
from planner.search.branching import BranchAndBound
from planner.search.opening import count_below

_MOST_OPENED = 100_000
"""Layouts from which on no more are looked at for the nearest."""


_TRIED_FOR_EACH = 3
"""Layouts that are placed for each that is wanted, at most: some fit nowhere."""


def nearest_below(
    searches: Sequence[BranchAndBound], seconds: float, most: int, first: Layout, has_time: Callable[[], bool]
) -> list[Layout]:
    """At most so many layouts that take less than some seconds, those with the least bounds, each with a good placement
    and other degrees or another microbatch than `first` and one another. What a search knew before it ended changes
    none of them."""
    for search in searches:
        count_below(search, seconds, _MOST_OPENED, has_time)
    near = sorted(
        (float(search.rows.first_bound[row]), number, str(search.candidates.layout(row)), row)
        for number, search in enumerate(searches)
        for row in np.flatnonzero(search.rows.first_bound < seconds).tolist()
    )
    layouts, met, tried = list[Layout](), {_degrees(first)}, 0
    for _, number, _, row in near:
        candidates = searches[number].candidates
        layout = candidates.layout(row)
        if _degrees(layout) in met:
            continue
        if len(layouts) == most or tried == _TRIED_FOR_EACH * most or not has_time():
            break
        leaf, tried = candidates.leaf(row), tried + 1
        found = good_placement(leaf) if leaf.is_plain else best_pattern(leaf, seconds)
        if found and found[1] < seconds:
            met.add(_degrees(layout))
            layouts.append(found[0].on(layout))
    return layouts


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.pp, layout.cp, layout.dp, layout.ep, layout.expert_tp, layout.mbs
