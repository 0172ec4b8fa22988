"""The search: greedy, a bound over options, local search, and the program of record over what bounds leave open."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import RunError
from planner.exact.solvers import solve
from planner.recommender.search.cases import ROUNDED
from planner.recommender.search.ilp.options import OptionsProgram
from planner.recommender.search.local_search import improve
from planner.recommender.search.nothing_fits import no_room_for_all
from planner.recommender.search.problem import Placement
from planner.recommender.search.proving import Progress as Progress
from planner.recommender.search.proving import Search as Search
from planner.recommender.search.proving import over_places
from planner.recommender.search.state import State, placed

PROVEN = 1e-9
"""Relative gap at which nothing is left to prove."""
FLAT_CLASSES = 100
"""Most distinct tables whose places are in the program; with more, options alone are."""
OPTIONS_GAP = 1e-4
"""Relative gap at which the program over options ends and local search is done."""
OPTIONS_SECONDS = 5.0
ROUNDS = 300
"""Most rounds of local search."""
PATIENCE = 12
"""Rounds without a better placement after which it ends; with few distinct tables, thrice as many or one a unit."""
SEEDS = 4
"""Local searches where few distinct tables leave a gap of more than SMALL_GAP."""
SMALL_GAP = 5e-3


def run(search: Search) -> None:
    """Search until proved, or until time or the user ends it.

    Raises:
        DoesNotFitError: proven that no placement fits.
        RunError: ended before any placement that fits was found.
    """
    problem = search.problem
    scale = search.scale
    search.prove(float(problem.least_stages.sum()) + problem.fixed)
    start = search.begin()
    if len(problem.unit_class) == 0:
        if search.best is None:
            raise no_room_for_all(problem)
        search.prove(search.value)
        return
    reduced = _bound_over_options(search, scale)
    counts = _best_options(search, scale, reduced)
    search.say("placing")
    begin = start if counts is None else placed(problem, scale, counts)
    few = len(problem.members) <= FLAT_CLASSES
    until = time.monotonic() + search.seconds_left / (6 if few else 1)
    for one in [begin] if search.offer(begin) else [begin, start]:
        if search.gap > OPTIONS_GAP and time.monotonic() < until:
            _improved(search, scale, reduced.rows(search.value), one, 0, until)
    if few and search.gap > PROVEN and not search.stopped():
        kept = reduced.rows(search.value)
        over_places(search, kept, lambda rows: _again(search, scale, rows, begin))
    if search.best is None:
        if search.interrupt.pressed:
            raise KeyboardInterrupt
        if search.stopped():
            raise RunError("no sharding that fits was found in time", hint="allow more with --time-limit")
        raise RunError(
            "no sharding that fits was found, nor shown that there is none", hint="more memory gives it room"
        )


def _improved(search: Search, scale: float, rows: Ints, start: Placement, seed: int, until: float) -> None:
    """Local search from a placement, in some rows."""
    problem = search.problem
    units, few = len(problem.unit_class), len(problem.members) <= FLAT_CLASSES
    state = State(problem, scale)
    state.load(start)
    state.keep_to(rows)
    found = improve(
        state,
        rounds=ROUNDS,
        patience=min(3 * PATIENCE, units) if few else PATIENCE,
        seed=seed,
        target=(search.bound - problem.fixed) / scale * (1 + OPTIONS_GAP),
        stop=lambda: search.stopped() or time.monotonic() > until,
    )
    search.offer(found)


def _again(search: Search, scale: float, rows: Ints, start: Placement) -> None:
    """Local search with other seeds while the gap is large."""
    until = time.monotonic() + search.seconds_left / 4
    for seed in range(1, SEEDS):
        if search.gap <= SMALL_GAP or time.monotonic() > until:
            return
        _improved(search, scale, rows, start, seed, until)


@dataclass(frozen=True, slots=True)
class _Reduced:
    """The relaxed program over options: its bound and what each row would add to it."""

    bound: float
    extra: Array
    """(R,) seconds that one unit in a row would add to the bound, at least."""

    def rows(self, value: float) -> Ints:
        """Rows that a placement as good as `value` may use."""
        return np.flatnonzero(self.bound + self.extra <= value * (1 + ROUNDED))


def _bound_over_options(search: Search, scale: float) -> _Reduced:
    problem = search.problem
    search.say("bounding")
    program = OptionsProgram(problem, scale, whole=False)
    solved = solve(program.problem, search.solver, seconds=search.seconds_left, interrupt=search.interrupt)
    if solved.verdict == "infeasible":
        raise no_room_for_all(problem)
    if solved.verdict != "optimal":
        search.left_open = True
        return _Reduced(0.0, np.zeros(len(problem.picks)))
    bound = solved.bound * (1 - ROUNDED) * scale + problem.fixed
    search.prove(bound)
    extra = np.array([max(one.dj or 0.0, 0.0) for one in program.x]) * scale
    return _Reduced(bound, extra)


def _best_options(search: Search, scale: float, reduced: _Reduced) -> Ints | None:
    """How many units take each row in the program over options; None where it found nothing."""
    if search.stopped():
        return None
    kept = reduced.rows(search.value)
    program = OptionsProgram(search.problem.with_rows(kept), scale)
    solved = solve(
        program.problem,
        search.solver,
        seconds=min(OPTIONS_SECONDS, search.seconds_left / 3),
        gap=OPTIONS_GAP / 10,
        interrupt=search.interrupt,
    )
    if solved.verdict == "infeasible":
        if search.best is None:
            raise no_room_for_all(search.problem)
        search.prove(search.value)
        return None
    search.prove(solved.bound * (1 - ROUNDED) * scale + search.problem.fixed)
    if not solved.has_solution:
        return None
    counts = np.zeros(len(search.problem.picks), dtype=np.int64)
    counts[kept] = program.row_counts()
    return counts
