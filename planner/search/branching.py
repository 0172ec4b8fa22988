"""Branch and bound over the candidates of a question: the k best layouts with their proof, or an error that
says why nothing was placed.

First some rows of every kind are opened and placed, for an early incumbent. Then closed entries are opened
and rows get a good placement, best bound first, until no remaining bound is below the k-th best time. Rows
whose bound is still below it are placed exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.layout import Layout
from cost_models.errors import NothingPlacedError
from cost_models.estimate import Estimate
from cost_models.pipeline.pricing import scenarios_of
from cost_models.risk import num_weighed
from cost_models.schedules.timeline import CriticalPath
from cost_models.specs.choices import Schedule
from planner.exact.counts import good_of_numbers
from planner.exact.program import Survivor, best_placement, solve_record
from planner.exact.solvers import SolverName
from planner.objectives import Certificate, ClosingProgram, Effort
from planner.placement.leaf import TOLERANCE, Placement, Task, gap_of
from planner.placement.mixes import good_placement
from planner.placement.patterns import best_pattern
from planner.search.candidates import UniformCandidates, lowest
from planner.search.pools import PoolCandidates
from planner.space.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The k best layouts of a search, best first, each with its best placement, and the certificate that
    nothing else is better."""

    estimates: tuple[Estimate, ...]
    certificate: Certificate
    interrupted: bool = False
    """Whether Ctrl-C ended the search early."""
    searches: tuple[BranchAndBound, ...] = field(default=(), repr=False, compare=False)
    """Final state of each search; follow-up queries resume from it. It holds as much memory as searching does."""

    @property
    def best(self) -> Estimate:
        """Estimate of the fastest layout."""
        return self.estimates[0]


def out_of_time(space: str = "") -> NothingPlacedError:
    """Error to raise if the user's time limit is over before any layout was placed."""
    return NothingPlacedError(
        "time ran out before any layout was placed", hint="allow more with --time-limit", space=space
    )


def by_speed(estimate: Estimate) -> tuple[float, float, int, str]:
    """Sort key of estimates, fastest first, then least peak memory, then the shortest name."""
    name = str(estimate.layout)
    return estimate.compared_seconds, estimate.peak_bytes, len(name), name


MAX_ILP_LAYOUTS = 64
"""Maximum number of layouts in the integer program that closes the proof."""
TIE_TOLERANCE = 1e-6
"""Relative margin by which a bound must exceed the time to beat before the layout is known not to tie."""
FEWEST_REFINED, MOST_REFINED = 32, 1024
"""Layouts that get their capacity bound in one batch: few while most stay open, doubling while most are discarded."""
MAX_ROUNDS, MIN_ROUNDS = 24, 2
"""Maximum and minimum placement rounds of a layout without a time limit, or in one of many searches; fixed, so results
are deterministic. The maximum is three times what any finished placement needed; each abandoned layout halves it."""
SHARED_SEARCH_ROUNDS = MAX_ROUNDS // 3
"""Maximum placement rounds in one of many searches: what any finished placement needed."""
COUNT_INTERVAL = 0.1
"""Seconds between counts of undecided layouts: counting takes longer than many steps of the search."""

MOST_NEAR = 100_000
"""Maximum number of layouts examined for the nearest."""
PLACEMENTS_PER_LAYOUT = 3
"""Maximum placements tried for each requested layout: some layouts fit nowhere."""

Candidates = UniformCandidates | PoolCandidates
"""Search space of one question."""
Progress = Callable[[int, int, float, float], None]
"""Called with (layouts decided, layouts in all, best seconds, proven bound in seconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Settings of one search, such as the number of layouts to return and the time limit."""

    top: int = 1
    """Number of layouts to return, fastest first."""
    must_beat_seconds: float = math.inf
    """Search only for layouts faster than this many seconds. The result may be empty."""
    time_limit: float | None = None
    """Seconds; None: no limit."""
    on_progress: Progress | None = None
    keep_on_interrupt: bool = False
    """Whether Ctrl-C returns the best so far."""
    closes_with_ilp: bool = True
    """Whether an integer program closes the proof."""
    solver: SolverName | None = None
    """Solver of that program; None: HiGHS if installed."""
    proof: Effort = "search"
    """Effort: "bounds" skips the integer program, "any" stops at the first plan that fits."""
    space: Space | None = None
    """Layouts to search, if known: the question's, or only those that may be fast enough."""


OPENED, REFINED, PLACED, ABANDONED, DECIDED = range(5)
"""State of a row: with a quick bound; with a capacity bound; with a good placement, or none found; left by exact
placement with time to spare, so that only the row's bound is proven; and with its best placement known."""


class Rows:
    """Opened layouts of one search with bound and decision; every column has shape (N,)."""

    def __init__(self) -> None:
        self.bound: Array = np.empty(0)
        """Proven lower bound, seconds; infinite where nothing fits, the best step where the row is decided."""
        self.first_bound: Array = np.empty(0)
        """Bounds before any placement, seconds."""
        self.state: Ints = np.empty(0, dtype=np.int64)
        self.solved: Bools = np.empty(0, dtype=np.bool_)
        """Whether the best placement was searched for and proven."""

    @property
    def decided(self) -> Bools:
        """Mask of the rows whose best placement is known."""
        decided: Bools = self.state == DECIDED
        return decided

    def add(self, bound: Array) -> None:
        """Append rows for newly opened layouts with their quick bounds."""
        for name, column in vars(self).items():
            added = bound if column.dtype == bound.dtype else np.zeros(len(bound), dtype=column.dtype)
            setattr(self, name, np.concatenate([column, added]))

    def refine(self, rows: Ints, bound: Array) -> None:
        """Raise the bounds of some rows to their capacity bounds."""
        self.bound[rows] = self.first_bound[rows] = np.maximum(self.bound[rows], bound)
        self.state[rows] = np.maximum(self.state[rows], REFINED)

    def open_below(self, seconds: float) -> Bools:
        """Mask of undecided rows that may take less than `seconds`, (N,)."""
        return ~self.decided & np.isfinite(self.bound) & (self.bound < seconds)

    def decide(self, row: int, seconds: float) -> None:
        """Mark a row as decided, because none of its placements is faster than `seconds`, or the row is no
        longer of interest."""
        self.bound[row], self.state[row] = max(self.bound[row], seconds), DECIDED

    def swap(self, first: int, second: int) -> None:
        """Exchange bounds and decisions of two rows with equal costs."""
        for column in (self.bound, self.state, self.solved):
            column[[first, second]] = column[[second, first]]


class Prover:
    """Base class of searches that prove optimality, with candidates, incumbents and time."""

    def __init__(self, candidates: Candidates, settings: SearchSettings) -> None:
        self.candidates, self.top, self._cut_off = candidates, settings.top, settings.must_beat_seconds
        self._start, self._on_progress = time.monotonic(), settings.on_progress
        self._deadline = math.inf if settings.time_limit is None else self._start + settings.time_limit
        self.best: dict[int, tuple[Placement, float]] = {}
        """Row → the best placement known and its step time."""

    @property
    def kth_seconds(self) -> float:
        """Step seconds that a layout must beat, those of the k-th best known, or the cut-off of the search."""
        times = sorted(seconds for _, seconds in self.best.values())
        return min(times[self.top - 1], self._cut_off) if len(times) >= self.top else self._cut_off

    def leaders(self) -> list[tuple[int, Placement]]:
        """Rows and placements of the k best layouts, and of every row that ties with the k-th."""
        worst = self.kth_seconds * (1 + TOLERANCE)
        return [(row, placement) for row, (placement, seconds) in self.best.items() if seconds <= worst]

    def _threshold(self) -> float:
        return self.kth_seconds * (1 - TOLERANCE)

    def _seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def _best_seconds(self) -> float:
        return min((seconds for _, seconds in self.best.values()), default=math.inf)

    def _certificate(self, bound: float, **parts: Any) -> Certificate:
        """Certificate with the given bound, in seconds, and numbers of layouts by decision."""
        best = self._best_seconds()
        return Certificate(
            top=self.top,
            space=self.candidates.in_words(),
            layouts=len(self.candidates),
            bound=bound,
            gap=gap_of(best, bound) if math.isfinite(best) else 1.0,
            seconds=time.monotonic() - self._start,
            **parts,
        )


class BranchAndBound(Prover):
    """Branch and bound over layouts, with bound, incumbent and decision of every row."""

    def __init__(self, candidates: Candidates, settings: SearchSettings) -> None:
        super().__init__(candidates, settings)
        self._paths: dict[tuple[Schedule, int, int], list[CriticalPath]] = {}
        """(schedule, pp, microbatches) → known critical paths: they hold for any costs of the same pipeline."""
        self._representative_row: dict[bytes, int] = {}
        """Costs → the row that represents all layouts with these costs."""
        self.rows = Rows()
        self.settled: ClosingProgram | None = None
        self._refined_together = FEWEST_REFINED
        self._rounds = MAX_ROUNDS
        self._undecided, self._counted_at = 0, -math.inf
        """Undecided layouts at the last count, and its time in seconds."""

    def names(self, rows: Bools) -> set[str]:
        """Layouts of the rows in a mask, (N,), in layout notation."""
        return {str(self.candidates.layout(row)) for row in np.flatnonzero(rows).tolist()}

    @property
    def is_unfinished(self) -> bool:
        """Whether some undecided layout may still be better than the k best."""
        return bool(self._open_rows().any()) or self.candidates.least_closed() < self._threshold()

    @property
    def abandoned(self) -> int:
        """Number of undecided layouts, if exact placement was abandoned for all though time remains; 0 if any
        can still be decided."""
        rows = self._open_rows()
        if (
            rows & (self.rows.state != ABANDONED)
        ).any() or self.candidates.least_closed() < self._threshold():
            return 0
        return int(rows.sum())

    def _open_rows(self) -> Bools:
        """Mask of undecided rows that may still belong to the k best, (N,)."""
        return self.rows.open_below(self._threshold())

    def run(self, effort: Effort = "search") -> None:
        """Run the search, placing every row whose bound is below the time to beat, first well and then
        exactly; with effort `any` until one plan fits."""
        if effort != "search":
            self._rounds = min(self._rounds, SHARED_SEARCH_ROUNDS)
        while self._seconds_left() > 0 and not (effort == "any" and self.best):
            has_closed = self.candidates.least_closed() < self._threshold()
            row = self._next(self.rows.state < PLACED)
            if row is None and not has_closed:
                break
            if has_closed and (row is None or math.isfinite(self.kth_seconds)):
                self.rows.add(self.candidates.open(self._threshold()))
            if row is not None:
                self.rows.state[row] = PLACED
                self._place(row)
            self._report()
        while (
            not (effort == "any" and self.best)
            and (row := self._next(self.rows.state != ABANDONED)) is not None
        ):
            self._solve(row, effort)
            self._report()
        self._counted_at = -math.inf  # the last report is exact
        self._report()

    def close_proof(self, solver: SolverName | None = None) -> None:
        """Finish the proof by one integer program over the layouts that neither bounds nor label setting
        discard.

        Layouts that differ only in name count as one. Does nothing if the search is unfinished, if nothing found beats
        the cut-off, if more than `MAX_ILP_LAYOUTS` layouts are left, or if the best has replicas in several pools: the
        program has no shares of microbatches.
        """
        best_seconds = self._best_seconds()
        worst = best_seconds * (1 + TOLERANCE)
        if (
            self.is_unfinished
            or not self.best
            or best_seconds > self._cut_off
            or scenarios_of(self.candidates.question)  # not supported by the program
            or self.candidates.leaf(min(self.best, key=lambda row: self.best[row][1])).has_replicas
        ):
            return
        self._refine(np.flatnonzero((self.rows.first_bound <= worst) & (self.rows.state == OPENED)))
        is_beaten = self.rows.solved.copy()  # rows whose proven best placement takes longer
        for row, (_, seconds) in self.best.items():
            is_beaten[row] &= seconds > worst
        rows = np.flatnonzero((self.rows.first_bound <= worst) & ~is_beaten).tolist()
        beaten = {self.candidates.leaf(row).key for row in np.flatnonzero(is_beaten).tolist()}
        leaves: dict[bytes, Survivor] = {}
        for row in rows:
            leaf = self.candidates.leaf(row)
            if leaf.key in beaten or leaf.has_replicas:
                continue
            incumbent = self.best.get(row)
            paths = self._paths.get((leaf.schedule, leaf.pp, leaf.microbatches), [])
            leaves.setdefault(leaf.key, Survivor(leaf, incumbent[0] if incumbent else None, paths))
            if len(leaves) > MAX_ILP_LAYOUTS:
                return
        survivors = [*leaves.values()]
        self.settled = solve_record(survivors, best_seconds, deadline=self._deadline, solver=solver)

    def _next(self, eligible: Bools) -> int | None:
        """Eligible undecided row with the least bound, once that bound is refined; None without such a row or
        without time.

        While refining discards little, the best refined row is taken after every batch: an early incumbent saves more
        than the right order does.
        """
        fruitless = False
        while self._seconds_left() > 0:
            rows = np.flatnonzero(eligible & self._open_rows())
            if not len(rows):
                return None
            first = rows[np.argmin(self.rows.bound[rows])]
            if self.rows.state[first] != OPENED:
                return int(first)
            refined = rows[self.rows.state[rows] != OPENED]
            if fruitless and len(refined):
                return int(refined[np.argmin(self.rows.bound[refined])])
            batch = self._refined_together
            rows = lowest(self.rows.bound, rows[self.rows.state[rows] == OPENED], batch)
            self._refine(rows)
            discarded = 2 * int((self.rows.bound[rows] >= self._threshold()).sum()) > len(rows)
            self._refined_together = min(2 * batch, MOST_REFINED) if discarded else FEWEST_REFINED
            fruitless = not discarded
        return None

    def _refine(self, rows: Ints) -> None:
        finer = self.candidates.capacity_bounds(rows, self.kth_seconds * (1 + TIE_TOLERANCE))
        self.rows.refine(rows, finer)

    def _place(self, row: int) -> None:
        """Find a good placement of a row's layout; where patterns are few the best one, which decides the row."""
        leaf, cut_off = self.candidates.leaf(row), self.kth_seconds
        if (twin := self._representative_row.setdefault(leaf.key, row)) != row:
            self._merge_twins(twin, row, leaf.key)
            return
        if leaf.is_plain:
            placement, bound = good_of_numbers(leaf, cut_off * (1 + TIE_TOLERANCE))
            self.rows.refine(np.array([row]), np.array([bound]))
        else:
            placement = best_pattern(leaf, cut_off)
        if placement:
            self.best[row] = placement
        seconds = placement[1] if placement else cut_off
        if not leaf.is_plain or seconds <= self.rows.bound[row] * (1 + TOLERANCE):
            self.rows.decide(row, seconds)

    def _solve(self, row: int, effort: Effort) -> None:
        """Find the best placement of a row's layout exactly, if it can still be among the k best."""
        leaf, is_unlimited = self.candidates.leaf(row), math.isinf(self._deadline)
        known_paths = self._paths.setdefault((leaf.schedule, leaf.pp, leaf.microbatches), [])
        rounds = self._rounds if is_unlimited or effort != "search" else None
        incumbent, cut_off = self.best.get(row), self.kth_seconds
        solution = best_placement(Task(leaf, incumbent, cut_off, known_paths, self._deadline, rounds))
        known_paths += solution.paths
        if solution.placement is not None:
            self.best[row] = (solution.placement, solution.objective)
        self.rows.solved[row] = solution.status != "stopped"
        if solution.status == "stopped":
            self.rows.bound[row] = max(self.rows.bound[row], solution.bound)
            if self._seconds_left() > 0:
                self.rows.state[row] = ABANDONED
            self._rounds = max(self._rounds // 2, MIN_ROUNDS)
        elif solution.status == "infeasible":
            self.rows.decide(row, math.inf)
        else:
            self.rows.decide(row, solution.bound)

    def _merge_twins(self, row: int, twin: int, key: bytes) -> None:
        """Settle one of two open layouts with equal costs, so that the search goes on only with the one
        whose name is shorter."""
        lengths = [len(str(self.candidates.layout(layout_row))) for layout_row in (row, twin)]
        if lengths[1] < lengths[0]:
            self.rows.swap(row, twin)
            if (incumbent := self.best.pop(row, None)) is not None:
                self.best[twin] = incumbent
            self._representative_row[key], row, twin = twin, twin, row
        self.rows.decide(twin, self.rows.bound[twin])

    def _report(self) -> None:
        if self._on_progress is not None:
            total, now = len(self.candidates), time.monotonic()
            if now >= self._counted_at + COUNT_INTERVAL:
                self._undecided, self._counted_at = self._counts()["undecided"], now
            self._on_progress(total - self._undecided, total, self._best_seconds(), self._proven_bound())

    def _proven_bound(self) -> float:
        """Proven lower bound on the step of every covered layout, seconds, no higher than the cut-off."""
        rows = float(self.rows.bound[self._open_rows()].min(initial=math.inf))
        return min(rows, self.candidates.least_closed(), self._best_seconds(), self._cut_off)

    def _counts(self) -> dict[str, int]:
        """Numbers of layouts that are infeasible, pruned, solved and undecided, over rows and closed entries."""
        bound, layouts = self.candidates.closed_bounds()
        never, late = np.isinf(bound), bound >= self._threshold()
        infeasible, open_rows = np.isinf(self.rows.bound), self._open_rows()
        solved = self.rows.decided & ~infeasible
        return {
            "infeasible": int(infeasible.sum() + layouts[never].sum()),
            "pruned": int((~infeasible & ~solved & ~open_rows).sum() + layouts[late & ~never].sum()),
            "solved": int(solved.sum()),
            "undecided": int(open_rows.sum() + layouts[~late & ~never].sum()),
        }

    def certificate(self) -> Certificate:
        """Certificate of the search with numbers of layouts by decision, proven bound and gap."""
        question = self.candidates.question
        scenarios = num_weighed(len(scenarios_of(question)), question.risk)
        minimised = question.risk if scenarios else "none"
        parts = self._counts() | {"minimised": minimised, "scenarios": scenarios, "settled": self.settled}
        return self._certificate(self._proven_bound(), **parts)


def count_below(
    search: BranchAndBound, seconds: float, max_count: int, has_time: Callable[[], bool]
) -> int | None:
    """Number of layouts whose lower bound is below `seconds`; None if there are more than `max_count`, or time
    is over.

    Entries that the search left closed for its smaller time to beat are opened, and bounds cut off there are refined.
    """
    candidates, rows = search.candidates, search.rows
    while candidates.least_closed() < seconds:
        rows.add(candidates.open(seconds))
        if int((rows.first_bound < seconds).sum()) > max_count or not has_time():
            return None
    near = rows.first_bound < seconds
    stopped = rows.first_bound >= search.kth_seconds
    unrefined = np.flatnonzero(near & ((rows.state == OPENED) | stopped))
    rows.refine(unrefined, candidates.capacity_bounds(unrefined, seconds))
    return int((rows.first_bound < seconds).sum())


def nearest_below(
    searches: Sequence[BranchAndBound],
    seconds: float,
    max_layouts: int,
    first: Layout,
    has_time: Callable[[], bool],
) -> list[Layout]:
    """At most `max_layouts` layouts faster than `seconds`, lowest bounds first, each with a good placement.
    They differ from `first` and one another in degrees or microbatch. The result does not depend on search
    order."""
    for search in searches:
        count_below(search, seconds, MOST_NEAR, has_time)
    near = sorted(
        (float(search.rows.first_bound[row]), number, str(search.candidates.layout(row)), row)
        for number, search in enumerate(searches)
        for row in np.flatnonzero(search.rows.first_bound < seconds).tolist()
    )
    layouts, degrees, num_placed = list[Layout](), {_degrees(first)}, 0
    for _, number, _, row in near:
        candidates = searches[number].candidates
        layout = candidates.layout(row)
        if _degrees(layout) in degrees:
            continue
        if len(layouts) == max_layouts or num_placed == PLACEMENTS_PER_LAYOUT * max_layouts or not has_time():
            break
        leaf, num_placed = candidates.leaf(row), num_placed + 1
        solution = good_placement(leaf) if leaf.is_plain else best_pattern(leaf, seconds)
        if solution and solution[1] < seconds:
            degrees.add(_degrees(layout))
            layouts.append(solution[0].on(layout))
    return layouts


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.pp, layout.cp, layout.dp, layout.ep, layout.expert_tp, layout.mbs
