"""Branch and bound over the candidates of a question: incumbents, bounds, and which row to look at next.

First some rows of every kind are opened and placed, for an early incumbent. Then closed entries are opened and rows get
a good placement, best bound first, until no bound that is left is below the k-th best time. Rows whose own bound still
is are placed exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.pipeline.under_scenarios import scenarios_of
from cost_models.risk import weighed_of
from cost_models.schedules import CriticalPath
from cost_models.specs.choices import Schedule
from planner.certificate import Certificate, Effort, Settled
from planner.exact.best_placement import best_placement
from planner.exact.counts import good_of_numbers
from planner.exact.ilp.record import Survivor, settle
from planner.exact.ilp.solvers import SolverName
from planner.placement.chunks import best_pattern
from planner.placement.leaf import TOLERANCE, Placement, gap_of
from planner.search.candidates import Candidates, Rows

MOST_SETTLED = 64
"""Most layouts that the closing integer program chooses among."""
BEYOND = 1e-6
"""Relative margin by which a bound must exceed the time to beat before the layout is known not to tie."""
FEWEST_REFINED, MOST_REFINED = 32, 1024
"""Layouts that get their capacity bound in one batch: few while most stay open, doubling while most are discarded."""
MOST_ROUNDS, FEWEST_ROUNDS = 24, 2
"""Rounds in which one layout is to be placed exactly where no time limit says when to stop, or one of many searches is
to end alike on every machine: three times as many as any needed that ended. What one layout could not do, those after
it seldom can: each that is given up halves them."""
USUAL_ROUNDS = MOST_ROUNDS // 3
"""As many as any needed that ended: enough for one of many searches."""
COUNTED_EVERY = 0.1
"""Seconds between two counts of what is left: to count takes longer than many a step of the search."""

Progress = Callable[[int, int, float, float], None]
"""Called with (layouts decided, layouts in all, best seconds, proven bound in seconds)."""


class BranchAndBound:
    """The state of one search: bounds, incumbents and what is decided, row by row."""

    def __init__(
        self,
        candidates: Candidates,
        top: int,
        start: float,
        time_limit: float | None,
        on_progress: Progress | None,
        below: float = math.inf,
    ) -> None:
        """Nothing that takes `below` seconds or more is searched for."""
        self._below = below
        self.candidates, self.top = candidates, top
        self._start, self._time_limit, self._on_progress = start, time_limit, on_progress
        self.best: dict[int, tuple[Placement, float]] = {}
        """Row → the best placement known and its step time."""
        self._paths: dict[tuple[Schedule, int, int], list[CriticalPath]] = {}
        """(schedule, pp, microbatches) → critical paths met so far: they hold for any costs of the same pipeline."""
        self._twins: dict[bytes, int] = {}
        """The row that stands for all layouts that cost the same in every coefficient."""
        self.rows = Rows()
        self.settled: Settled | None = None
        self._refined_together = FEWEST_REFINED
        self._rounds = MOST_ROUNDS
        self._left, self._counted = 0, -math.inf
        """Layouts that were undecided when they were last counted, and when that was."""

    @property
    def kth_seconds(self) -> float:
        """The time to beat: the k-th best step time known, or what was to be beaten from the start."""
        times = sorted(seconds for _, seconds in self.best.values())
        return min(times[self.top - 1], self._below) if len(times) >= self.top else self._below

    def leaders(self) -> list[tuple[int, Placement]]:
        """Rows and placements of the k best, with every row that ties with the last of them."""
        worst = self.kth_seconds * (1 + TOLERANCE)
        return [(row, placement) for row, (placement, seconds) in self.best.items() if seconds <= worst]

    def names(self, rows: Bools) -> set[str]:
        """Layouts of (N,) chosen rows, as they are written."""
        return {str(self.candidates.layout(row)) for row in np.flatnonzero(rows).tolist()}

    @property
    def is_unfinished(self) -> bool:
        """Whether some layout may still be better than the k best."""
        return bool(self._open_rows().any()) or self.candidates.least_closed() < self._threshold()

    @property
    def given_up(self) -> int:
        """Number of layouts that are left, where each was given up though there was time; 0 where time ran out."""
        rows = self._open_rows()
        if (rows & ~self.rows.given_up).any() or self.candidates.least_closed() < self._threshold():
            return 0
        return int(rows.sum())

    def _threshold(self) -> float:
        return self.kth_seconds * (1 - TOLERANCE)

    def _open_rows(self) -> Bools:
        """(N,): rows that are undecided and may still belong to the k best."""
        return self.rows.below(self._threshold())

    def run(self, effort: Effort = "search") -> None:
        """Give every row whose bound is below the time to beat a good placement, then an exact one; where any plan will
        do, until one fits."""
        if effort != "search":
            self._rounds = min(self._rounds, USUAL_ROUNDS)
        while self._seconds_left() > 0 and not (effort == "any" and self.best):
            more = self.candidates.least_closed() < self._threshold()
            row = self._next(~self.rows.placed)
            if row is None and not more:
                break
            if more and (row is None or math.isfinite(self.kth_seconds)):
                self.rows.add(self.candidates.open(self._threshold()))
            if row is not None:
                self.rows.placed[row] = True
                self._place(row)
            self._report()
        while not (effort == "any" and self.best) and (row := self._next(~self.rows.given_up)) is not None:
            self._solve(row, effort)
            self._report()
        self._counted = -math.inf  # the last report is exact
        self._report()

    def settle(self, solver: SolverName | None = None) -> None:
        """Let one integer program choose among the layouts that neither bounds nor label setting discard.

        Layouts that differ only in name count as one. Nothing is done where the search has not ended, where it looked
        for what is faster than all it found, or where so many layouts are left that the program would take long.
        """
        worst = self._best_seconds() * (1 + TOLERANCE)
        if (
            self.is_unfinished
            or not self.best
            or self._best_seconds() > self._below
            or scenarios_of(self.candidates.question)
        ):
            return  # the program has no scenarios
        self._refine(np.flatnonzero((self.rows.first_bound <= worst) & ~self.rows.refined))
        rows = np.flatnonzero((self.rows.first_bound <= worst) & ~self._beaten(worst)).tolist()
        beaten = {self.candidates.leaf(row).key for row in np.flatnonzero(self._beaten(worst)).tolist()}
        leaves: dict[bytes, Survivor] = {}
        for row in rows:
            leaf = self.candidates.leaf(row)
            if leaf.key in beaten:
                continue
            known = self.best.get(row)
            met = self._paths.get((leaf.schedule, leaf.pp, leaf.microbatches), [])
            leaves.setdefault(leaf.key, Survivor(leaf, known[0] if known else None, met))
            if len(leaves) > MOST_SETTLED:
                return
        left = self._seconds_left()
        limit = None if math.isinf(left) else left
        found = settle(list(leaves.values()), self._best_seconds(), time_limit=limit, solver=solver)
        if found.verdict == "equal":
            self.settled = Settled(
                solver=found.solver,
                layouts=found.layouts,
                columns=found.columns,
                objective=found.objective,
            )

    def _beaten(self, worst: float) -> Bools:
        """(N,): rows whose best placement is proven and takes longer than `worst` seconds."""
        beaten = self.rows.solved.copy()
        for row, (_, seconds) in self.best.items():
            beaten[row] &= seconds > worst
        return beaten

    def _next(self, wanted: Bools) -> int | None:
        """The wanted open row with the least bound, once that bound is refined; None when there is none or no time.

        While refining discards little, the best refined row is taken after every batch: an early incumbent saves more
        than the right order does.
        """
        fruitless = False
        while self._seconds_left() > 0:
            rows = np.flatnonzero(wanted & self._open_rows())
            if not len(rows):
                return None
            first = rows[np.argmin(self.rows.bound[rows])]
            if self.rows.refined[first]:
                return int(first)
            refined = rows[self.rows.refined[rows]]
            if fruitless and len(refined):
                return int(refined[np.argmin(self.rows.bound[refined])])
            rows, most = rows[~self.rows.refined[rows]], self._refined_together
            if len(rows) > most:
                rows = rows[np.argpartition(self.rows.bound[rows], most)[:most]]
            self._refine(rows)
            discarded = 2 * int((self.rows.bound[rows] >= self._threshold()).sum()) > len(rows)
            self._refined_together = min(2 * most, MOST_REFINED) if discarded else FEWEST_REFINED
            fruitless = not discarded
        return None

    def _refine(self, rows: Ints) -> None:
        finer = self.candidates.capacity_bounds(rows, self.kth_seconds * (1 + BEYOND))
        self.rows.refine(rows, finer)

    def _place(self, row: int) -> None:
        """Give a row a good placement; where patterns are few the best, as far as it can matter: it decides the row."""
        leaf, cut_off = self.candidates.leaf(row), self.kth_seconds
        if (twin := self._twins.setdefault(leaf.key, row)) != row:
            self._join(twin, row, leaf.key)
            return
        if leaf.is_plain:
            found, bound = good_of_numbers(leaf, cut_off * (1 + BEYOND))
            self.rows.refine(np.array([row]), np.array([bound]))
        else:
            found = best_pattern(leaf, cut_off)
        if found:
            self.best[row] = found
        seconds = found[1] if found else cut_off
        if not leaf.is_plain or seconds <= self.rows.bound[row] * (1 + TOLERANCE):
            self.rows.decide(row, seconds)

    def _solve(self, row: int, effort: Effort) -> None:
        """Place one layout exactly, as far as it can still be among the k best."""
        leaf, left = self.candidates.leaf(row), self._seconds_left()
        met = self._paths.setdefault((leaf.schedule, leaf.pp, leaf.microbatches), [])
        solution = best_placement(
            leaf,
            incumbent=self.best.get(row),
            met_paths=met,
            cut_off=self.kth_seconds,
            time_limit=None if math.isinf(left) else left,
            most_rounds=self._rounds if math.isinf(left) or effort != "search" else None,
        )
        met += solution.paths
        if solution.placement is not None:
            self.best[row] = (solution.placement, solution.objective)
        self.rows.solved[row] = solution.status != "stopped"
        if solution.status == "stopped":
            self.rows.bound[row] = max(self.rows.bound[row], solution.bound)
            self.rows.given_up[row] = self._seconds_left() > 0
            self._rounds = max(self._rounds // 2, FEWEST_ROUNDS)
        elif solution.status == "infeasible":
            self.rows.decide(row, math.inf)
        else:
            self.rows.decide(row, solution.bound)

    def _join(self, row: int, twin: int, key: bytes) -> None:
        """Let one row stand for two that cost the same: the one whose layout has the shorter name."""
        lengths = [len(str(self.candidates.layout(one))) for one in (row, twin)]
        if lengths[1] < lengths[0]:
            self.rows.swap(row, twin)
            if (known := self.best.pop(row, None)) is not None:
                self.best[twin] = known
            self._twins[key], row, twin = twin, twin, row
        self.rows.decide(twin, self.rows.bound[twin])

    def _seconds_left(self) -> float:
        return math.inf if self._time_limit is None else self._time_limit - (time.monotonic() - self._start)

    def _report(self) -> None:
        if self._on_progress is not None:
            total, now = len(self.candidates), time.monotonic()
            if now >= self._counted + COUNTED_EVERY:
                closed = self.candidates.tally(self._threshold())
                self._left, self._counted = int(self._open_rows().sum()) + closed.undecided, now
            self._on_progress(total - self._left, total, self._best_seconds(), self._proven_bound())

    def _best_seconds(self) -> float:
        return min((seconds for _, seconds in self.best.values()), default=math.inf)

    def _proven_bound(self) -> float:
        """Lower bound in seconds on the step time of every covered layout, no higher than what was asked for."""
        rows = float(self.rows.bound[self._open_rows()].min(initial=math.inf))
        return min(rows, self.candidates.least_closed(), self._best_seconds(), self._below)

    def certificate(self) -> Certificate:
        """How many layouts were covered and how each was decided, with the proven bound and gap."""
        infeasible, open_rows = np.isinf(self.rows.bound), self._open_rows()
        best, bound = self._best_seconds(), self._proven_bound()
        solved = self.rows.decided & ~infeasible
        closed = self.candidates.tally(self._threshold())
        question = self.candidates.question
        scenarios = weighed_of(len(scenarios_of(question)), question.risk)
        return Certificate(
            top=self.top,
            space=self.candidates.in_words(),
            layouts=len(self.candidates),
            infeasible=int(infeasible.sum()) + closed.infeasible,
            pruned=int((~infeasible & ~solved & ~open_rows).sum()) + closed.pruned,
            solved=int(solved.sum()),
            undecided=int(open_rows.sum()) + closed.undecided,
            bound=bound,
            gap=gap_of(best, bound) if math.isfinite(best) else 1.0,
            minimised=question.risk if scenarios else "none",
            scenarios=scenarios,
            settled=self.settled,
            seconds=time.monotonic() - self._start,
        )
