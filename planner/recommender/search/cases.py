"""The program of record in cases: tables whose options matter most are given one each, and rows that cost too much go.

A relaxed program is solved again with a unit in each row in turn (probing). What comes out above the best placement
known is no part of anything better, and a class's least row is a bound by itself. With one large table in rows another
has to lie in slices, and what is left is far smaller than all at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array, Ints
from planner.exact.solvers import Interrupt, SolverName, bounds_with_variable, solve
from planner.recommender.search.ilp.options import OptionsProgram
from planner.recommender.search.ilp.places import PlacesProgram
from planner.recommender.search.problem import Problem

ROUNDED = 1e-7
"""What a linear program's optimum may be off by rounding, relative; taken from every bound that comes of one."""
SPLIT = 0.6
"""Share of what is left to prove that all cases but one must close for a class to be split."""
FEWER, FEWER_PLACED = 0.98, 0.95
"""Probing goes on while it leaves no more than this share of the rows; with places it takes longer."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Rows of the whole problem that remain open, and a lower bound on any placement in them."""

    rows: Ints
    bound: float
    with_row: Array
    """Bounds with a unit in each of the rows."""
    placed: bool = False
    """Whether places were part of the bounds."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Splits a problem into cases, against the value of the best known placement."""

    problem: Problem
    solver: SolverName
    scale: float
    interrupt: Interrupt
    seconds_left: Callable[[], float]

    def case(self, rows: Ints, value: float, bound: float = 0.0) -> Case | None:
        """What is left of some rows by options alone; None where nothing as good as `value` is."""
        while True:
            of = self.problem.with_rows(rows)
            program = OptionsProgram(of, self.scale, whole=False)
            found = self._probed(program, rows, value, bound)
            if found is None or found.rows.size > FEWER * rows.size:
                return found
            rows, bound = found.rows, found.bound

    def with_places(self, case: Case, value: float) -> Case | None:
        """The same with the relaxed program of record, its most loading unit first."""
        rows, bound = case.rows, case.bound
        while True:
            of = self.problem.with_rows(rows)
            program = PlacesProgram(of, value, ordered=False, first=does_most(of), whole=False, shards=True)
            found = self._probed(program, rows, value, bound)
            if found is None or found.rows.size > FEWER_PLACED * rows.size:
                return found and replace(found, placed=True)
            rows, bound = found.rows, found.bound

    def split(self, case: Case, value: float) -> list[Case] | None:
        """A case for each row of the class whose rows, but for the best, raise the bound most; None if none does."""
        of = self.problem.with_rows(case.rows)
        gains = np.zeros(len(of.members))
        for one in np.flatnonzero(of.counts == 1).tolist():
            bounds = np.sort(case.with_row[of.row_class == one])
            gains[one] = bounds[1] - case.bound if len(bounds) > 1 else 0.0
        chosen = int(np.argmax(gains))
        if gains[chosen] < SPLIT * (value - case.bound):
            return None
        others = case.rows[of.row_class != chosen]
        cases = [
            self.case(np.sort(np.append(others, row)), value, bound)
            for row, bound in zip(case.rows, case.with_row, strict=True)
            if of.row_class[np.searchsorted(case.rows, row)] == chosen
        ]
        return [one for one in cases if one is not None]

    def _probed(self, program: OptionsProgram, rows: Ints, value: float, bound: float) -> Case | None:
        """Rows of a relaxed program that may be part of something no worse than `value`."""
        fixed, limit = self.problem.fixed, value * (1 + ROUNDED)
        solved = solve(program.problem, self.solver, seconds=self.seconds_left(), interrupt=self.interrupt)
        if solved.verdict == "infeasible":
            return None
        if solved.verdict != "optimal":
            return Case(rows, bound, np.full(len(rows), bound))
        cutoff = (limit - fixed) / program.scale * (1 + ROUNDED)
        left = self.seconds_left()
        bounds = np.array(
            bounds_with_variable(program.problem, solved, program.x, cutoff, self.interrupt, left)
        )
        with_row = np.maximum(bounds * (1 - ROUNDED) * program.scale + fixed, bound)
        kept = np.flatnonzero(with_row <= limit)
        least = [with_row[program.of.rows_of(one)].min() for one in range(len(program.of.members))]
        if not math.isfinite(max(least)) or max(least) > limit:
            return None
        return Case(rows[kept], float(max(least)), np.maximum(with_row[kept], max(least)))


def does_most(problem: Problem) -> int | None:
    """The class of one unit with the largest minimum load of its shards."""
    least = [
        float(problem.shard_load[rows].sum(axis=1).min()) if count == 1 else 0.0
        for count, rows in (
            (count, problem.rows_of(one)) for one, count in enumerate(problem.counts.tolist())
        )
    ]
    most = int(np.argmax(least)) if least else 0
    return most if least and least[most] > 0 else None
