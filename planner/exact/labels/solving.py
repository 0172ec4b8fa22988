"""Best placement of one plain layout: label passes and timelines in turn, until no label is left.

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
from cost_models.schedules.timeline import CriticalPath
from planner.exact.labels.choices import Choices, Cuts, all_ways, choices_of, cuts_of, cuts_that_add
from planner.exact.labels.label_pass import LabelPass, TooManyLabelsError
from planner.placement.leaf import TOLERANCE, Leaf, Placement, Solution, Status, proven
from planner.placement.weighed_leaf import ScenarioPaths, WeighedLeaf

Incumbent = tuple[Placement, float]
"""A placement and its step time."""
MOST_LABELS = 4096
"""Maximum labels kept after one rank; with more, the integer program takes over."""
MOST_CANDIDATES = 16
"""Maximum number of placements whose timelines are evaluated after one pass."""
MOST_PASSES = 24
"""Maximum passes that close ways before the integer program is built."""


def place_by_labels(
    leaf: Leaf,
    *,
    incumbent: Incumbent | None = None,
    cut_off: float = math.inf,
    met_paths: Sequence[CriticalPath] = (),
    time_limit: float | None = None,
    most_rounds: int | None = None,
) -> Solution | None:
    """Best placement of a plain layout, if it takes less than `cut_off` seconds; None if there are too many labels.

    `incumbent` is a placement and its time, `met_paths` are critical paths of other layouts with the same pipeline.
    `time_limit` is in seconds and `most_rounds` of passes and timelines; without both the answer is always proven.
    """
    critical = list(met_paths)

    def meet(blocks_KRP: Ints) -> None:
        critical.extend(leaf.critical_path(blocks) for blocks in blocks_KRP)

    def cuts(choices: Choices) -> Cuts:
        return cuts_of(choices, all_ways(choices), critical)

    solution, too_many = _place(leaf, cuts, meet, incumbent, cut_off, time_limit, most_rounds)
    return None if too_many else replace(solution, paths=tuple(critical[len(met_paths) :]))


def place_weighed(
    leaf: WeighedLeaf,
    *,
    incumbent: Incumbent | None = None,
    cut_off: float = math.inf,
    time_limit: float | None = None,
) -> Solution:
    """Best placement of a plain layout under weighed scenarios, if its weighed step is below `cut_off` seconds.

    Passes are at mean costs and leave every placement that may take less than the target (`pipeline.under_scenarios`).
    Each candidate is priced in every scenario; the mean length of its critical paths there, of the scenarios that
    count, is its weighed step and a bound of every other placement's. Each stage has the mix of recompute policies that
    is fastest at mean costs.

    It is `stopped` without a bound where time runs out, or where there are too many labels.
    """
    bounding_paths: list[ScenarioPaths] = []

    def meet(blocks_KRP: Ints) -> None:
        bounding_paths.extend(leaf.bounding_path(blocks) for blocks in blocks_KRP)

    def cuts(choices: Choices) -> Cuts:
        return _weighed_cuts(leaf, choices, bounding_paths)

    return _place(leaf, cuts, meet, incumbent, cut_off, time_limit)[0]


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
    solution = Solution(
        status=status,
        placement=best,
        objective=best_seconds,
        bound=0.0 if status == "stopped" else min(best_seconds, cut_off),
        rounds=rounds,
    )
    return solution, too_many


def choices_in_time(leaf: Leaf, target: float, paths: Sequence[CriticalPath] = ()) -> Choices | None:
    """Choices that paths allow for a step of at most `target` seconds; None if no step is so short.

    Every pass closes ways, so that the next can close more.
    """
    choices = choices_of(leaf, target)
    if choices is None:
        return None
    ways = all_ways(choices)
    for _ in range(MOST_PASSES):
        open_ways = ways.sum()
        try:
            cuts = cuts_of(choices, ways, paths)
            _, ways = label_pass(choices, ways, cuts, target * (1 + TOLERANCE)).run()
        except TooManyLabelsError:
            break
        if ways.sum() == open_ways:
            break
    used: Bools = np.any(ways, axis=1)
    return choices.only(used)


def label_pass(choices: Choices, ways: Bools, cuts: Cuts, target: float) -> LabelPass:
    """Label pass over `ways` for a step of at most `target` seconds, capped at the slowest step."""
    return LabelPass(
        choices=choices,
        ways=ways,
        cuts=cuts,
        target=min(target, choices.slowest_step * (1 + TOLERANCE)),
        most_labels=MOST_LABELS,
    )


def _weighed_cuts(leaf: WeighedLeaf, choices: Choices, paths: Sequence[ScenarioPaths]) -> Cuts:
    """Cuts of the mean length of every set of paths: each path with the synchronisation of its last rank, one rank's
    optimizer step and the overhead of its scenario."""
    leaves = leaf.scenario_leaves
    scenario_choices = [replace(choices, leaf=x, backward=x.backward(choices.blocks).T) for x in leaves]
    added = np.zeros((len(paths), leaf.pp, len(choices.sizes)))
    fixed = np.zeros(len(paths))
    for index, path_set in enumerate(paths):
        for at, path, slowest in path_set.paths:
            costs, share = scenario_choices[at], 1 / len(path_set.paths)
            seconds: Array = path.forward_counts[:, None] * costs.forward
            seconds = seconds + path.backward_counts[:, None] * costs.backward
            seconds[path.rank] += costs.sync[path.rank]
            seconds[slowest] += costs.optimizer[slowest]
            added[index] += share * seconds
            fixed[index] += share * (path.p2p_count * costs.leaf.cost("p2p") + costs.leaf.overhead)
    return cuts_that_add(choices, all_ways(choices), added, fixed, is_full_step=True)
