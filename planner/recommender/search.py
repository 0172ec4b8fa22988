"""Search for the best sharding: a greedy start, a linear relaxation over options, its rounding, a local
descent, and the integer program over options and places.

The relaxation bounds all shardings, and by its reduced costs says which option rows something better than the
incumbent may use. Where few distinct tables are left with few places, each open row is probed (a relaxed program with
a unit in it), and the program over options and places closes the proof; where it finds a sharding by which many rows
close, it begins anew without them.

A search ends by the work of the solver and by rounds, not by the clock, so that the same question has the same answer
on any machine that is fast enough for its time limit. The answer is the best sharding found with the proof of its
quality, for one question and at each number of GPUs.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Event
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from cost_models.arrays import Array, Ints
from cost_models.base import Spec
from cost_models.errors import InputError, RunError
from cost_models.recommender.options import PricedOptions
from cost_models.recommender.prices import estimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding, TablePlacement
from cost_models.units import counted
from planner.exact.solvers import (
    Solved,
    SolverName,
    available_solver,
    bounds_with_variable,
    interruptible,
    solve,
)
from planner.recommender.local_search import State, improve, place_units
from planner.recommender.problem import Objective, Placement, Problem, build_problem, no_room_error
from planner.recommender.program import OptionsProgram, PlacesProgram
from planner.recommender.restrictions import UNRESTRICTED, ShardingRestrictions, covered_options
from planner.search.search import Budget, Row, scaling_rows
from planner.space.sizes import on_whole_nodes, require_possible, resized

if TYPE_CHECKING:
    import pandas as pd

ROUNDED = 1e-7
"""Relative rounding error of a linear program's optimum, which is subtracted from bounds."""
FEWER = 0.95
"""Maximum share of option rows left after probing for which it is repeated."""
FAR_FEWER = 0.85
"""Maximum share of option rows left open by a new incumbent for which the program of record begins anew."""
FLAT_PLACES = 20_000
"""Largest number of place variables in the program of record."""
FLAT_CLASSES = 100
"""Maximum number of distinct tables for which the program of record includes places; with more it has options
only."""
FLAT_GAP = 1e-7
"""Relative gap at which the program of record ends."""
PROVEN = 1e-9
"""Relative gap at which a sharding counts as proven optimal."""
ENOUGH, ENOUGH_WORK = 0.01, 2e8
"""Relative gap that is enough, as prices of tables are known to a few per cent, and work of the solver
(`Search.solve`) for each second of the time limit after which it is. A smaller gap takes less work, by its square,
though not less than a tenth of that gap; before, a search goes on to prove the optimum."""
USUAL_SECONDS = 60.0
"""Seconds by which the solver's work is limited in a search without a time limit."""
OPTIONS_GAP, OPTIONS_WORK = 1e-4, 1e9
"""Relative gap at which the program over options and the descent end, and maximum work of the solver on it."""
PATIENCE = 12
"""Rounds without improvement after which the descent ends; with few distinct tables three times this number, or one
round per unit."""
WIDE_GAP, SEEDS = 0.048, 4
"""Relative gap above which a search of few distinct tables repeats the descent, and the number of descents, each with
another seed."""


Value = TypeVar("Value", float, Array)
Progress = Callable[[float, float, str], None]
"""Callback with best objective, proven bound, and the current activity."""


@dataclass(slots=True, kw_only=True)
class Search:
    """State of one sharding search: incumbent, lower bound, time limit and interrupt."""

    problem: Problem
    solver: SolverName
    interrupt: Event = field(default_factory=Event)
    time_limit: float = math.inf
    """Limit in seconds of the clock."""
    effort: float = USUAL_SECONDS
    """Seconds by which the solver's work is limited (`ENOUGH_WORK`)."""
    progress: Progress | None = None
    best: Placement | None = None
    value: float = math.inf
    bound: float = 0.0
    greedy_value: float = math.inf
    flat: bool = False
    """Whether the solved program included the places of shards."""
    left_open: bool = False
    """Whether the time limit or the user ended a part of the search early."""
    row_bounds: Array = field(init=False)
    """Lower bound in seconds of shardings with a unit in each option row, (R,)."""
    scale: float = field(init=False)
    """Unit of time in the descent and in the integer programs, in seconds."""
    unit: Problem = field(init=False)
    """The placement problem with all loads in the unit of time `scale`."""
    start: float = field(default_factory=lambda: time.monotonic())  # looked up when called, as tests slow it

    def __post_init__(self) -> None:
        self.scale = float(self.problem.least_stages.sum()) or 1.0
        self.unit = self.problem.in_units_of(self.scale)
        self.row_bounds = np.zeros(len(self.problem.rows.picks))

    @property
    def seconds_left(self) -> float:
        """Remaining seconds of the search."""
        return self.start + self.time_limit - time.monotonic()

    @property
    def gap(self) -> float:
        """Relative gap (value − bound) / value; 1 without a placement that fits."""
        return self.gap_of(self.value)

    def gap_of(self, value: float) -> float:
        """Relative gap between a step of `value` seconds and the lower bound; 1 if `value` is infinite."""
        return max(0.0, 1 - self.bound / value) if value > 0 else 0.0

    @property
    def has_few_classes(self) -> bool:
        """Whether the number of distinct tables is small enough for the program of record."""
        return len(self.problem.members) <= FLAT_CLASSES

    @property
    def open_rows(self) -> Ints:
        """Indices of the option rows that a placement as good as the incumbent may use."""
        return np.flatnonzero(self.row_bounds <= self.value * (1 + ROUNDED))

    def stopped(self) -> bool:
        """Whether the search has to stop because time is up or the user interrupted; sets `left_open`."""
        if self.interrupt.is_set() or self.seconds_left <= 0:
            self.left_open = True
        return self.left_open

    def report(self, doing: str) -> None:
        """Pass incumbent, bound and current activity to the progress callback."""
        if self.progress is not None:
            self.progress(self.value, self.bound, doing)

    def offer(self, placement: Placement) -> bool:
        """Store a placement as incumbent if it fits in all memories and improves the objective; returns
        whether it fits."""
        use = self.problem.use(placement)
        fits = self.problem.fits(use)
        if fits and (value := self.problem.value(use)) < self.value:
            self.best, self.value = placement, value
        return fits

    def begin(self) -> Placement:
        """Compute the greedy placement and offer it as the first incumbent."""
        first = place_units(self.unit)
        self.offer(first)
        self.greedy_value = self.value
        return first

    def prove(self, bound: float) -> None:
        """Raise the proven lower bound to `bound` seconds, at most to the incumbent's value; an infinite
        bound proves the incumbent optimal.

        Raises:
            DoesNotFitError: it is infinite, without an incumbent.
        """
        if bound == math.inf and self.best is None:
            raise no_room_error(self.problem)
        self.bound = max(self.bound, min(bound, self.value))

    def seconds(self, lengths: Value) -> Value:
        """Convert `lengths`, the sum of the stages' lengths or a bound on it, from the problem's unit of time
        to step seconds."""
        return lengths * self.scale + self.problem.fixed

    def solve(
        self,
        program: OptionsProgram,
        gap: float = 0.0,
        is_enough: Callable[[float, float, float], bool] = lambda value, bound, work: False,
    ) -> Solved:
        """Solve a program within the time left, or until `is_enough(value, bound, work)` is true, with value and bound
        in seconds. Work is the number of calls by the solver, about two per node, times the square of the number of
        variables, with which the time of a node grows."""
        size, calls = len(program.problem.variables()) ** 2, count(1)

        def watch(value: float, bound: float) -> bool:
            """Whether the solver may stop at this value and bound."""
            return is_enough(self.seconds(value), self.seconds(bound), next(calls) * size)

        limit, stop = self.seconds_left, self.interrupt
        return solve(program.problem, self.solver, seconds=limit, gap=gap, interrupt=stop, watch=watch)

    def prove_by(self, solved: Solved) -> None:
        """Raise the lower bound to the bound of a solved relaxed program, which holds for all shardings."""
        self.prove(self.seconds(solved.bound * (1 - ROUNDED)))


def run(search: Search) -> None:
    """Run the sharding search until optimality is proved, the gap is small enough for the work done, time is
    up or the user interrupts.

    Raises:
        DoesNotFitError: proven that no placement fits.
    """
    problem, unit = search.problem, search.unit
    search.prove(float(problem.least_stages.sum()) + problem.fixed)
    search.row_bounds[:] = search.bound
    first = search.begin()
    if not problem.members:
        search.prove(math.inf)
        return
    search.report("bounding")
    relaxed = OptionsProgram(unit, integer=False)
    solved = search.solve(relaxed)
    search.prove_by(solved)
    if solved.verdict == "optimal":
        reduced_costs = np.array([max(one.dj or 0.0, 0.0) for one in relaxed.x])
        search.row_bounds = search.seconds(solved.bound * (1 - ROUNDED) + reduced_costs)
    else:
        search.left_open = True
    starts = [first]
    if not search.stopped():
        open_rows = search.open_rows
        options = OptionsProgram(unit.with_rows(open_rows))
        solved = search.solve(options, OPTIONS_GAP / 10, lambda value, bound, work: work > OPTIONS_WORK)
        search.prove_by(solved)
        search.report("placing")
        if solved.has_solution:
            starts.insert(0, place_units(unit, np.repeat(open_rows, options.row_counts())))
    for start in starts[:1] if search.offer(starts[0]) else starts:
        if search.gap > OPTIONS_GAP:
            _descend(search, start)
    if search.has_few_classes:
        for seed in range(1, SEEDS):
            if search.gap > WIDE_GAP:
                _descend(search, starts[0], seed)
        _prove_with_places(search)


def _descend(search: Search, start: Placement, seed: int = 0) -> None:
    """Improve a placement by local search within the open option rows, and offer the result as incumbent."""
    state = State(search.unit)
    state.load(start)
    state.keep_to(search.open_rows)
    patience = min(3 * PATIENCE, len(start.row)) if search.has_few_classes else PATIENCE
    target = (search.bound - search.problem.fixed) / search.scale * (1 + OPTIONS_GAP)
    search.offer(improve(state, patience=patience, seed=seed, target=target, stop=search.stopped))


def probe(search: Search, relaxed: type[OptionsProgram]) -> bool:
    """Close the option rows that no placement as good as the incumbent can use, and repeat while many rows
    close. Rows are judged by the relaxed program with a unit in the row. Returns whether a placement can be
    as good."""
    while not search.stopped():
        limit, rows = search.value * (1 + ROUNDED), search.open_rows
        problem = search.unit.with_rows(rows)
        program = relaxed(problem, integer=False, limit=search.value / search.scale)
        solved = search.solve(program)
        search.prove_by(solved)
        if solved.verdict != "optimal":
            return solved.verdict != "infeasible"
        cutoff = (limit - search.problem.fixed) / search.scale * (1 + ROUNDED)
        stop, seconds_left = search.interrupt, search.seconds_left
        bounds = bounds_with_variable(program.problem, solved, program.x, cutoff, stop, seconds_left)
        row_bounds = search.seconds(np.array(bounds) * (1 - ROUNDED))
        search.row_bounds[:] = np.inf
        search.row_bounds[rows] = row_bounds
        bound = max(float(row_bounds[problem.rows_of(one)].min()) for one in range(len(problem.members)))
        search.prove(bound)
        if bound > limit or bound == math.inf:
            return False
        if len(search.open_rows) > FEWER * len(rows):
            return True
    return True


def _prove_with_places(search: Search) -> None:
    """Probe the open option rows, then solve the program with places over the rows still open; repeat after a
    new incumbent that closes many rows. Does nothing if places are too many."""
    problem, work, is_open = search.problem, 0.0, True
    while is_open and search.gap > PROVEN and not search.stopped():
        rows = search.open_rows
        if int(problem.places[rows][problem.rows.shards[rows] > 0].sum()) > FLAT_PLACES:
            return
        search.flat = True
        search.report("proving")
        if probe(search, OptionsProgram) and probe(search, PlacesProgram):
            work, is_open = _solve_with_places(search, work)
        else:
            search.prove(math.inf)


def _solve_with_places(search: Search, work_before: float) -> tuple[float, bool]:
    """Solve the integer program over sharding options and places (`PlacesProgram`), with only those option
    rows that are still open. Returns the work of all such programs so far, and whether this one ended early
    because a new incumbent closes many rows."""
    rows, ordered = search.open_rows, search.solver == "cbc"
    limit, total, closes_rows = search.value / search.scale, work_before, False
    program = PlacesProgram(search.unit.with_rows(rows), ordered=ordered, limit=limit)

    def is_enough(value: float, bound: float, work: float) -> bool:
        """Whether the solver may stop: the bound closes many option rows or is close enough to the best
        value, or time is over."""
        nonlocal total, closes_rows
        if math.isfinite(bound):
            search.prove(bound)
        search.report("proving")
        value, total = min(value, search.value), work_before + work
        closes_rows = (search.row_bounds[rows] <= value).sum() < FAR_FEWER * len(rows)
        share = max(search.gap_of(value) / ENOUGH, 0.1)
        is_close = share <= 1 and total > share**2 * ENOUGH_WORK * search.effort
        return closes_rows or is_close or search.seconds_left <= 0

    solved = search.solve(program, FLAT_GAP, is_enough)
    if solved.has_solution:
        placement = program.placement()
        search.offer(placement._replace(row=rows[placement.row]))
    search.prove(search.seconds(solved.bound))
    return total, solved.verdict == "stopped" and closes_rows


def rows_of(priced: PricedOptions, sharding: Sharding) -> tuple[int, ...]:
    """Index of each table's sharding option among the priced options.

    Raises:
        InputError: tables of another number, or an option that has no price.
    """
    class_of_table, row_of = priced.class_of_table.tolist(), priced.row_of
    if len(sharding.tables) != len(class_of_table):
        raise InputError(f"the sharding has {len(sharding.tables)} tables, the prices {len(class_of_table)}")
    rows = []
    for table, (class_index, place) in enumerate(zip(class_of_table, sharding.tables, strict=True)):
        if (row := row_of.get((class_index, place.option))) is None:
            raise InputError(f"{priced.name_of(table)} cannot be held as `{place.option}`: it has no price")
        rows.append(row)
    return tuple(rows)


Method = Literal["flat", "two levels"]
"""Method of a proof, `flat` for options and places in one program, or `two levels` for a bound over options
with places by local search."""


class ShardingCertificate(Spec):
    """Proven lower bound on the objective over all covered shardings, and the gap of the sharding found.
    Method and solver are not saved in plan files."""

    objective: Objective
    space: str
    """Text that says which shardings the proof covers."""
    method: Method | None = None
    solver: str = ""
    tables: int
    distinct: int
    """Number of tables that differ by prices or restrictions."""
    options: int
    """Number of options, over distinct tables."""
    value: float
    """Objective of the sharding found, seconds."""
    bound: float
    """Proven lower bound on the objective of any covered sharding, seconds."""
    gap: float
    """(value − bound) / value; 0 proves that the sharding is optimal."""
    greedy: float | None
    """Objective of the greedy sharding, seconds; None if that sharding does not fit."""
    undecided: bool = False
    """Whether the search ended before it was done, by the time limit or by the user."""
    seconds: float = Field(default=0.0, exclude=True)
    """Seconds of the search."""


class ShardingAnswer(NamedTuple):
    """Best sharding found, with the certificate of its quality."""

    sharding: Sharding
    rows: tuple[int, ...]
    """Index into the priced options of each table's sharding option, (T,)."""
    certificate: ShardingCertificate
    interrupted: bool = False
    """Whether Ctrl-C ended the search; the answer is then the best found so far."""


POINT_SECONDS = 20.0
"""Time limit of one point of a curve, seconds; its answer is then the best found."""


def plan_sharding(
    priced: PricedOptions,
    *,
    objective: Objective = "step",
    restrictions: ShardingRestrictions = UNRESTRICTED,
    budget: Budget | None = None,
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> ShardingAnswer:
    """Search for the best sharding at the given prices, and prove how far from optimal it can be.

    After `seconds`, or where the budget's time ends, or on Ctrl-C if the budget keeps interrupts, it is the best so far
    with the gap proved so far.

    Raises:
        InputError: restrictions that contradict the prices or one another.
        DoesNotFitError: proven that no sharding fits.
        RunError: time ran out before any sharding that fits was found.
        KeyboardInterrupt: the user ended it, unless interrupts are kept.
    """
    budget, start = budget or Budget(), time.monotonic()
    problem, limit = (
        build_problem(priced, objective, restrictions),
        min(budget.time_limit or math.inf, seconds),
    )
    search = Search(
        problem=problem,
        solver=budget.solver or available_solver(),
        time_limit=min(budget.seconds_left, seconds),
        effort=limit if limit < math.inf else USUAL_SECONDS,
        progress=progress,
    )
    with interruptible(search.interrupt):
        run(search)
    ended = search.interrupt.is_set()
    if ended and not (budget.keep_on_interrupt and search.best):
        raise KeyboardInterrupt
    if search.best is None:
        if search.stopped():
            raise RunError("no sharding that fits was found in time", hint="allow more with --time-limit")
        hint = "more memory gives it room"
        raise RunError("no sharding that fits was found, nor shown that there is none", hint=hint)
    certificate = certificate_of(search, objective, time.monotonic() - start)
    placements = dict(problem.preplaced)
    for unit, row, at in zip(problem.units, search.best.row.tolist(), search.best.places, strict=True):
        placements |= {table: (pick, at) for table, pick in zip(unit, problem.rows.picks[row], strict=True)}
    in_order = [placements[table] for table in range(len(placements))]
    tables = tuple(TablePlacement(priced.options[row], tuple(sorted(at))) for row, at in in_order)
    return ShardingAnswer(Sharding(tables), tuple(row for row, _ in in_order), certificate, ended)


def certificate_of(search: Search, objective: Objective, seconds: float = 0.0) -> ShardingCertificate:
    """Certificate of a search's incumbent; `seconds` is the duration of the search, and the field `space`
    describes the shardings that the proof covers."""
    problem, priced = search.problem, search.problem.priced
    used = [priced.options[pick] for picks in problem.rows.picks for pick in picks]
    forms = sorted({str(option.form) for option in used})
    forms += ["copies of hot rows"] * any(option.hot for option in used)
    tiers = " and ".join(sorted({option.tier for option in used}))
    places = counted(priced.gpus, "GPU") + f" in {counted(priced.nodes, 'node')}" * (priced.nodes > 1)
    units = f"{counted(len(problem.units), 'table')}, {len(problem.members)} of them distinct"
    fixed = f"; {counted(len(problem.preplaced), 'table')} where said" if problem.preplaced else ""
    return ShardingCertificate(
        objective=objective,
        space=f"{units}, held as {', '.join(forms)} in memory of {tiers}, on all places of {places}{fixed}",
        method="flat" if search.flat else "two levels",
        solver=search.solver,
        tables=int(priced.counts.sum()),
        distinct=len(problem.members),
        options=len(problem.rows.picks),
        value=search.value,
        bound=search.bound,
        gap=search.gap if search.gap > PROVEN else 0.0,
        greedy=search.greedy_value if math.isfinite(search.greedy_value) else None,
        undecided=search.left_open and search.gap > PROVEN,
        seconds=seconds,
    )


def best_sharding(
    question: RecommenderQuestion, budget: Budget, restrictions: ShardingRestrictions, seconds: float
) -> ShardingAnswer | None:
    """Search for the best sharding of a question in the budget's remaining time; None if no time is left or
    no sharding was found in time.

    `seconds` limits this search alone.

    Raises:
        InfeasibleError: nothing fits, which is proven.
    """

    def search() -> ShardingAnswer:
        """Search for the best sharding within the given seconds."""
        priced = covered_options(question, restrictions)
        return plan_sharding(priced, restrictions=restrictions, budget=budget, seconds=seconds)

    return budget.attempt(search)


def sharding_scaling_frame(
    question: RecommenderQuestion, gpu_counts: Sequence[int], kinds: Sequence[str], budget: Budget
) -> pd.DataFrame:
    """Data frame of the best sharding at each number of GPUs, with a fixed batch (strong scaling) and a fixed
    batch per GPU (weak scaling).

    Columns: `kind`, `gpus`, `global_batch`, `held` (tables by option), `step_seconds`, `samples_per_second`, `gap`,
    `longest` (the stage that takes most), and seconds of each stage by its name. Left out are numbers of GPUs on which
    nothing fits, over which the batch does not divide, and those the budget's time did not reach.

    Raises:
        InputError: numbers of GPUs that the cluster cannot have.
    """
    import pandas as pd

    on_nodes = on_whole_nodes(question)
    require_possible(on_nodes.cluster, gpu_counts)

    def row_at(gpus: int, samples: int) -> Row | None:
        """Row of the best sharding with a number of GPUs and samples per step; None if there is none."""
        sized = resized(on_nodes, gpus, samples)
        answer = best_sharding(sized, budget, UNRESTRICTED, POINT_SECONDS)
        if answer is None:
            return None
        priced = estimate(sized, answer.sharding)
        form_counts = Counter(str(placed.option) for placed in answer.sharding.tables)
        words = ", ".join(f"{count} {option}" for option, count in form_counts.most_common())
        row: Row = {"gpus": gpus, "global_batch": sized.training.global_batch, "held": words}
        row |= {"step_seconds": priced.step_seconds, "samples_per_second": priced.samples_per_second}
        longest = max(priced.stages, key=lambda name: priced.stages[name])
        return row | {"gap": answer.certificate.gap, "longest": longest, **priced.stages}

    return pd.DataFrame(scaling_rows(question, gpu_counts, kinds, budget, row_at))
