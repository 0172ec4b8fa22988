"""One search, and its proof with places: the program of record, case by case."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from cost_models.arrays import Ints
from planner.exact.solvers import Interrupt, SolverName, solve
from planner.recommender.search.cases import ROUNDED, Case, Cases, does_most
from planner.recommender.search.ilp.places import PlacesProgram
from planner.recommender.search.nothing_fits import no_room_for_all
from planner.recommender.search.problem import Placement, Problem, use_of
from planner.recommender.search.state import greedy

FLAT_PLACES = 20_000
"""Most variables of places."""
FLAT_GAP = 1e-7
"""Relative gap at which the program of record ends."""
ENOUGH = 0.01
"""Relative gap at which a search ends early: prices of tables are known to a few per cent."""
ENOUGH_SHARE, ENOUGH_SECONDS = 1 / 20, 3.0
"""Share of the time limit, and least seconds, after which that gap is enough; before, a search goes on to prove the
optimum."""


Progress = Callable[[float, float, str], None]
"""Called with (best objective, proven bound, what is done now)."""


@dataclass(slots=True, kw_only=True)
class Search:
    """One search: the best placement so far, the bound proved so far, and what ends it."""

    problem: Problem
    solver: SolverName
    interrupt: Interrupt
    time_limit: float = math.inf
    """Seconds; a search within `ENOUGH` of the optimum ends after `ENOUGH_SHARE` of them, or `ENOUGH_SECONDS`."""
    progress: Progress | None = None
    best: Placement | None = None
    value: float = math.inf
    bound: float = 0.0
    greedy_value: float = math.inf
    flat: bool = False
    """Whether places were in the program."""
    left_open: bool = False
    """Whether time or the user ended a part early."""
    start: float = field(default_factory=lambda: time.monotonic())  # looked up when called, as tests slow it

    @property
    def seconds_left(self) -> float:
        """Until the search ends at the gap proved so far."""
        limit = self.time_limit
        if self.gap <= ENOUGH:
            limit = min(limit, max(ENOUGH_SECONDS, ENOUGH_SHARE * limit))
        return self.start + limit - time.monotonic()

    @property
    def gap(self) -> float:
        """(value − bound) / value; 1 without a placement that fits."""
        if self.best is None:
            return 1.0
        return max(0.0, 1 - self.bound / self.value) if self.value > 0 else 0.0

    def stopped(self) -> bool:
        """Whether the search has to end now."""
        if self.interrupt.pressed or self.seconds_left <= 0:
            self.left_open = True
        return self.left_open

    def say(self, doing: str) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(self.value, self.bound, doing)

    def offer(self, placement: Placement) -> bool:
        """Keep a placement that fits and is the best so far; returns whether it fits."""
        use = use_of(self.problem, placement)
        if not use.fits:
            return False
        if (value := self.problem.value(use.load)) < self.value:
            self.best, self.value = placement, value
        return True

    @property
    def scale(self) -> float:
        """Seconds that the programs count in."""
        return float(self.problem.least_stages.sum()) or 1.0

    def begin(self) -> Placement:
        """Offer the greedy placement, which is the first."""
        first = greedy(self.problem, self.scale)
        self.offer(first)
        self.greedy_value = self.value
        return first

    def prove(self, bound: float) -> None:
        """Raise the proven lower bound, at most to the best value."""
        self.bound = max(self.bound, min(bound, self.value))


def over_places(search: Search, kept: Ints, again: Callable[[Ints], None]) -> None:
    """The program of record over rows that are left, case by case, the one of the lowest bound first.

    Once cases have raised the bound, `again` searches further in their rows, before the solver runs.
    """
    problem = search.problem
    if _places(problem, kept) > FLAT_PLACES:
        again(kept)
        return
    search.flat = True
    search.say("proving")
    worst = _worst(problem)
    cases = Cases(problem, search.solver, worst, search.interrupt, lambda: search.seconds_left)
    left = [found] if (found := cases.case(kept, min(search.value, worst), search.bound)) else []
    decided = math.inf  # the least bound of cases that the solver is done with
    searched = False
    while left and not search.stopped():
        case = min(left, key=lambda one: one.bound)
        search.prove(min(case.bound, decided))
        search.say("proving")
        left.remove(case)
        value = min(search.value, worst)
        if case.bound > value * (1 + ROUNDED):
            continue
        if not case.placed:
            parts = cases.split(case, value)
            if parts is None:
                parts = [found] if (found := cases.with_places(case, value)) else []
            left += parts
        elif not searched:
            left.append(case)
            again(np.unique(np.concatenate([one.rows for one in left])))
            searched = True
        else:
            others = min([decided, *(one.bound for one in left)])
            bound, done = _solved(search, case, value, others)
            if done:
                decided = min(decided, bound)
            else:
                left.append(replace(case, bound=bound))
    if left:
        return
    if search.best is None:
        raise no_room_for_all(problem)
    search.prove(decided)


def _solved(search: Search, case: Case, scale: float, others: float) -> tuple[float, bool]:
    """Solve a case, where no other has a bound below `others`: its bound, and whether it was solved to its end.

    It is left to a later turn once others hold the bound back by more than half of what is left to prove.
    """
    problem = search.problem.with_rows(case.rows)
    program = PlacesProgram(problem, scale, ordered=search.solver == "cbc", first=does_most(problem))
    enough = (others + scale) / 2 if others < math.inf else math.inf

    def watch(_: float, bound: float) -> bool:
        proved = bound * scale + problem.fixed
        if math.isfinite(bound):
            search.prove(min(proved, others))
        search.say("proving")
        return enough < proved < math.inf or search.seconds_left <= 0

    solved = solve(
        program.problem,
        search.solver,
        seconds=search.seconds_left,
        gap=FLAT_GAP,
        interrupt=search.interrupt,
        watch=watch,
    )
    if solved.has_solution:
        found = program.placement()
        search.offer(Placement(case.rows[found.row], found.places))
    bound = max(case.bound, solved.bound * scale + problem.fixed)
    search.prove(min(bound, others))
    done = solved.verdict != "stopped"
    if not done and bound <= enough:
        search.left_open = True
    return bound, done


def _places(problem: Problem, rows: Ints) -> int:
    """Number of placement variables (shards on a GPU or node) that some options need in the program."""
    places = np.where(problem.on_nodes, problem.nodes, problem.gpus)
    return int(places[rows][problem.shards[rows] > 0].sum())


def _worst(problem: Problem) -> float:
    """Seconds that no sharding exceeds."""
    most = problem.base_load.max(axis=0) + problem.beside
    full = problem.everywhere_load + problem.shard_load * problem.shards[:, None]
    for one, count in enumerate(problem.counts.tolist()):
        most = most + count * full[problem.rows_of(one)].max(axis=0)
    return float(most.sum()) + problem.fixed
