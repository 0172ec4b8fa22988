"""The best placement of one plain layout where scenarios are weighed: label passes at mean costs, cut by all scenarios.

A pass at mean costs leaves every placement that may take less than the target (`cost_models.pipeline.weighed_costs`).
Each candidate is priced in every scenario; the mean length of its critical paths there, of the scenarios that count, is
its weighed step and a bound of every other placement's, so it rules the candidate out of the next pass. Each stage has
the mix of recompute policies that is fastest at mean costs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.exact.labels.choices import Choices, choices_of
from planner.exact.labels.label_pass import TooManyLabelsError
from planner.exact.labels.remaining import Cuts, all_ways, cuts_that_add
from planner.exact.labels.solving import label_pass, most_promising
from planner.placement.leaf import TOLERANCE, Floats, Placement
from planner.placement.solution import Solution, Status, proven
from planner.placement.weighed_leaf import PathOfEach, WeighedLeaf


def place_weighed(
    leaf: WeighedLeaf,
    *,
    incumbent: tuple[Placement, float] | None = None,
    cut_off: float = math.inf,
    time_limit: float | None = None,
) -> Solution:
    """The best placement of a plain layout, if it weighs less than `cut_off` seconds.

    It is `stopped` without a bound where time runs out, or where there are too many labels.
    """
    start = time.monotonic()
    best, best_seconds = incumbent if incumbent else (None, math.inf)
    met: list[PathOfEach] = []
    rounds = 0
    status: Status | None = None
    while status is None:
        target = min(best_seconds, cut_off) * (1 - TOLERANCE)
        if time_limit is not None and time.monotonic() - start >= time_limit:
            status = "stopped"
            break
        choices = choices_of(leaf, target)
        if choices is None:
            break
        rounds += 1
        try:
            passed = label_pass(choices, all_ways(choices), _cuts(leaf, choices, met), target)
            sizes_KR = most_promising(passed)
        except TooManyLabelsError:
            status = "stopped"
            break
        if not len(sizes_KR):
            break
        blocks_KRP = choices.table(sizes_KR)
        met += [leaf.bounding_path(blocks) for blocks in blocks_KRP]
        seconds_K = leaf.step_seconds(blocks_KRP)
        fastest = int(seconds_K.argmin())
        if seconds_K[fastest] < best_seconds:
            best, best_seconds = Placement.of(blocks_KRP[fastest]), float(seconds_K[fastest])
    if status is None:
        status = proven(best_seconds, cut_off)
    return Solution(
        status=status,
        placement=best,
        objective=best_seconds,
        bound=0.0 if status == "stopped" else min(best_seconds, cut_off),
        rounds=rounds,
    )


def _cuts(leaf: WeighedLeaf, choices: Choices, paths: Sequence[PathOfEach]) -> Cuts:
    """The mean length of every set of paths, each with the synchronisation of the rank it ends on, one rank's optimizer
    step and the overhead of its scenario."""
    each = [replace(choices, leaf=one, backward=one.backward(choices.blocks).T) for one in leaf.each]
    added = np.zeros((len(paths), leaf.pp, len(choices.sizes)))
    fixed = np.zeros(len(paths))
    for index, together in enumerate(paths):
        for at, path, slowest in together.paths:
            own, share = each[at], 1 / len(together.paths)
            seconds: Floats = path.forward_counts[:, None] * own.forward
            seconds = seconds + path.backward_counts[:, None] * own.backward
            seconds[path.rank] += own.sync[path.rank]
            seconds[slowest] += own.optimizer[slowest]
            added[index] += share * seconds
            fixed[index] += share * (path.p2p_count * own.leaf.cost("p2p") + own.leaf.overhead)
    return cuts_that_add(choices, all_ways(choices), added, fixed, whole=True)
