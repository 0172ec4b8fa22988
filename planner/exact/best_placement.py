"""The best placement of one plain layout, proven: by label setting, or by the integer program of that layout."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from cost_models.schedules import CriticalPath
from planner.exact.counts import best_of_numbers
from planner.exact.ilp.cutting import minimum
from planner.exact.ilp.program import Program, stage_columns
from planner.exact.ilp.solvers import SolverName, available_solver
from planner.exact.labels.choices import choices_of
from planner.exact.labels.paths import known_paths
from planner.exact.labels.solving import place_by_labels, place_weighed
from planner.placement.leaf import TOLERANCE, Leaf, Placement, Solution, proven
from planner.placement.weighed_leaf import WeighedLeaf


def best_placement(
    leaf: Leaf,
    *,
    incumbent: tuple[Placement, float] | None = None,
    cut_off: float = math.inf,
    met_paths: Sequence[CriticalPath] = (),
    time_limit: float | None = None,
    most_rounds: int | None = None,
) -> Solution:
    """Prove the best placement by label setting, or by the integer program where there are too many labels.

    It comes back `stopped` after so many rounds of label setting, or seconds; a weighed leaf, which has no such
    program, where there are too many labels.
    """
    if leaf.counted and leaf.number is None:
        start = time.monotonic()

        def solve(own: Leaf, below: float) -> Solution:
            left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - start))
            return best_placement(
                own, cut_off=below, met_paths=met_paths, time_limit=left, most_rounds=most_rounds
            )

        return best_of_numbers(leaf, solve, incumbent, cut_off)
    if isinstance(leaf, WeighedLeaf):
        return place_weighed(leaf, incumbent=incumbent, cut_off=cut_off, time_limit=time_limit)
    start = time.monotonic()
    found = place_by_labels(
        leaf,
        incumbent=incumbent,
        cut_off=cut_off,
        met_paths=met_paths,
        time_limit=time_limit,
        most_rounds=most_rounds,
    )
    if found is None:
        left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - start))
        found = place_by_ilp(leaf, incumbent=incumbent, cut_off=cut_off, met_paths=met_paths, time_limit=left)
    return found


def place_by_ilp(
    leaf: Leaf,
    *,
    incumbent: tuple[Placement, float] | None = None,
    cut_off: float = math.inf,
    met_paths: Sequence[CriticalPath] = (),
    time_limit: float | None = None,
    solver: SolverName | None = None,
) -> Solution:
    """The best placement of a plain layout by the integer program; arguments and result as for `place_by_labels`."""
    best, best_seconds = incumbent if incumbent else (None, math.inf)
    known = min(best_seconds, cut_off)
    choices = choices_of(leaf, known)
    bound, rounds, stopped = known, 0, False
    paths: tuple[CriticalPath, ...] = ()
    if choices is not None:
        program = Program([0.0], min(known, choices.slowest_step) * (1 + TOLERANCE))
        choice = program.place(0, leaf, stage_columns(choices))
        for path in [*known_paths(leaf), *met_paths]:
            program.step_is_no_shorter_than_path(choice, path)
        program.problem += (program.step <= 1.0), "no_worse_than_known"
        found = minimum(program, solver or available_solver(), known_seconds=known, time_limit=time_limit)
        if found.found is not None and found.found[2] < best_seconds:
            _, best, best_seconds = found.found
        rounds, paths, stopped = found.rounds, found.paths, found.verdict == "stopped"
        bound = found.bound if stopped else min(best_seconds, cut_off)
    return Solution(
        status="stopped" if stopped else proven(best_seconds, cut_off),
        placement=best,
        objective=best_seconds,
        bound=bound,
        rounds=rounds,
        paths=paths,
    )
