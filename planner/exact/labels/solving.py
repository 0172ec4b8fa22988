"""The best placement of one plain layout: label passes and timelines in turn, until no label is left.

A pass leaves candidates that no known path rules out. Their timelines give a better step, or a critical path by which
the next pass rules them out (Benders 1962, with label setting in place of a linear program). Placements are finitely
many and every round takes one away, so this ends, with proof.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.schedules import CriticalPath
from planner.exact.labels.choices import Choices, Cuts, all_ways, choices_of, cuts_of, cuts_that_add
from planner.exact.labels.label_pass import LabelPass, TooManyLabelsError
from planner.placement.leaf import TOLERANCE, Leaf, Placement, Solution, Status, proven
from planner.placement.weighed_leaf import PathOfEach, WeighedLeaf

Incumbent = tuple[Placement, float]
"""A placement and its step time."""
MOST_LABELS = 4096
"""Most labels kept after one rank; with more, the integer program takes over."""
MOST_CANDIDATES = 16
"""Most placements whose timelines are evaluated after one pass."""
MOST_PASSES = 24
"""Most passes that close ways before the integer program is built."""


def place_by_labels(
    leaf: Leaf,
    *,
    incumbent: Incumbent | None = None,
    cut_off: float = math.inf,
    met_paths: Sequence[CriticalPath] = (),
    time_limit: float | None = None,
    most_rounds: int | None = None,
) -> Solution | None:
    """The best placement of a plain layout, if it takes less than `cut_off` seconds; None: there are too many labels.

    `incumbent` is a placement and its time, `met_paths` are critical paths of other layouts with the same pipeline.
    `time_limit` is in seconds and `most_rounds` of passes and timelines; without both the answer is always proven.
    """
    critical = list(met_paths)

    def meet(blocks_KRP: Ints) -> None:
        critical.extend(leaf.critical_path(blocks) for blocks in blocks_KRP)

    def cuts(choices: Choices) -> Cuts:
        return cuts_of(choices, all_ways(choices), critical)

    found, too_many = _place(leaf, cuts, meet, incumbent, cut_off, time_limit, most_rounds)
    return None if too_many else replace(found, paths=tuple(critical[len(met_paths) :]))


def place_weighed(
    leaf: WeighedLeaf,
    *,
    incumbent: Incumbent | None = None,
    cut_off: float = math.inf,
    time_limit: float | None = None,
) -> Solution:
    """The best placement of a plain layout where scenarios are weighed, if it weighs less than `cut_off` seconds.

    Passes are at mean costs and leave every placement that may take less than the target (`pipeline.under_scenarios`).
    Each candidate is priced in every scenario; the mean length of its critical paths there, of the scenarios that
    count, is its weighed step and a bound of every other placement's. Each stage has the mix of recompute policies that
    is fastest at mean costs.

    It is `stopped` without a bound where time runs out, or where there are too many labels.
    """
    met: list[PathOfEach] = []

    def meet(blocks_KRP: Ints) -> None:
        met.extend(leaf.bounding_path(blocks) for blocks in blocks_KRP)

    found, _ = _place(
        leaf, lambda choices: _weighed_cuts(leaf, choices, met), meet, incumbent, cut_off, time_limit
    )
    return found


def _place(
    leaf: Leaf,
    cuts: Callable[[Choices], Cuts],
    meet: Callable[[Ints], None],
    incumbent: Incumbent | None,
    cut_off: float,
    time_limit: float | None,
    most_rounds: int | None = None,
) -> tuple[Solution, bool]:
    """Alternate label passes and timelines; also whether labels were too many. `meet` adds candidates to `cuts`."""
    start = time.monotonic()
    best, best_seconds = incumbent if incumbent else (None, math.inf)
    rounds, too_many = 0, False
    status: Status | None = None
    while status is None:
        target = min(best_seconds, cut_off) * (1 - TOLERANCE)
        late = time_limit is not None and time.monotonic() - start >= time_limit
        if late or rounds == most_rounds:
            status = "stopped"
            break
        choices = choices_of(leaf, target)
        if choices is None:
            break
        rounds += 1
        try:
            labels, _ = label_pass(choices, all_ways(choices), cuts(choices), target).run()
        except TooManyLabelsError:
            status, too_many = "stopped", True
            break
        if not len(labels):
            break
        sizes_KR = labels.sizes[np.argsort(labels.lead, kind="stable")[:MOST_CANDIDATES]]
        blocks_KRP = choices.table(sizes_KR)
        seconds_K = leaf.step_seconds(blocks_KRP)
        meet(blocks_KRP)
        fastest = int(seconds_K.argmin())
        if seconds_K[fastest] < best_seconds:
            best, best_seconds = Placement.of(blocks_KRP[fastest]), float(seconds_K[fastest])
    if status is None:
        status = proven(best_seconds, cut_off)
    found = Solution(
        status=status,
        placement=best,
        objective=best_seconds,
        bound=0.0 if status == "stopped" else min(best_seconds, cut_off),
        rounds=rounds,
    )
    return found, too_many


def choices_in_time(leaf: Leaf, target: float, paths: Sequence[CriticalPath] = ()) -> Choices | None:
    """Choices for a step of at most `target` seconds, as far as paths tell; None where no step is so short.

    Every pass closes ways, so that the next can close more.
    """
    choices = choices_of(leaf, target)
    if choices is None:
        return None
    ways = all_ways(choices)
    for _ in range(MOST_PASSES):
        before = ways.sum()
        try:
            cuts = cuts_of(choices, ways, paths)
            _, ways = label_pass(choices, ways, cuts, target * (1 + TOLERANCE)).run()
        except TooManyLabelsError:
            break
        if ways.sum() == before:
            break
    used: Bools = np.any(ways, axis=1)
    return choices.only(used)


def label_pass(choices: Choices, ways: Bools, cuts: Cuts, target: float) -> LabelPass:
    """A pass over some ways for a step of at most `target` seconds, or as long as any takes."""
    return LabelPass(
        choices=choices,
        ways=ways,
        cuts=cuts,
        target=min(target, choices.slowest_step * (1 + TOLERANCE)),
        most_labels=MOST_LABELS,
    )


def _weighed_cuts(leaf: WeighedLeaf, choices: Choices, paths: Sequence[PathOfEach]) -> Cuts:
    """The mean length of every set of paths, each with the synchronisation of the rank it ends on, one rank's optimizer
    step and the overhead of its scenario."""
    each = [replace(choices, leaf=one, backward=one.backward(choices.blocks).T) for one in leaf.each]
    added = np.zeros((len(paths), leaf.pp, len(choices.sizes)))
    fixed = np.zeros(len(paths))
    for index, together in enumerate(paths):
        for at, path, slowest in together.paths:
            own, share = each[at], 1 / len(together.paths)
            seconds: Array = path.forward_counts[:, None] * own.forward
            seconds = seconds + path.backward_counts[:, None] * own.backward
            seconds[path.rank] += own.sync[path.rank]
            seconds[slowest] += own.optimizer[slowest]
            added[index] += share * seconds
            fixed[index] += share * (path.p2p_count * own.leaf.cost("p2p") + own.leaf.overhead)
    return cuts_that_add(choices, all_ways(choices), added, fixed, whole=True)
