"""Best placement of one plain layout with proof: by label setting, or by the integer program of that layout."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from cost_models.schedules.timeline import CriticalPath
from planner.exact.counts import best_of_numbers
from planner.exact.labels import choices_of, known_paths, place_by_labels, place_weighed
from planner.exact.program import Program, minimum, stage_columns
from planner.exact.solvers import SolverName, available_solver
from planner.placement.leaf import TOLERANCE, Leaf, Placement, Solution, WeighedLeaf, proven


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

    The solution is `stopped` after `most_rounds` rounds of label setting or `time_limit` seconds. A weighed leaf has no
    integer program, so it is `stopped` also if there are too many labels.
    """
    if leaf.uses_full_counts and leaf.full_count is None:
        start = time.monotonic()

        def solve(numbered_leaf: Leaf, cut_off: float) -> Solution:
            seconds_left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - start))
            return best_placement(
                numbered_leaf,
                cut_off=cut_off,
                met_paths=met_paths,
                time_limit=seconds_left,
                most_rounds=most_rounds,
            )

        return best_of_numbers(leaf, solve, incumbent, cut_off)
    if isinstance(leaf, WeighedLeaf):
        return place_weighed(leaf, incumbent=incumbent, cut_off=cut_off, time_limit=time_limit)
    start = time.monotonic()
    solution = place_by_labels(
        leaf,
        incumbent=incumbent,
        cut_off=cut_off,
        met_paths=met_paths,
        time_limit=time_limit,
        most_rounds=most_rounds,
    )
    if solution is None:
        seconds_left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - start))
        solution = place_by_ilp(
            leaf, incumbent=incumbent, cut_off=cut_off, met_paths=met_paths, time_limit=seconds_left
        )
    return solution


def place_by_ilp(
    leaf: Leaf,
    *,
    incumbent: tuple[Placement, float] | None = None,
    cut_off: float = math.inf,
    met_paths: Sequence[CriticalPath] = (),
    time_limit: float | None = None,
    solver: SolverName | None = None,
) -> Solution:
    """Best placement of a plain layout by the integer program; arguments and result as for `place_by_labels`."""
    best, best_seconds = incumbent if incumbent else (None, math.inf)
    to_beat = min(best_seconds, cut_off)
    choices = choices_of(leaf, to_beat)
    bound, rounds, stopped = to_beat, 0, False
    paths: tuple[CriticalPath, ...] = ()
    if choices is not None:
        program = Program([0.0], min(to_beat, choices.slowest_step) * (1 + TOLERANCE))
        choice = program.place(0, leaf, stage_columns(choices))
        for path in [*known_paths(leaf), *met_paths]:
            program.step_is_no_shorter_than_path(choice, path)
        program.problem += (program.step <= 1.0), "no_worse_than_known"
        result = minimum(program, solver or available_solver(), known_seconds=to_beat, time_limit=time_limit)
        if result.fastest is not None and result.fastest[2] < best_seconds:
            _, best, best_seconds = result.fastest
        rounds, paths, stopped = result.rounds, result.paths, result.verdict == "stopped"
        bound = result.bound if stopped else min(best_seconds, cut_off)
    return Solution(
        status="stopped" if stopped else proven(best_seconds, cut_off),
        placement=best,
        objective=best_seconds,
        bound=bound,
        rounds=rounds,
        paths=paths,
    )
