"""Layouts whose stages all recompute the same number of first blocks in full: one leaf for every number.

Under a given number each stage has one mix for its blocks, so any solver of leaves places it. Numbers are tried best
bound first, until no remaining bound is below the best placement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from cost_models.schedules.timeline import CriticalPath
from planner.bounds.counts import least_number, numbers_in_time
from planner.placement.heuristics import good_placement
from planner.placement.leaf import Leaf, Placement, Solution, proven

MOST_TRIED = 3
"""Numbers for which a good placement is sought: the best number has nearly always one of the lowest bounds."""


def numbers_of(leaf: Leaf, cut_off: float = math.inf) -> list[tuple[float, Leaf]]:
    """Bound and leaf of every number that may take less than `cut_off` seconds, lowest bound first; the leaf itself
    where no number is to be chosen."""
    if not leaf.uses_full_counts or leaf.full_count is not None:
        return [(0.0, leaf)]
    return [(bound, replace(leaf, full_count=number)) for bound, number in numbers_in_time(leaf, cut_off)]


def good_of_numbers(leaf: Leaf, cut_off: float) -> tuple[tuple[Placement, float] | None, float]:
    """Good placement under one of a few numbers with its step seconds, or None where none fits; and a lower bound under
    all numbers, no higher than `cut_off` or these seconds."""
    best: tuple[Placement, float] | None = None
    if leaf.uses_full_counts and math.isinf(cut_off) and (first := least_number(leaf)) is not None:
        best = good_placement(replace(leaf, full_count=first))
    threshold = cut_off if best is None else best[1]
    numbers = numbers_of(leaf, threshold)
    for bound, numbered_leaf in numbers[:MOST_TRIED]:
        placement = good_placement(numbered_leaf) if best is None or bound < best[1] else None
        if placement and (best is None or placement[1] < best[1]):
            best = placement
    return best, numbers[0][0] if numbers else threshold


def best_of_numbers(
    leaf: Leaf,
    solve: Callable[[Leaf, float], Solution],
    incumbent: tuple[Placement, float] | None,
    cut_off: float,
) -> Solution:
    """Best placement under any number; `solve(leaf, cut_off)` places one number."""
    best, seconds = incumbent if incumbent else (None, math.inf)
    stopped: list[float] = []
    paths: list[CriticalPath] = []
    rounds = 0
    for bound, numbered_leaf in numbers_of(leaf, min(seconds, cut_off)):
        if bound >= min(seconds, cut_off):
            break
        solution = solve(numbered_leaf, min(seconds, cut_off))
        rounds, paths = rounds + solution.rounds, [*paths, *solution.paths]
        if solution.status == "stopped":
            stopped.append(max(bound, solution.bound))
        if solution.placement is not None and solution.objective < seconds:
            best, seconds = solution.placement, solution.objective
    return Solution(
        status="stopped" if stopped else proven(seconds, cut_off),
        placement=best,
        objective=seconds,
        bound=min([*stopped, seconds, cut_off]),
        rounds=rounds,
        paths=tuple(paths),
    )
