"""Layouts whose stages all recompute as many of their first blocks in full: one layout for every number.

A number is part of a placement. Under a given one each stage has one mix for its blocks, so whatever places a layout
places it; numbers are taken best bound first, until no bound that is left is below the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from cost_models.schedules import CriticalPath
from planner.bounds.counts import least_number, numbers_in_time
from planner.placement.heuristics import good_placement
from planner.placement.leaf import Leaf, Placement, Solution, proven

MOST_TRIED = 3
"""Numbers whose good placement is sought: the best has nearly always one of the least bounds."""


def numbers_of(leaf: Leaf, cut_off: float = math.inf) -> list[tuple[float, Leaf]]:
    """The layout under every number that may take less than `cut_off` seconds, with its bound, the least first; the
    layout as it is where no number is to be chosen."""
    if not leaf.counted or leaf.number is not None:
        return [(0.0, leaf)]
    return [(bound, replace(leaf, number=number)) for bound, number in numbers_in_time(leaf, cut_off)]


def good_of_numbers(leaf: Leaf, cut_off: float) -> tuple[tuple[Placement, float] | None, float]:
    """A good placement under any of a few numbers, with its step time, or None where none of them fits; and a lower
    bound under all numbers, no higher than `cut_off` or that time."""
    best: tuple[Placement, float] | None = None
    if leaf.counted and math.isinf(cut_off) and (first := least_number(leaf)) is not None:
        best = good_placement(replace(leaf, number=first))
    below = cut_off if best is None else best[1]
    numbers = numbers_of(leaf, below)
    for bound, own in numbers[:MOST_TRIED]:
        found = good_placement(own) if best is None or bound < best[1] else None
        if found and (best is None or found[1] < best[1]):
            best = found
    return best, numbers[0][0] if numbers else below


def best_of_numbers(
    leaf: Leaf,
    solve: Callable[[Leaf, float], Solution],
    incumbent: tuple[Placement, float] | None,
    cut_off: float,
) -> Solution:
    """The best placement under any number; `solve` gives that of one if it takes less than so many seconds."""
    best, seconds = incumbent if incumbent else (None, math.inf)
    stopped: list[float] = []
    paths: list[CriticalPath] = []
    rounds = 0
    for bound, own in numbers_of(leaf, min(seconds, cut_off)):
        if bound >= min(seconds, cut_off):
            break
        found = solve(own, min(seconds, cut_off))
        rounds, paths = rounds + found.rounds, [*paths, *found.paths]
        if found.status == "stopped":
            stopped.append(max(bound, found.bound))
        if found.placement is not None and found.objective < seconds:
            best, seconds = found.placement, found.objective
    return Solution(
        status="stopped" if stopped else proven(seconds, cut_off),
        placement=best,
        objective=seconds,
        bound=min([*stopped, seconds, cut_off]),
        rounds=rounds,
        paths=tuple(paths),
    )
