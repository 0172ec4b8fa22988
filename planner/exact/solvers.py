"""Call of the solver behind PuLP (HiGHS or CBC), with solution, bound, time limit and interrupt."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Event, current_thread, main_thread
from typing import Any, Literal, NamedTuple

import pulp

SolverName = Literal["highs", "cbc"]
ROUNDING = 1e-9
"""Feasibility tolerance of a solver, relative because rows are scaled to one."""
Verdict = Literal["optimal", "infeasible", "stopped"]
Watch = Callable[[float, float], bool]
"""Function called during a solve with the best value and bound, which returns whether to stop."""


class Solved(NamedTuple):
    """Result of one solver call: verdict, bound, and whether the variables have values. `bound` is a lower
    bound of the optimum under every verdict; variables have values if `has_solution`."""

    verdict: Verdict
    bound: float
    has_solution: bool


def available_solver() -> SolverName:
    """Name of the solver to use, "highs" where highspy can be imported, else "cbc"."""
    return "highs" if pulp.HiGHS(msg=False).available() else "cbc"


def weighted_sum(terms: Iterable[tuple[pulp.LpVariable, float]]) -> pulp.LpAffineExpression:
    """Linear expression Σ coefficient · variable, over different variables."""
    return pulp.LpAffineExpression({variable: value for variable, value in terms if value})


def solve(
    problem: pulp.LpProblem,
    solver: SolverName,
    *,
    seconds: float = math.inf,
    gap: float = 0.0,
    interrupt: Event | None = None,
    watch: Watch | None = None,
) -> Solved:
    """Minimise a PuLP problem on one thread by HiGHS or CBC, until `interrupt` is set; return the verdict, a lower
    bound and whether variables have values. `bound` is the solver's own where it gives one, else −infinity.

    At a time limit PuLP reports `status` Optimal for whatever was found; `sol_status` alone tells the difference.
    """
    stop = interrupt or Event()
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
        cbc = pulp.getSolver("PULP_CBC_CMD", msg=False, threads=1, _skip_v4_deprecation=True, **options)
        problem.solve(cbc)
        bound = -math.inf
        has_solution = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    if problem.status == pulp.LpStatusInfeasible:
        return Solved("infeasible", math.inf, has_solution=False)
    if problem.sol_status == pulp.LpSolutionOptimal and has_solution:
        value = float(pulp.value(problem.objective))
        bound = min(bound, value) if math.isfinite(bound) else value
        return Solved("optimal", bound, has_solution)
    return Solved("stopped", bound, has_solution)


def bounds_with_variable(
    problem: pulp.LpProblem,
    solved: Solved,
    variables: Sequence[pulp.LpVariable],
    cutoff: float,
    stop: Event,
    seconds: float = math.inf,
) -> list[float]:
    """Lower bound of the optimum of a solved relaxed program under the condition that a variable is at least
    1, for each of `variables`.

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
        if stop.is_set() or time.monotonic() > until:
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


def _highs(limit: float, gap: float, stop: Event, watch: Watch | None) -> pulp.LpSolver:
    """Create PuLP's HiGHS solver on one thread, without output, since programs read answers from stdout. It
    ends after `limit` seconds, at the relative `gap`, or as soon as `stop` is set or `watch` returns True."""
    import highspy

    kinds = highspy.cb.HighsCallbackType

    def on_callback(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        """Stop the solver if interrupted or if `watch` says that the bound suffices."""
        enough = False
        if watch is not None and kind == kinds.kCallbackMipInterrupt:
            enough = watch(float(out.mip_primal_bound), float(out.mip_dual_bound))
        if stop.is_set() or enough:
            into.user_interrupt = True

    class SilentModel(highspy.Highs):
        """HiGHS model with output turned off before callbacks are enabled, as HiGHS 1.16 prints its name there."""

        def enableCallbacks(self) -> None:  # noqa: N802 -- HiGHS's name
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    class SilentHiGHS(pulp.HiGHS):  # type: ignore[misc]
        """PuLP's HiGHS solver, changed not to print while it builds the model."""

        def createAndConfigureSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802 -- PuLP's name
            lp.solverModel = model = SilentModel()  # type: ignore[no-untyped-call]
            model.setCallback(on_callback, None)
            for kind in (kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt):
                model.startCallback(kind)
            options = {"threads": 1, "time_limit": limit, "mip_rel_gap": gap, "mip_abs_gap": 0.0}
            precision = dict.fromkeys(("primal_feasibility_tolerance", "mip_feasibility_tolerance"), ROUNDING)
            for name, value in (options | precision).items():
                model.setOptionValue(name, value)

    return SilentHiGHS()


@contextmanager
def interruptible(stop: Event) -> Iterator[None]:
    """Store Ctrl-C in the event `stop` within a `with` block, instead of raising, as a running solver does
    not return to Python."""

    def press(number: int, frame: object) -> None:
        """Handle Ctrl-C by setting the event."""
        stop.set()

    with ExitStack() as restoring:
        if current_thread() is main_thread():
            restoring.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, press))
        yield
