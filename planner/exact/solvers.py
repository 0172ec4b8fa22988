"""One call of the solver behind PuLP, HiGHS or CBC: solution, bound, time limit and interrupt."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pulp

SolverName = Literal["highs", "cbc"]
ROUNDING = 1e-9
"""Feasibility tolerance: our rows are scaled to one, so this is relative."""
Verdict = Literal["optimal", "infeasible", "stopped"]
Watch = Callable[[float, float], bool]
"""Called now and then with the solver's best value and bound; returns whether to stop."""


@dataclass(slots=True)
class Interrupt:
    """Flag that records whether the user pressed Ctrl-C while a solver ran."""

    pressed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """Result of one solver call, with the verdict and a lower bound of the optimum. `bound` holds whatever the
    verdict; variables have values where `has_solution`."""

    verdict: Verdict
    bound: float
    has_solution: bool


def available_solver() -> SolverName:
    """Name of the solver to use, "highs" where highspy can be imported, else "cbc"."""
    return "highs" if pulp.HiGHS(msg=False).available() else "cbc"


def solve(
    problem: pulp.LpProblem,
    solver: SolverName,
    *,
    seconds: float = math.inf,
    gap: float = 0.0,
    interrupt: Interrupt | None = None,
    watch: Watch | None = None,
) -> Solved:
    """Minimise a PuLP problem on one thread by HiGHS or CBC; return the verdict, a lower bound and whether
    variables have values. `bound` is the solver's own where it gives one, else −infinity.

    At a time limit PuLP reports `status` Optimal for whatever was found; `sol_status` alone tells the difference.
    """
    stop = interrupt or Interrupt()
    limit = max(seconds, 0.01)
    if solver == "highs":
        with interruptible(stop):
            problem.solve(_highs(limit, gap, stop, watch))
        info = problem.solverModel.getInfo()
        integer = any(variable.cat == pulp.LpInteger for variable in problem.variables())
        bound = float(info.mip_dual_bound) if integer else -math.inf
        has_solution = math.isfinite(info.objective_function_value) and info.primal_solution_status == 2
    else:
        options = {"timeLimit": None if math.isinf(limit) else limit, "gapRel": gap, "gapAbs": 0}
        problem.solve(
            pulp.getSolver("PULP_CBC_CMD", msg=False, threads=1, _skip_v4_deprecation=True, **options)
        )
        bound = -math.inf
        has_solution = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    if problem.status == pulp.LpStatusInfeasible:
        return Solved(verdict="infeasible", bound=math.inf, has_solution=False)
    if problem.sol_status == pulp.LpSolutionOptimal and has_solution:
        value = float(pulp.value(problem.objective))
        bound = min(bound, value) if math.isfinite(bound) else value
        return Solved(verdict="optimal", bound=bound, has_solution=True)
    return Solved(verdict="stopped", bound=bound, has_solution=has_solution)


def bounds_with_variable(
    problem: pulp.LpProblem,
    solved: Solved,
    variables: Sequence[pulp.LpVariable],
    cutoff: float,
    stop: Interrupt,
    seconds: float = math.inf,
) -> list[float]:
    """Lower bounds of the optimum of a relaxed program just solved, one for each variable when that variable is
    at least 1.

    Bounds follow from reduced costs; for `seconds` HiGHS solves the program again for each variable whose bound is
    below `cutoff`.
    """
    bounds = [solved.bound + max(variable.dj or 0.0, 0.0) for variable in variables]
    if not isinstance(problem.solver, pulp.HiGHS):
        return bounds
    from highspy import HighsModelStatus

    model = problem.solverModel
    model.setOptionValue("presolve", "off")
    model.setOptionValue("objective_bound", cutoff)
    basis, until = model.getBasis(), time.monotonic() + seconds
    for nth, variable in enumerate(variables):
        if stop.pressed or time.monotonic() > until:
            break
        if bounds[nth] > cutoff or (variable.value() or 0.0) >= 1:
            continue
        model.changeColBounds(variable.index, 1.0, variable.upBound)
        model.setBasis(basis)
        model.run()
        if model.getModelStatus() == HighsModelStatus.kOptimal:
            bounds[nth] = max(bounds[nth], model.getObjectiveValue())
        elif model.getModelStatus() in (HighsModelStatus.kInfeasible, HighsModelStatus.kObjectiveBound):
            bounds[nth] = math.inf
        model.changeColBounds(variable.index, 0.0, variable.upBound)
    return bounds


def _highs(limit: float, gap: float, stop: Interrupt, watch: Watch | None) -> pulp.LpSolver:
    import highspy

    from planner.exact.highs import SilentHiGHS

    def on_callback(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        enough = False
        if watch is not None and kind == highspy.cb.HighsCallbackType.kCallbackMipInterrupt:
            enough = watch(float(out.mip_primal_bound), float(out.mip_dual_bound))
        if stop.pressed or enough:
            into.user_interrupt = True

    kinds = highspy.cb.HighsCallbackType
    return SilentHiGHS(
        time_limit=limit,
        mip_rel_gap=gap,
        mip_abs_gap=0.0,
        callbackTuple=(on_callback, None),
        callbacksToActivate=[kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt],
        primal_feasibility_tolerance=ROUNDING,
        mip_feasibility_tolerance=ROUNDING,
    )


@contextmanager
def interruptible(stop: Interrupt) -> Iterator[None]:
    """Context manager that records Ctrl-C in `stop` and does not raise it, as a running solver does not return
    to Python."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def press(number: int, frame: object) -> None:
        stop.pressed = True

    previous = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
