"""The best sharding of a recommender's tables, with its certificate."""

from __future__ import annotations

import math
import time

from cost_models.recommender.priced import PricedOptions
from cost_models.units import counted
from planner.exact.ilp.solvers import Interrupt, SolverName, available_solver, interruptible
from planner.recommender.answer import ShardingAnswer, ShardingCertificate, loads_by_gpu, sharding_of
from planner.recommender.restrictions import ShardingRestrictions
from planner.recommender.search.posing import pose
from planner.recommender.search.problem import Objective, Problem
from planner.recommender.search.searching import PROVEN, Progress, Search, run


def plan_sharding(
    priced: PricedOptions,
    *,
    objective: Objective = "step",
    restrictions: ShardingRestrictions | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
    keep_on_interrupt: bool = False,
    solver: SolverName | None = None,
) -> ShardingAnswer:
    """The best sharding found for these prices, and the proof of how good it is.

    After `time_limit` seconds, or on Ctrl-C with `keep_on_interrupt`, it is the best so far with the gap proved so far.

    Raises:
        InputError: restrictions that contradict the prices or one another.
        DoesNotFitError: proven that no sharding fits; `why` has the figures.
        RunError: time ran out before any sharding that fits was found.
        KeyboardInterrupt: the user ended it, unless interrupts are kept.
    """
    start = time.monotonic()
    limits = restrictions or ShardingRestrictions()
    problem = pose(priced, objective, limits)
    interrupt = Interrupt()
    search = Search(
        problem=problem,
        solver=solver or available_solver(),
        time_limit=math.inf if time_limit is None else time_limit,
        interrupt=interrupt,
        progress=progress,
    )
    with interruptible(interrupt):
        run(search)
    if interrupt.pressed and not keep_on_interrupt:
        raise KeyboardInterrupt
    assert search.best is not None
    sharding, rows = sharding_of(problem, search.best)
    certificate = ShardingCertificate(
        objective=objective,
        space=space_in_words(problem),
        method="flat" if search.flat else "two levels",
        solver=search.solver,
        tables=len(rows),
        distinct=len(problem.members),
        options=len(problem.picks),
        value=search.value,
        bound=search.bound,
        gap=search.gap if search.gap > PROVEN else 0.0,
        greedy=search.greedy_value if math.isfinite(search.greedy_value) else None,
        undecided=search.left_open and search.gap > PROVEN,
        seconds=time.monotonic() - start,
    )
    return ShardingAnswer(
        sharding=sharding,
        rows=rows,
        priced=problem.priced,
        loads=loads_by_gpu(problem.priced, sharding, rows),
        certificate=certificate,
        interrupted=interrupt.pressed,
    )


def space_in_words(problem: Problem) -> str:
    """The space that a proof over this problem covers, in words."""
    options = problem.priced.options
    forms = sorted({str(options[pick].form) for picks in problem.picks for pick in picks})
    forms += ["copies of hot rows"] * any(options[pick].hot for picks in problem.picks for pick in picks)
    tiers = sorted({options[pick].tier for picks in problem.picks for pick in picks})
    places = counted(problem.gpus, "GPU")
    if problem.nodes > 1:
        places += f" in {counted(problem.nodes, 'node')}"
    units = f"{counted(len(problem.unit_class), 'table')}, {len(problem.members)} of them distinct"
    given = f"; {counted(len(problem.given), 'table')} where said" if problem.given else ""
    return f"{units}, held as {', '.join(forms)} in memory of {' and '.join(tiers)}, on all places of {places}{given}"
