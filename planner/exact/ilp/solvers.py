"""One call of the solver behind PuLP, HiGHS or CBC: what it found, what it proved, and how it ends early."""

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
"""Called now and then with the solver's (best, bound); whether that is enough."""


@dataclass(slots=True)
class Interrupt:
    """Whether the user pressed Ctrl-C while a solver ran."""

    pressed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """Result of one solve. `bound` holds whatever the verdict; variables have values where `found`."""

    verdict: Verdict
    bound: float
    found: bool


def available_solver() -> SolverName:
    """HiGHS where highspy can be imported, else CBC."""
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
    """Minimise on one thread; `bound` is the solver's own where it gives one, else −infinity.

    At a time limit PuLP reports `status` Optimal for whatever was found; `sol_status` alone tells the difference.
    """
    stop = interrupt or Interrupt()
    limit = max(seconds, 0.01) if math.isfinite(seconds) else None
    if solver == "highs":
        with interruptible(stop):
            problem.solve(_highs(limit, gap, stop, watch))
        info = problem.solverModel.getInfo()
        integer = any(one.cat == pulp.LpInteger for one in problem.variables())
        bound = float(info.mip_dual_bound) if integer else -math.inf
        found = math.isfinite(info.objective_function_value) and info.primal_solution_status == 2
    else:
        problem.solve(_cbc(limit, gap))
        bound, found = (
            -math.inf,
            problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible),
        )
    if problem.status == pulp.LpStatusInfeasible:
        return Solved(verdict="infeasible", bound=math.inf, found=False)
    if problem.sol_status == pulp.LpSolutionOptimal and found:
        value = float(pulp.value(problem.objective))
        return Solved(
            verdict="optimal", bound=value if not math.isfinite(bound) else min(bound, value), found=True
        )
    return Solved(verdict="stopped", bound=bound, found=found)


def at_least_one(
    problem: pulp.LpProblem,
    solved: Solved,
    variables: Sequence[pulp.LpVariable],
    cutoff: float,
    stop: Interrupt,
    seconds: float = math.inf,
) -> list[float]:
    """Lower bounds of a relaxed program that was just solved, each with one variable fixed at 1 or more; after
    `seconds` those of the others are left as they follow from reduced costs.

    HiGHS solves it again for each whose reduced cost leaves it below `cutoff`; of CBC reduced costs are all there is.
    """
    bounds = [solved.bound + max(one.dj or 0.0, 0.0) for one in variables]
    if not isinstance(problem.solver, pulp.HiGHS):
        return bounds
    from highspy import HighsModelStatus

    model = problem.solverModel
    model.setOptionValue("presolve", "off")
    model.setOptionValue("objective_bound", cutoff)
    basis, until = model.getBasis(), time.monotonic() + seconds
    for nth, one in enumerate(variables):
        if stop.pressed or time.monotonic() > until:
            break
        if bounds[nth] > cutoff or (one.value() or 0.0) >= 1:
            continue
        model.changeColBounds(one.index, 1.0, one.upBound)
        model.setBasis(basis)
        model.run()
        if model.getModelStatus() == HighsModelStatus.kOptimal:
            bounds[nth] = max(bounds[nth], model.getObjectiveValue())
        elif model.getModelStatus() in (HighsModelStatus.kInfeasible, HighsModelStatus.kObjectiveBound):
            bounds[nth] = math.inf
        model.changeColBounds(one.index, 0.0, one.upBound)
    return bounds


def _highs(limit: float | None, gap: float, stop: Interrupt, watch: Watch | None) -> pulp.LpSolver:
    import highspy

    from planner.exact.ilp.highs import SilentHiGHS

    def on_callback(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        enough = False
        if watch is not None and kind == highspy.cb.HighsCallbackType.kCallbackMipInterrupt:
            enough = watch(float(out.mip_primal_bound), float(out.mip_dual_bound))
        if stop.pressed or enough:
            into.user_interrupt = True

    kinds = highspy.cb.HighsCallbackType
    return SilentHiGHS(
        threads=1,
        timeLimit=limit,
        gapRel=gap,
        gapAbs=0,
        callbackTuple=(on_callback, None),
        callbacksToActivate=[kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt],
        primal_feasibility_tolerance=ROUNDING,
        mip_feasibility_tolerance=ROUNDING,
    )


def _cbc(limit: float | None, gap: float) -> pulp.LpSolver:
    return pulp.getSolver(
        "PULP_CBC_CMD", msg=False, threads=1, timeLimit=limit, gapRel=gap, gapAbs=0, _skip_v4_deprecation=True
    )


@contextmanager
def interruptible(stop: Interrupt) -> Iterator[None]:
    """Record Ctrl-C in `stop` in place of raising it: a running solver does not return to Python."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def press(number: int, frame: object) -> None:
        stop.pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
