"""Cutting planes: solve with the paths known so far, let the timeline price the solution, add the paths that were
missing.

The program knows some paths, so its optimum is a lower bound; the timeline prices the solution exactly and, where it
takes longer, its critical path is one row more (Benders 1962). There are finitely many placements, so this ends, with
program and timeline in agreement.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

from cost_models.schedules.timeline import CriticalPath
from planner.exact.ilp.program import Program
from planner.exact.ilp.solvers import SolverName
from planner.placement.leaf import TOLERANCE, Leaf, Placement

Verdict = Literal["proven", "nothing", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """Result of a minimisation; `bound` holds whatever the verdict.

    `proven`: nothing takes less than `bound`; `nothing`: infeasible; `stopped`: out of time.
    """

    verdict: Verdict
    fastest: tuple[Leaf, Placement, float] | None
    """Layout, placement and exact step seconds of the fastest solution."""
    bound: float
    rounds: int
    paths: tuple[CriticalPath, ...]
    """Critical paths found during the solve."""


def minimum(
    program: Program, solver: SolverName, *, known_seconds: float = math.inf, time_limit: float | None = None
) -> Minimum:
    """Minimum step time of a program; stops early once nothing can beat `known_seconds`."""
    start = time.monotonic()
    best: tuple[Leaf, Placement, float] | None = None
    bound, rounds = 0.0, 0
    critical: list[CriticalPath] = []

    def answer(verdict: Verdict) -> Minimum:
        return Minimum(verdict=verdict, fastest=best, bound=bound, rounds=rounds, paths=tuple(critical))

    while True:
        seconds_left = None if time_limit is None else time_limit - (time.monotonic() - start)
        if seconds_left is not None and seconds_left <= 0:
            return answer("stopped")
        solved = program.solve(solver, seconds=math.inf if seconds_left is None else seconds_left)
        rounds += 1
        if solved.verdict == "infeasible":
            return answer("nothing" if best is None else "proven")
        if solved.verdict == "stopped":
            return answer("stopped")
        choice = program.choices[program.chosen_layout]
        placement = choice.placement()
        seconds = choice.leaf.price(placement)
        if best is None or seconds < best[2]:
            best = choice.leaf, placement, seconds
        bound = max(bound, program.modelled_seconds(choice, placement) if choice.paths else 0.0)
        if min(best[2], known_seconds) <= bound * (1 + TOLERANCE):
            return answer("proven")
        critical.append(choice.leaf.critical_path(placement.table))
        for path in [critical[-1], *choice.violated_paths(placement)]:
            program.step_is_no_shorter_than_path(choice, path)
