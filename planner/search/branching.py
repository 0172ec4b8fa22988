"""Branch and bound over the candidate layouts of a question, which finds the k best with a proof or says why
no layout was placed.

First some rows of every kind are opened and placed, for an early incumbent. Then unopened entries are opened
and rows get a good placement, best bound first, until no remaining bound is below the k-th best time. Rows
whose bound is still below it are placed exactly.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.layout import Layout
from cost_models.errors import NothingPlacedError
from cost_models.estimate import Estimate
from cost_models.pipeline.pricing import scenarios_of
from cost_models.risk import num_weighed
from cost_models.schedules.timeline import CriticalPath
from planner.exact.program import Pipeline, best_placement, good_of_numbers, pipeline_of, solve_record
from planner.exact.solvers import SolverName
from planner.objectives import Certificate, ClosingProgram, Effort, Proof
from planner.placement.leaf import TOLERANCE, Placement, Task, gap_of
from planner.placement.mixes import good_placement
from planner.placement.patterns import best_pattern
from planner.search.candidates import UniformCandidates, lowest
from planner.search.pools import PoolCandidates
from planner.space.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Result of a search: estimates of the k best layouts, best first, each with its best placement of
    blocks, and the certificate of optimality."""

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
    """Create the error that time ran out before any layout was placed."""
    hint = "allow more with --time-limit"
    return NothingPlacedError("time ran out before any layout was placed", hint=hint, space=space)


def by_speed(estimate: Estimate) -> tuple[float, float, int, str]:
    """Sort key of an estimate: step seconds, then peak bytes, then length of the layout's name, then the
    name."""
    name = str(estimate.layout)
    return estimate.compared_seconds, estimate.peak_bytes, len(name), name


MAX_ILP_LAYOUTS = 64
"""Maximum number of layouts in the integer program that closes the proof."""
TIE_TOLERANCE = 1e-6
"""Relative margin by which a bound must exceed the time to beat before the layout is known not to tie."""
FEWEST_REFINED, MOST_REFINED = 32, 1024
"""Minimum and maximum number of layouts that get their capacity bound in one batch, few while most stay open,
doubling while most are discarded."""
MAX_ROUNDS, MIN_ROUNDS = 24, 2
"""Maximum and minimum placement rounds of a layout without a time limit, or in one of many searches; fixed, so results
are deterministic. The maximum is three times what any finished placement needed, and in one of many searches a third
of that; each abandoned layout halves it."""
COUNT_INTERVAL = 0.5
"""Seconds between counts of undecided layouts, as a count takes longer than many steps of the search."""

MAX_COUNTED = 100_000
"""Number of layouts below a time at which counting them stops."""
MAX_COMPARED = 8
"""Maximum number of layouts compared by scenarios, the fastest by prediction; each takes some hundredths of a
second."""
MAX_PLACEMENTS = 3 * (MAX_COMPARED - 1)
"""Maximum number of layouts that `layouts_below` places, more than it returns since some do not fit."""

Candidates = UniformCandidates | PoolCandidates
"""Candidate layouts of one question, on one kind of GPU or several pools."""
Progress = Callable[[int, int, float, float], None]
"""Function called with (layouts decided, layouts in all, best step seconds, proven bound in seconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Settings of one search, such as the number of layouts to return and the time limit."""

    top: int = 1
    """Number of layouts to return, fastest first."""
    must_beat_seconds: float = math.inf
    """Upper limit of step seconds, so that only faster layouts are searched for. The result may be empty."""
    time_limit: float = math.inf
    """Time limit of the search, seconds; infinite for no limit."""
    on_progress: Progress | None = None
    keep_on_interrupt: bool = False
    """Whether Ctrl-C returns the best layouts so far, rather than raising."""
    closes_with_ilp: bool = True
    """Whether an integer program closes the proof of a branch and bound."""
    solver: SolverName | None = None
    """Solver of the integer program; for None HiGHS, if installed."""
    proof: Effort = "search"
    """Effort of the search, where "bounds" skips the integer program and "any" stops at the first plan that
    fits."""
    space: Space | None = None
    """Space of the layouts to search, all of the question or only those that may be fast enough; None to
    enumerate them."""


OPENED, REFINED, PLACED, ABANDONED, DECIDED, SOLVED = range(6)
"""States of a row (layout). OPENED: has a quick bound. REFINED: has a capacity bound. PLACED: a good placement was
searched for. ABANDONED: the exact search for a placement gave up before the time limit, so that only the row's bound
is proven. DECIDED: finished without an exact search, because its few placements were all compared, or because another
row has the same costs. SOLVED: an exact search found its best placement, or proved that none is fast enough."""


class Rows:
    """Layouts that a search has priced one by one ("opened"), with the lower bound and the state of each,
    (N,) each."""

    def __init__(self) -> None:
        self.bound: Array = np.empty(0)
        """Proven lower bound of each layout's step, seconds (N,); infinite where nothing fits, the best step
        where the layout is decided."""
        self.first_bound: Array = np.empty(0)
        """Lower bound of each layout's step before any placement was tried, seconds (N,)."""
        self.state: Ints = np.empty(0, dtype=np.int64)

    @property
    def decided(self) -> Bools:
        """Whether the search is finished with each layout (state DECIDED or SOLVED), (N,)."""
        decided: Bools = self.state >= DECIDED
        return decided

    def add(self, bound: Array) -> None:
        """Append newly opened layouts with their quick bounds, seconds (N,)."""
        self.bound = np.concatenate([self.bound, bound])
        self.first_bound = np.concatenate([self.first_bound, bound])
        self.state = np.append(self.state, np.full(len(bound), OPENED))

    def refine(self, rows: Ints, bound: Array) -> None:
        """Raise the bounds of the given rows to their capacity bounds, seconds."""
        self.bound[rows] = self.first_bound[rows] = np.maximum(self.bound[rows], bound)
        self.state[rows] = np.maximum(self.state[rows], REFINED)

    def settle(self, row: int, seconds: float, state: int = DECIDED) -> None:
        """Set the state of a row, by default to DECIDED, after a proof that none of its placements is faster
        than `seconds`."""
        self.bound[row], self.state[row] = max(self.bound[row], seconds), state


class Prover:
    """Base class of searches that prove optimality: candidate layouts, best known placement of each, deadline
    and certificate."""

    proved_by: ClassVar[Proof] = "search"
    settled: ClosingProgram | None = None
    """Result of the integer program that closed the proof; None without one."""

    def __init__(self, candidates: Candidates, settings: SearchSettings) -> None:
        self.candidates, self.settings, self.top = candidates, settings, settings.top
        self._start, self._cut_off = time.monotonic(), settings.must_beat_seconds
        self._deadline = self._start + settings.time_limit
        self.best: dict[int, tuple[Placement, float]] = {}
        """Best placement so far of each candidate with its step seconds, by row."""
        self._paths = defaultdict[Pipeline, list[CriticalPath]](list)
        """Critical paths found so far of each pipeline, which hold for any costs."""
        self._undecided, self._count_time = 0, -math.inf
        """Number of undecided layouts at the last count, and the time of that count in seconds."""

    @property
    def kth_seconds(self) -> float:
        """Step time in seconds that a further layout must beat: the k-th best time so far, and at most the
        cut-off of the settings."""
        times = sorted(seconds for _, seconds in self.best.values())
        return min(times[self.top - 1], self._cut_off) if len(times) >= self.top else self._cut_off

    def leaders(self) -> list[tuple[int, Placement]]:
        """Rows and placements of the k best layouts so far, and of every layout that ties with the k-th."""
        worst = self.kth_seconds * (1 + TOLERANCE)
        return [(row, placement) for row, (placement, seconds) in self.best.items() if seconds <= worst]

    def _threshold(self) -> float:
        """Time to beat less the tolerance, seconds; a layout whose lower bound reaches it is pruned."""
        return self.kth_seconds * (1 - TOLERANCE)

    def _seconds_left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self._deadline - time.monotonic()

    def _best_seconds(self) -> float:
        """Shortest step time of all known placements, seconds; infinite without any."""
        return min((seconds for _, seconds in self.best.values()), default=math.inf)

    def _counts(self) -> dict[str, int]:
        """Count layouts by outcome: infeasible, pruned, solved and undecided."""
        raise NotImplementedError

    def _proven_bound(self) -> float:
        """Proven lower bound on the step time of every layout that the search covers, seconds."""
        raise NotImplementedError

    def _report(self, *, exactly: bool = False) -> None:
        """Report progress to the callback `on_progress`. The count of decided layouts may be half a second
        old unless `exactly` is true."""
        if self.settings.on_progress is not None:
            total, now = len(self.candidates), time.monotonic()
            if exactly or now >= self._count_time + COUNT_INTERVAL:
                self._undecided, self._count_time = self._counts()["undecided"], now
            decided = total - self._undecided
            self.settings.on_progress(decided, total, self._best_seconds(), self._proven_bound())

    def certificate(self) -> Certificate:
        """Create the search's certificate: proven bound, gap, and number of layouts by outcome (pruned,
        solved, ...)."""
        question, best, bound = self.candidates.question, self._best_seconds(), self._proven_bound()
        scenarios = num_weighed(len(scenarios_of(question)), question.risk)
        return Certificate(
            top=self.top,
            space=self.candidates.in_words(),
            layouts=len(self.candidates),
            **self._counts(),
            bound=bound,
            gap=gap_of(best, bound) if math.isfinite(best) else 1.0,
            minimised=question.risk if scenarios else "none",
            scenarios=scenarios,
            settled=self.settled,
            proved_by=self.proved_by,
            seconds=time.monotonic() - self._start,
        )


class BranchAndBound(Prover):
    """Branch and bound over the candidate layouts of a question."""

    def __init__(self, candidates: Candidates, settings: SearchSettings) -> None:
        super().__init__(candidates, settings)
        self._representative_row: dict[bytes, int] = {}
        """Row that represents all layouts with the same costs, by cache key of the costs."""
        self.rows = Rows()
        self._refined_together = FEWEST_REFINED
        self._rounds = MAX_ROUNDS if settings.proof == "search" else MAX_ROUNDS // 3

    def names(self, rows: Bools) -> set[str]:
        """Names of the layouts in a mask of rows (N,), in layout notation."""
        return {str(self.candidates.layout(row)) for row in np.flatnonzero(rows).tolist()}

    @property
    def is_unfinished(self) -> bool:
        """Whether some undecided layout may still be better than the k best."""
        return bool(self._open_rows().any()) or self._has_unopened()

    @property
    def abandoned(self) -> int:
        """Number of undecided layouts if the exact placement search ran out of time on every one of them;
        else 0."""
        rows = self._open_rows()
        can_go_on = self._has_unopened() or (rows & (self.rows.state != ABANDONED)).any()
        return 0 if can_go_on else int(rows.sum())

    def _open_rows(self) -> Bools:
        """Mask of the undecided rows whose lower bound is below the time to beat, (N,)."""
        return ~self.rows.decided & (self.rows.bound < self._threshold())

    def _has_unopened(self) -> bool:
        """Whether some layout that is not opened yet has a lower bound below the time to beat."""
        return self.candidates.least_unopened() < self._threshold()

    def _is_over(self) -> bool:
        """Whether to end the search, because time ran out or because effort `any` has found a plan."""
        return self._seconds_left() <= 0 or (self.settings.proof == "any" and bool(self.best))

    def run(self) -> None:
        """Run the search: place the blocks of every row whose bound is below the time to beat, first well and
        then optimally. With effort `any` it ends once a plan fits. At last, close the proof if the settings
        say so."""
        while not self._is_over():
            has_unopened = self._has_unopened()
            row = self._next(self.rows.state < PLACED)
            if row is None and not has_unopened:
                break
            if has_unopened and (row is None or math.isfinite(self.kth_seconds)):
                self.rows.add(self.candidates.open(self._threshold()))
            if row is not None:
                self.rows.state[row] = PLACED
                self._place(row)
            self._report()
        while (row := self._next(self.rows.state != ABANDONED)) is not None:
            self._solve(row)
            self._report()
        self._report(exactly=True)
        if self.settings.closes_with_ilp and self.settings.proof == "search":
            self.close_proof()

    def close_proof(self) -> None:
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
        is_beaten = self.rows.state == SOLVED  # rows whose proven best placement takes longer
        for row, (_, seconds) in self.best.items():
            is_beaten[row] &= seconds > worst
        rows = np.flatnonzero((self.rows.first_bound <= worst) & ~is_beaten).tolist()
        beaten = {self.candidates.leaf(row).key for row in np.flatnonzero(is_beaten).tolist()}
        leaves: dict[bytes, Task] = {}
        for row in rows:
            leaf = self.candidates.leaf(row)
            if leaf.key in beaten or leaf.has_replicas:
                continue
            paths = self._paths[pipeline_of(leaf)]
            task = Task(leaf, self.best.get(row), met_paths=paths, deadline=self._deadline)
            leaves.setdefault(leaf.key, task)
            if len(leaves) > MAX_ILP_LAYOUTS:
                return
        self.settled = solve_record([*leaves.values()], best_seconds, self.settings.solver)

    def _next(self, eligible: Bools) -> int | None:
        """Row with the lowest capacity bound among the undecided rows of a mask (N,); None without such a row
        or without time.

        While refining discards little, the best refined row is taken after every batch: an early incumbent saves more
        than the right order does.
        """
        fruitless = False
        while not self._is_over():
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
        """Raise the bounds of some rows to their capacity bounds (lower bounds that account for memory)."""
        finer = self.candidates.capacity_bounds(rows, self.kth_seconds * (1 + TIE_TOLERANCE))
        self.rows.refine(rows, finer)

    def _place(self, row: int) -> None:
        """Find a good placement of a layout's blocks and store it as the row's incumbent. With several chunks
        per rank it is the best one, so that the layout is settled."""
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
            self.rows.settle(row, seconds)

    def _solve(self, row: int) -> None:
        """Find the best placement of a row's layout with proof, if the layout can still be among the k
        best."""
        leaf, is_timed = self.candidates.leaf(row), math.isfinite(self._deadline)
        known_paths = self._paths[pipeline_of(leaf)]
        rounds = None if is_timed and self.settings.proof == "search" else self._rounds
        incumbent, cut_off = self.best.get(row), self.kth_seconds
        solution = best_placement(Task(leaf, incumbent, cut_off, known_paths, self._deadline, rounds))
        known_paths += solution.paths
        if solution.placement is not None:
            self.best[row] = (solution.placement, solution.objective)
        if solution.status != "stopped":
            self.rows.settle(row, solution.bound, SOLVED)
            return
        state = ABANDONED if self._seconds_left() > 0 else int(self.rows.state[row])
        self.rows.settle(row, solution.bound, state)
        self._rounds = max(self._rounds // 2, MIN_ROUNDS)

    def _merge_twins(self, row: int, twin: int, key: bytes) -> None:
        """Merge two opened layouts with equal costs: the search goes on with the shorter name only."""
        lengths = [len(str(self.candidates.layout(layout_row))) for layout_row in (row, twin)]
        if lengths[1] < lengths[0]:
            for column in (self.rows.bound, self.rows.state):
                column[[row, twin]] = column[[twin, row]]
            if (incumbent := self.best.pop(row, None)) is not None:
                self.best[twin] = incumbent
            self._representative_row[key], row, twin = twin, twin, row
        self.rows.settle(twin, self.rows.bound[twin])

    def _proven_bound(self) -> float:
        """Proven lower bound on the step of every covered layout, seconds, no higher than the cut-off."""
        rows = float(self.rows.bound[self._open_rows()].min(initial=math.inf))
        return min(rows, self.candidates.least_unopened(), self._best_seconds(), self._cut_off)

    def _counts(self) -> dict[str, int]:
        """Count layouts by outcome (infeasible, pruned, solved, undecided), opened or not."""
        bound, layouts = self.candidates.unopened_bounds()
        never, late = np.isinf(bound), bound >= self._threshold()
        infeasible, open_rows = np.isinf(self.rows.bound), self._open_rows()
        solved = self.rows.decided & ~infeasible
        return {
            "infeasible": int(infeasible.sum() + layouts[never].sum()),
            "pruned": int((~infeasible & ~solved & ~open_rows).sum() + layouts[late & ~never].sum()),
            "solved": int(solved.sum()),
            "undecided": int(open_rows.sum() + layouts[~late & ~never].sum()),
        }

    def count_below(self, seconds: float, has_time: Callable[[], bool]) -> int | None:
        """Count the layouts whose lower bound is below `seconds`; None if there are more than `MAX_COUNTED`,
        or time is over.

        Entries that the search left unopened for its smaller time to beat are opened, and bounds cut off there are
        refined.
        """
        candidates, rows = self.candidates, self.rows
        while candidates.least_unopened() < seconds:
            rows.add(candidates.open(seconds))
            if int((rows.first_bound < seconds).sum()) > MAX_COUNTED or not has_time():
                return None
        is_coarse = (rows.state == OPENED) | (rows.first_bound >= self.kth_seconds)
        unrefined = np.flatnonzero((rows.first_bound < seconds) & is_coarse)
        rows.refine(unrefined, candidates.capacity_bounds(unrefined, seconds))
        return int((rows.first_bound < seconds).sum())


def layouts_below(
    searches: Sequence[BranchAndBound], seconds: float, first: Layout, has_time: Callable[[], bool]
) -> list[Layout]:
    """Find up to `MAX_COMPARED` layouts to compare: the layout `first`, then layouts with a placement faster
    than `seconds`, in order of their lower bounds. They differ from one another in degrees or microbatch. The
    result does not depend on search order."""
    near: list[tuple[float, int, str, int]] = []
    for number, search in enumerate(searches):
        search.count_below(seconds, has_time)
        bound, layout_of = search.rows.first_bound, search.candidates.layout
        rows = np.flatnonzero(bound < seconds).tolist()
        near += [(float(bound[row]), number, str(layout_of(row)), row) for row in rows]
    layouts, degrees, num_placed = [first], {_degrees(first)}, 0
    for _, number, _, row in sorted(near):
        candidates = searches[number].candidates
        layout = candidates.layout(row)
        if _degrees(layout) in degrees:
            continue
        if len(layouts) == MAX_COMPARED or num_placed == MAX_PLACEMENTS or not has_time():
            break
        leaf, num_placed = candidates.leaf(row), num_placed + 1
        solution = good_placement(leaf) if leaf.is_plain else best_pattern(leaf, seconds)
        if solution and solution[1] < seconds:
            degrees.add(_degrees(layout))
            layouts.append(solution[0].on(layout))
    return layouts


def _degrees(layout: Layout) -> tuple[int, ...]:
    """Parallel degrees and microbatch size of a layout, by which compared layouts differ."""
    return layout.tp, layout.pp, layout.cp, layout.dp, layout.ep, layout.expert_tp, layout.mbs
