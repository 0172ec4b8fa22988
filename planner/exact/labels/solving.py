"""The best placement of one plain layout: label passes and timelines in turn, until no label is left.

A pass leaves candidates that no known path rules out. Their timelines give a better step, or a critical path by which
the next pass rules them out (Benders 1962, with label setting in place of a linear program). Placements are finitely
many and every round takes one away, so this ends, with proof.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from cost_models.axes.columns import Ints
from cost_models.schedules import CriticalPath
from planner.exact.labels.choices import Choices, choices_of
from planner.exact.labels.label_pass import LabelPass, TooManyLabelsError
from planner.exact.labels.remaining import Cuts, all_ways, cuts_of
from planner.placement.leaf import TOLERANCE, Bools, Leaf, Placement
from planner.placement.solution import Solution, Status, proven

MOST_LABELS = 4096
"""Most labels kept after one rank; with more, the integer program takes over."""
MOST_CANDIDATES = 16
"""Most placements whose timelines are evaluated after one pass."""
MOST_PASSES = 24
"""Most passes that close ways before the integer program is built."""


def place_by_labels(
    leaf: Leaf,
    *,
    incumbent: tuple[Placement, float] | None = None,
    cut_off: float = math.inf,
    met_paths: Sequence[CriticalPath] = (),
    time_limit: float | None = None,
) -> Solution | None:
    """The best placement of a plain layout, if it takes less than `cut_off` seconds; None: there are too many labels.

    `incumbent` is a placement and its time, `met_paths` are critical paths of other layouts with the same pipeline.
    `time_limit` is in seconds; without it the answer is always proven.
    """
    start = time.monotonic()
    best, best_seconds = incumbent if incumbent else (None, math.inf)
    critical, rounds = list(met_paths), 0
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
            candidates = _candidates(choices, critical, target)
        except TooManyLabelsError:
            return None
        if not len(candidates):
            break
        blocks_KRP = choices.table(candidates)
        seconds_K = leaf.step_seconds(blocks_KRP)
        critical += [leaf.critical_path(blocks) for blocks in blocks_KRP]
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
        paths=tuple(critical[len(met_paths) :]),
    )


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


def _candidates(choices: Choices, paths: Sequence[CriticalPath], target: float) -> Ints:
    """(K, R) block counts of placements that no known path rules out, most promising first; may be none."""
    ways = all_ways(choices)
    return most_promising(label_pass(choices, ways, cuts_of(choices, ways, paths), target))


def most_promising(labels_of: LabelPass) -> Ints:
    """(K, R) block counts of the first candidates of a pass."""
    labels, _ = labels_of.run()
    return labels.sizes[np.argsort(labels.lead, kind="stable")[:MOST_CANDIDATES]]


def label_pass(choices: Choices, ways: Bools, cuts: Cuts, target: float) -> LabelPass:
    """A pass over some ways for a step of at most `target` seconds, or as long as any takes."""
    slowest = float(choices.leaf.step_seconds(choices.table(choices.most)))
    return LabelPass(
        choices=choices,
        ways=ways,
        cuts=cuts,
        target=min(target, slowest * (1 + TOLERANCE)),
        most_labels=MOST_LABELS,
    )
