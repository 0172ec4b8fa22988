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

from cost_models.arrays import Array, Bools, Ints
from cost_models.pipeline.under_scenarios import scenarios_of
from cost_models.risk import weighed_of
from cost_models.schedules import CriticalPath
from cost_models.specs.choices import Schedule
from planner.certificate import Certificate, Settled
from planner.exact.best_placement import best_placement
from planner.exact.ilp.record import Survivor, settle
from planner.exact.ilp.solvers import SolverName
from planner.placement.chunks import best_pattern
from planner.placement.heuristics import good_placement
from planner.placement.leaf import TOLERANCE, Placement, gap_of
from planner.search.candidates import Candidates

MOST_SETTLED = 64
"""Most layouts that the closing integer program chooses among."""
BEYOND = 1e-6
"""Relative margin by which a bound must exceed the time to beat before the layout is known not to tie."""
FEWEST_REFINED, MOST_REFINED = 32, 1024
"""Layouts whose capacity bound is computed in one batch: few while batches keep most layouts open, doubling while they
discard most."""

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
    ) -> None:
        self.candidates, self.top = candidates, top
        self._start, self._time_limit, self._on_progress = start, time_limit, on_progress
        self.best: dict[int, tuple[Placement, float]] = {}
        """Row → the best placement known and its step time."""
        self._paths: dict[tuple[Schedule, int, int], list[CriticalPath]] = {}
        """(schedule, pp, microbatches) → critical paths met so far: they hold for any costs of the same pipeline."""
        self._twins: dict[bytes, int] = {}
        """The row that stands for all layouts that cost the same in every coefficient."""
        self._bound: Array = np.empty(0)
        """Proven lower bound of each row; infinite where it fits nowhere; the best time where it is decided."""
        self._first_bound: Array = np.empty(0)
        """The bounds as they were before anything was placed."""
        self.settled: Settled | None = None
        none = np.empty(0, dtype=np.bool_)
        self._refined, self._placed, self._decided = none, none, none
        """(N,) each: the row has a capacity bound; has a good placement or none; its best placement is known."""
        self._refined_together = FEWEST_REFINED
        self._solved = none
        """(N,): the row's best placement was searched for and proven."""
        self._given_up = none
        """(N,): neither placed best nor ruled out, though there was time; the row's bound is all that is proven."""

    @property
    def kth_seconds(self) -> float:
        """The time to beat: the k-th best step time known, infinite while fewer are known."""
        times = sorted(seconds for _, seconds in self.best.values())
        return times[self.top - 1] if len(times) >= self.top else math.inf

    def leaders(self) -> list[tuple[int, Placement]]:
        """Rows and placements of the k best, with every row that ties with the last of them."""
        worst = self.kth_seconds * (1 + TOLERANCE)
        return [(row, placement) for row, (placement, seconds) in self.best.items() if seconds <= worst]

    @property
    def is_unfinished(self) -> bool:
        """Whether some layout may still be better than the k best."""
        return bool(self._open_rows().any()) or self.candidates.least_closed() < self._threshold()

    @property
    def given_up(self) -> int:
        """Number of layouts that are left, where each was given up though there was time; 0 where time ran out."""
        rows = self._open_rows()
        if (rows & ~self._given_up).any() or self.candidates.least_closed() < self._threshold():
            return 0
        return int(rows.sum())

    def _threshold(self) -> float:
        return self.kth_seconds * (1 - TOLERANCE)

    def _open_rows(self) -> Bools:
        """(N,): rows that are undecided and may still belong to the k best."""
        rows: Bools = ~self._decided & np.isfinite(self._bound) & (self._bound < self._threshold())
        return rows

    def run(self) -> None:
        """Give every row whose bound is below the time to beat a good placement, then an exact one."""
        while self._seconds_left() > 0:
            more = self.candidates.least_closed() < self._threshold()
            row = self._next(~self._placed)
            if row is None and not more:
                break
            if more and (row is None or math.isfinite(self.kth_seconds)):
                self._add(self.candidates.open(self._threshold()))
            if row is not None:
                self._placed[row] = True
                self._place(row)
            self._report()
        while (row := self._next(~self._given_up)) is not None:
            self._solve(row)
            self._report()

    def settle(self, solver: SolverName | None = None) -> None:
        """Let one integer program choose among the layouts that neither bounds nor label setting discard.

        Layouts that differ only in name count as one. Nothing is done where the search has not ended, or where so many
        layouts are left that the program would take long.
        """
        worst = self._best_seconds() * (1 + TOLERANCE)
        if self.is_unfinished or not self.best or scenarios_of(self.candidates.question):
            return  # the program has no scenarios
        self._refine(np.flatnonzero((self._first_bound <= worst) & ~self._refined))
        rows = np.flatnonzero((self._first_bound <= worst) & ~self._beaten(worst)).tolist()
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
        beaten = self._solved.copy()
        for row, (_, seconds) in self.best.items():
            beaten[row] &= seconds > worst
        return beaten

    def _add(self, bound: Array) -> None:
        """Append newly opened rows with their quick bounds."""
        self._bound = np.concatenate([self._bound, bound])
        self._first_bound = np.concatenate([self._first_bound, bound])
        for name in ("_refined", "_placed", "_decided", "_solved", "_given_up"):
            closed = np.zeros(len(bound), dtype=np.bool_)
            setattr(self, name, np.concatenate([getattr(self, name), closed]))

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
            first = rows[np.argmin(self._bound[rows])]
            if self._refined[first]:
                return int(first)
            refined = rows[self._refined[rows]]
            if fruitless and len(refined):
                return int(refined[np.argmin(self._bound[refined])])
            rows, most = rows[~self._refined[rows]], self._refined_together
            if len(rows) > most:
                rows = rows[np.argpartition(self._bound[rows], most)[:most]]
            self._refine(rows)
            discarded = 2 * int((self._bound[rows] >= self._threshold()).sum()) > len(rows)
            self._refined_together = min(2 * most, MOST_REFINED) if discarded else FEWEST_REFINED
            fruitless = not discarded
        return None

    def _refine(self, rows: Ints) -> None:
        finer = self.candidates.capacity_bounds(rows, self.kth_seconds * (1 + BEYOND))
        self._bound[rows] = np.maximum(self._bound[rows], finer)
        self._first_bound[rows] = self._bound[rows]
        self._refined[rows] = True

    def _place(self, row: int) -> None:
        """Give a row a good placement. Where patterns are few it is the best one, as far as it can matter, which
        decides the row."""
        leaf, cut_off = self.candidates.leaf(row), self.kth_seconds
        if (twin := self._twins.setdefault(leaf.key, row)) != row:
            self._join(twin, row, leaf.key)
            return
        found = good_placement(leaf) if leaf.is_plain else best_pattern(leaf, cut_off)
        if found:
            self.best[row] = found
        seconds = found[1] if found else cut_off
        if not leaf.is_plain or seconds <= self._bound[row] * (1 + TOLERANCE):
            self._decide(row, seconds)

    def _solve(self, row: int) -> None:
        """Place one layout exactly, as far as it can still be among the k best."""
        leaf, left = self.candidates.leaf(row), self._seconds_left()
        met = self._paths.setdefault((leaf.schedule, leaf.pp, leaf.microbatches), [])
        solution = best_placement(
            leaf,
            incumbent=self.best.get(row),
            met_paths=met,
            cut_off=self.kth_seconds,
            time_limit=None if math.isinf(left) else left,
        )
        met += solution.paths
        if solution.placement is not None:
            self.best[row] = (solution.placement, solution.objective)
        self._solved[row] = solution.status != "stopped"
        if solution.status == "stopped":
            self._bound[row] = max(self._bound[row], solution.bound)
            self._given_up[row] = self._seconds_left() > 0
        elif solution.status == "infeasible":
            self._decide(row, math.inf)
        else:
            self._decide(row, solution.bound)

    def _join(self, row: int, twin: int, key: bytes) -> None:
        """Let one row stand for two that cost the same: the one whose layout has the shorter name."""
        lengths = [len(str(self.candidates.layout(one))) for one in (row, twin)]
        if lengths[1] < lengths[0]:
            for column in (self._bound, self._decided, self._solved):
                column[[row, twin]] = column[[twin, row]]
            if (known := self.best.pop(row, None)) is not None:
                self.best[twin] = known
            self._twins[key], row, twin = twin, twin, row
        self._decide(twin, self._bound[twin])

    def _decide(self, row: int, seconds: float) -> None:
        self._bound[row], self._decided[row] = max(self._bound[row], seconds), True

    def _seconds_left(self) -> float:
        return math.inf if self._time_limit is None else self._time_limit - (time.monotonic() - self._start)

    def _report(self) -> None:
        if self._on_progress is not None:
            total = len(self.candidates)
            left = int(self._open_rows().sum()) + self.candidates.tally(self._threshold()).undecided
            self._on_progress(total - left, total, self._best_seconds(), self._proven_bound())

    def _best_seconds(self) -> float:
        return min((seconds for _, seconds in self.best.values()), default=math.inf)

    def _proven_bound(self) -> float:
        """Lower bound in seconds on the step time of every covered layout."""
        rows = float(self._bound[self._open_rows()].min(initial=math.inf))
        return min(rows, self.candidates.least_closed(), self._best_seconds())

    def certificate(self) -> Certificate:
        """How many layouts were covered and how each was decided, with the proven bound and gap."""
        infeasible, open_rows = np.isinf(self._bound), self._open_rows()
        best, bound = self._best_seconds(), self._proven_bound()
        solved = self._decided & ~infeasible
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
