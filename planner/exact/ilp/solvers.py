"""The solver that PuLP calls: HiGHS, or CBC where highspy is missing."""

from __future__ import annotations

from typing import Literal

import pulp

SolverName = Literal["highs", "cbc"]

ROUNDING = 1e-9
"""Feasibility tolerance: our rows are scaled to one, so this is relative."""


def available_solver() -> SolverName:
    """HiGHS where highspy can be imported, else CBC."""
    return "highs" if pulp.HiGHS(msg=False).available() else "cbc"


def make_solver(name: SolverName, seconds: float | None) -> pulp.LpSolver:
    """A solver on one thread, without a gap, and with a time limit if one is given."""
    limit = None if seconds is None else max(seconds, 0.01)
    if name == "highs":
        from planner.exact.ilp.highs import SilentHiGHS

        return SilentHiGHS(
            threads=1,
            timeLimit=limit,
            gapRel=0,
            gapAbs=0,
            primal_feasibility_tolerance=ROUNDING,
            mip_feasibility_tolerance=ROUNDING,
        )
    return pulp.getSolver(
        "PULP_CBC_CMD", msg=False, threads=1, timeLimit=limit, gapRel=0, gapAbs=0, _skip_v4_deprecation=True
    )


def is_proven(problem: pulp.LpProblem) -> bool:
    """Whether the solver proved its solution optimal.

    At a time limit PuLP reports `status` Optimal for whatever was found; `sol_status` alone tells the difference.
    """
    return bool(problem.sol_status == pulp.LpSolutionOptimal)


def is_infeasible(problem: pulp.LpProblem) -> bool:
    """Whether the solver proved that there is no solution."""
    return bool(problem.status == pulp.LpStatusInfeasible)
