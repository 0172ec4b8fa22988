"""The search of shardings: greedy, a bound over options, local search, and the program of record over open rows.

The program of record is solved in cases: a class of tables whose options matter most takes one row in each, and rows
that cost too much go. A relaxed program is solved again with a unit in each row in turn (probing). A row whose bound
exceeds the best placement known is no part of anything better, and a class's least row is a bound by itself. With one
large table in rows another has to lie in slices, and each case is far smaller than all at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import RunError
from planner.exact.solvers import Interrupt, SolverName, bounds_with_variable, solve
from planner.recommender.search.local_search import State, greedy, improve, place_units
from planner.recommender.search.problem import Placement, Problem, no_room_error, use_of
from planner.recommender.search.program import OptionsProgram, PlacesProgram

ROUNDED = 1e-7
"""Relative rounding error of a linear program's optimum, subtracted from bounds."""
SPLIT = 0.6
"""Share of the open gap that all cases but one must close for a class to be split."""
FEWER, FEWER_PLACED = 0.98, 0.95
"""Probing is repeated while at most this share of the rows remains, without and with places."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A subproblem of a sharding search, with open option rows and a lower bound on any placement in them."""

    rows: Ints
    bound: float
    with_row: Array
    """Bounds with a unit in each of the rows."""
    has_places: bool = False
    """Whether places were part of the bounds."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Branching of a sharding search into subproblems, pruned by the value of the best known placement."""

    problem: Problem
    solver: SolverName
    scale: float
    interrupt: Interrupt
    seconds_left: Callable[[], float]

    def case(self, rows: Ints, value: float, bound: float = 0.0) -> Case | None:
        """Open option rows by the program without places; None if no placement can be as good as `value`."""
        while True:
            subproblem = self.problem.with_rows(rows)
            program = OptionsProgram(subproblem, self.scale, integer=False)
            open_case = self._probed(program, rows, value, bound)
            if open_case is None or open_case.rows.size > FEWER * rows.size:
                return open_case
            rows, bound = open_case.rows, open_case.bound

    def with_places(self, case: Case, value: float) -> Case | None:
        """Open option rows by the relaxed program with places, with the heaviest class fixed to the first
        places."""
        rows, bound = case.rows, case.bound
        while True:
            subproblem = self.problem.with_rows(rows)
            program = PlacesProgram(
                subproblem, value, ordered=False, first=heaviest_class(subproblem), integer=False, shards=True
            )
            open_case = self._probed(program, rows, value, bound)
            if open_case is None or open_case.rows.size > FEWER_PLACED * rows.size:
                return open_case and replace(open_case, has_places=True)
            rows, bound = open_case.rows, open_case.bound

    def split(self, case: Case, value: float) -> list[Case] | None:
        """Branch on the option of one class, the one whose second-best option raises the bound most; None if
        the gain is too small."""
        subproblem = self.problem.with_rows(case.rows)
        gains = np.zeros(len(subproblem.members))
        for class_index in np.flatnonzero(subproblem.counts == 1).tolist():
            bounds = np.sort(case.with_row[subproblem.row_class == class_index])
            gains[class_index] = bounds[1] - case.bound if len(bounds) > 1 else 0.0
        split_class = int(np.argmax(gains))
        if gains[split_class] < SPLIT * (value - case.bound):
            return None
        other_rows = case.rows[subproblem.row_class != split_class]
        cases = [
            self.case(np.sort(np.append(other_rows, row)), value, bound)
            for row, bound in zip(case.rows, case.with_row, strict=True)
            if subproblem.row_class[np.searchsorted(case.rows, row)] == split_class
        ]
        return [class_index for class_index in cases if class_index is not None]

    def _probed(self, program: OptionsProgram, rows: Ints, value: float, bound: float) -> Case | None:
        """Solve a relaxed program and keep the option rows whose lower bound does not exceed `value`; None if
        no placement can be that good."""
        fixed, limit = self.problem.fixed, value * (1 + ROUNDED)
        solved = solve(program.problem, self.solver, seconds=self.seconds_left(), interrupt=self.interrupt)
        if solved.verdict == "infeasible":
            return None
        if solved.verdict != "optimal":
            return Case(rows, bound, np.full(len(rows), bound))
        cutoff = (limit - fixed) / program.scale * (1 + ROUNDED)
        seconds_left = self.seconds_left()
        bounds = np.array(
            bounds_with_variable(program.problem, solved, program.x, cutoff, self.interrupt, seconds_left)
        )
        with_row = np.maximum(bounds * (1 - ROUNDED) * program.scale + fixed, bound)
        open_rows = np.flatnonzero(with_row <= limit)
        class_bounds = [with_row[program.of.rows_of(one)].min() for one in range(len(program.of.members))]
        if not math.isfinite(max(class_bounds)) or max(class_bounds) > limit:
            return None
        return Case(
            rows[open_rows], float(max(class_bounds)), np.maximum(with_row[open_rows], max(class_bounds))
        )


def heaviest_class(problem: Problem) -> int | None:
    """Class with a single unit whose shards have the largest minimum load; None if there is none."""
    least_loads = [
        float(problem.shard_load[rows].sum(axis=1).min()) if count == 1 else 0.0
        for count, rows in (
            (count, problem.rows_of(class_index)) for class_index, count in enumerate(problem.counts.tolist())
        )
    ]
    heaviest = int(np.argmax(least_loads)) if least_loads else 0
    return heaviest if least_loads and least_loads[heaviest] > 0 else None


FLAT_PLACES = 20_000
"""Largest number of place variables in the program of record."""
FLAT_GAP = 1e-7
"""Relative gap at which the program of record ends."""
ENOUGH = 0.01
"""Relative gap at which a search ends early: prices of tables are known to a few per cent."""
ENOUGH_SHARE, ENOUGH_SECONDS = 1 / 20, 3.0
"""Share of the time limit, and least seconds, after which that gap is enough; before, a search goes on to prove the
optimum."""


Progress = Callable[[float, float, str], None]
"""Callback with best objective, proven bound, and the current activity."""


@dataclass(slots=True, kw_only=True)
class Search:
    """State of one sharding search, with incumbent, lower bound, time limit and interrupt."""

    problem: Problem
    solver: SolverName
    interrupt: Interrupt
    time_limit: float = math.inf
    """Limit in seconds; a search within `ENOUGH` of the optimum ends after `ENOUGH_SHARE` of it, or
    `ENOUGH_SECONDS`."""
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
        """Remaining seconds of the search; the limit shrinks once the gap is small enough."""
        limit = self.time_limit
        if self.gap <= ENOUGH:
            limit = min(limit, max(ENOUGH_SECONDS, ENOUGH_SHARE * limit))
        return self.start + limit - time.monotonic()

    @property
    def gap(self) -> float:
        """Relative gap (value − bound) / value; 1 without a placement that fits."""
        if self.best is None:
            return 1.0
        return max(0.0, 1 - self.bound / self.value) if self.value > 0 else 0.0

    def stopped(self) -> bool:
        """Whether the search has to stop, by time or by the user."""
        if self.interrupt.pressed or self.seconds_left <= 0:
            self.left_open = True
        return self.left_open

    def report(self, doing: str) -> None:
        """Pass incumbent, bound and current activity to the progress callback."""
        if self.progress is not None:
            self.progress(self.value, self.bound, doing)

    def offer(self, placement: Placement) -> bool:
        """Keep a placement as incumbent if all memories suffice and the objective improves; returns whether
        memories suffice."""
        use = use_of(self.problem, placement)
        if not use.fits:
            return False
        if (value := self.problem.value(use.load)) < self.value:
            self.best, self.value = placement, value
        return True

    @property
    def scale(self) -> float:
        """Unit of time in the integer programs, in seconds."""
        return float(self.problem.least_stages.sum()) or 1.0

    def begin(self) -> Placement:
        """Compute the greedy placement and offer it as first incumbent."""
        first = greedy(self.problem, self.scale)
        self.offer(first)
        self.greedy_value = self.value
        return first

    def prove(self, bound: float) -> None:
        """Raise the proven lower bound, at most to the incumbent's value."""
        self.bound = max(self.bound, min(bound, self.value))


def prove_with_places(search: Search, open_rows: Ints, search_further: Callable[[Ints], None]) -> None:
    """Solve the program with places over open option rows, subproblem by subproblem, lowest bound first.

    Once cases have raised the bound, `search_further` searches further in their rows, before the solver runs.
    """
    problem = search.problem
    if _places(problem, open_rows) > FLAT_PLACES:
        search_further(open_rows)
        return
    search.flat = True
    search.report("proving")
    worst = _worst(problem)
    cases = Cases(problem, search.solver, worst, search.interrupt, lambda: search.seconds_left)
    open_cases = (
        [open_case] if (open_case := cases.case(open_rows, min(search.value, worst), search.bound)) else []
    )
    decided = math.inf  # the least bound of cases that the solver is done with
    searched = False
    while open_cases and not search.stopped():
        case = min(open_cases, key=lambda candidate: candidate.bound)
        search.prove(min(case.bound, decided))
        search.report("proving")
        open_cases.remove(case)
        value = min(search.value, worst)
        if case.bound > value * (1 + ROUNDED):
            continue
        if not case.has_places:
            parts = cases.split(case, value)
            if parts is None:
                parts = [open_case] if (open_case := cases.with_places(case, value)) else []
            open_cases += parts
        elif not searched:
            open_cases.append(case)
            search_further(np.unique(np.concatenate([candidate.rows for candidate in open_cases])))
            searched = True
        else:
            other_bounds = min([decided, *(candidate.bound for candidate in open_cases)])
            bound, is_done = _solve_case(search, case, value, other_bounds)
            if is_done:
                decided = min(decided, bound)
            else:
                open_cases.append(replace(case, bound=bound))
    if open_cases:
        return
    if search.best is None:
        raise no_room_error(problem)
    search.prove(decided)


def _solve_case(search: Search, case: Case, scale: float, other_bounds: float) -> tuple[float, bool]:
    """Solve one subproblem with places, and return its bound and whether it was solved to the end. No other
    subproblem has a bound below `other_bounds`.

    It is left to a later turn once others hold the bound back by more than half of what is left to prove.
    """
    problem = search.problem.with_rows(case.rows)
    program = PlacesProgram(problem, scale, ordered=search.solver == "cbc", first=heaviest_class(problem))
    enough = (other_bounds + scale) / 2 if other_bounds < math.inf else math.inf

    def watch(_: float, bound: float) -> bool:
        proved = bound * scale + problem.fixed
        if math.isfinite(bound):
            search.prove(min(proved, other_bounds))
        search.report("proving")
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
        placement = program.placement()
        search.offer(Placement(case.rows[placement.row], placement.places))
    bound = max(case.bound, solved.bound * scale + problem.fixed)
    search.prove(min(bound, other_bounds))
    is_done = solved.verdict != "stopped"
    if not is_done and bound <= enough:
        search.left_open = True
    return bound, is_done


def _places(problem: Problem, rows: Ints) -> int:
    """Number of placement variables (shards on a GPU or node) that these option rows need."""
    places = np.where(problem.on_nodes, problem.nodes, problem.gpus)
    return int(places[rows][problem.shards[rows] > 0].sum())


def _worst(problem: Problem) -> float:
    """Upper bound in seconds on the objective of any sharding."""
    lengths = problem.base_load.max(axis=0) + problem.stage_floors
    full = problem.everywhere_load + problem.shard_load * problem.shards[:, None]
    for class_index, count in enumerate(problem.counts.tolist()):
        lengths = lengths + count * full[problem.rows_of(class_index)].max(axis=0)
    return float(lengths.sum()) + problem.fixed


PROVEN = 1e-9
"""Relative gap at which nothing is left to prove."""
FLAT_CLASSES = 100
"""Largest number of distinct tables with places in the program; with more, options alone are."""
OPTIONS_GAP = 1e-4
"""Relative gap at which the program over options ends and local search is done."""
OPTIONS_SECONDS = 5.0
ROUNDS = 300
"""Largest number of rounds of local search."""
PATIENCE = 12
"""Rounds without improvement that end local search; with few distinct tables, three times as many or one per unit."""
SEEDS = 4
"""Local searches where few distinct tables leave a gap of more than SMALL_GAP."""
SMALL_GAP = 5e-3


def run(search: Search) -> None:
    """Run the sharding search until optimality is proved, time is up or the user interrupts.

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
            raise no_room_error(problem)
        search.prove(search.value)
        return
    reduced = _bound_over_options(search, scale)
    counts = _best_options(search, scale, reduced)
    search.report("placing")
    begin = start if counts is None else place_units(problem, scale, counts)
    has_few_classes = len(problem.members) <= FLAT_CLASSES
    until = time.monotonic() + search.seconds_left / (6 if has_few_classes else 1)
    for start_placement in [begin] if search.offer(begin) else [begin, start]:
        if search.gap > OPTIONS_GAP and time.monotonic() < until:
            _improve(search, scale, reduced.rows(search.value), start_placement, 0, until)
    if has_few_classes and search.gap > PROVEN and not search.stopped():
        open_rows = reduced.rows(search.value)
        prove_with_places(search, open_rows, lambda rows: _restart_local_search(search, scale, rows, begin))
    if search.best is None:
        if search.interrupt.pressed:
            raise KeyboardInterrupt
        if search.stopped():
            raise RunError("no sharding that fits was found in time", hint="allow more with --time-limit")
        raise RunError(
            "no sharding that fits was found, nor shown that there is none", hint="more memory gives it room"
        )


def _improve(search: Search, scale: float, rows: Ints, start: Placement, seed: int, until: float) -> None:
    """Improve a placement by local search within some option rows, and offer the result as incumbent."""
    problem = search.problem
    units, has_few_classes = len(problem.unit_class), len(problem.members) <= FLAT_CLASSES
    state = State(problem, scale)
    state.load(start)
    state.keep_to(rows)
    placement = improve(
        state,
        rounds=ROUNDS,
        patience=min(3 * PATIENCE, units) if has_few_classes else PATIENCE,
        seed=seed,
        target=(search.bound - problem.fixed) / scale * (1 + OPTIONS_GAP),
        stop=lambda: search.stopped() or time.monotonic() > until,
    )
    search.offer(placement)


def _restart_local_search(search: Search, scale: float, rows: Ints, start: Placement) -> None:
    """Repeat local search with other random seeds while the gap is large."""
    until = time.monotonic() + search.seconds_left / 4
    for seed in range(1, SEEDS):
        if search.gap <= SMALL_GAP or time.monotonic() > until:
            return
        _improve(search, scale, rows, start, seed, until)


@dataclass(frozen=True, slots=True)
class _Reduced:
    """Bound and reduced costs from the linear relaxation of the program over options."""

    bound: float
    extra: Array
    """(R,) least seconds that a unit in each row would add to the bound."""

    def rows(self, value: float) -> Ints:
        """Option rows that a placement as good as `value` may use, by reduced cost."""
        return np.flatnonzero(self.bound + self.extra <= value * (1 + ROUNDED))


def _bound_over_options(search: Search, scale: float) -> _Reduced:
    problem = search.problem
    search.report("bounding")
    program = OptionsProgram(problem, scale, integer=False)
    solved = solve(program.problem, search.solver, seconds=search.seconds_left, interrupt=search.interrupt)
    if solved.verdict == "infeasible":
        raise no_room_error(problem)
    if solved.verdict != "optimal":
        search.left_open = True
        return _Reduced(0.0, np.zeros(len(problem.picks)))
    bound = solved.bound * (1 - ROUNDED) * scale + problem.fixed
    search.prove(bound)
    extra = np.array([max(one.dj or 0.0, 0.0) for one in program.x]) * scale
    return _Reduced(bound, extra)


def _best_options(search: Search, scale: float, reduced: _Reduced) -> Ints | None:
    """Number of units in each option row in the best solution of the integer program over options; None without
    a solution."""
    if search.stopped():
        return None
    open_rows = reduced.rows(search.value)
    program = OptionsProgram(search.problem.with_rows(open_rows), scale)
    solved = solve(
        program.problem,
        search.solver,
        seconds=min(OPTIONS_SECONDS, search.seconds_left / 3),
        gap=OPTIONS_GAP / 10,
        interrupt=search.interrupt,
    )
    if solved.verdict == "infeasible":
        if search.best is None:
            raise no_room_error(search.problem)
        search.prove(search.value)
        return None
    search.prove(solved.bound * (1 - ROUNDED) * scale + search.problem.fixed)
    if not solved.has_solution:
        return None
    counts = np.zeros(len(search.problem.picks), dtype=np.int64)
    counts[open_rows] = program.row_counts()
    return counts
