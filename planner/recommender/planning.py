"""The best sharding of a recommender's tables, with its certificate: of one question, and at each number of GPUs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cost_models.errors import RunError
from cost_models.recommender.estimating import estimate
from cost_models.recommender.priced import PricedOptions
from cost_models.recommender.question import RecommenderQuestion
from cost_models.units import counted
from planner.exact.solvers import Interrupt, SolverName, available_solver, interruptible
from planner.recommender.answer import ShardingAnswer, ShardingCertificate, loads_of, sharding_of
from planner.recommender.restrictions import ShardingRestrictions, covered_options
from planner.recommender.search.posing import pose
from planner.recommender.search.problem import Objective, Problem
from planner.recommender.search.searching import PROVEN, Progress, Search, run
from planner.search.search import Budget, Row, scaling_rows
from planner.space.sizes import on_whole_nodes, require_possible, resized

if TYPE_CHECKING:
    import pandas as pd

POINT_SECONDS = 20.0
"""Time limit of one point of a curve, seconds; its answer is then the best found."""


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
        DoesNotFitError: proven that no sharding fits.
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
        **covered(search),
        method="flat" if search.flat else "two levels",
        solver=search.solver,
        value=search.value,
        bound=search.bound,
        gap=search.gap if search.gap > PROVEN else 0.0,
        undecided=search.left_open and search.gap > PROVEN,
        seconds=time.monotonic() - start,
    )
    return ShardingAnswer(
        sharding=sharding,
        rows=rows,
        priced=problem.priced,
        loads=loads_of(problem.priced, rows, [placed.at for placed in sharding.tables]),
        certificate=certificate,
        interrupted=interrupt.pressed,
    )


def covered(begun: Search) -> dict[str, Any]:
    """What a certificate says of a search that has its greedy sharding, whatever was proved since."""
    problem, greedy = begun.problem, begun.greedy_value
    return {
        "space": space_in_words(problem),
        "tables": int(problem.priced.counts.sum()),
        "distinct": len(problem.members),
        "options": len(problem.picks),
        "greedy": greedy if math.isfinite(greedy) else None,
    }


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


def best_sharding(
    question: RecommenderQuestion,
    budget: Budget,
    restrictions: ShardingRestrictions | None = None,
    seconds: float = math.inf,
) -> ShardingAnswer | None:
    """The best sharding of a question within the budget's remaining time; None where it is spent.

    `seconds` limits this search alone.

    Raises:
        InfeasibleError: nothing fits, which is proven.
    """
    limit = min(budget.seconds_left, seconds)
    if budget.ended or limit <= 0:
        budget.ended = True
        return None
    limits = restrictions or ShardingRestrictions()
    budget.searches += 1
    try:
        found = plan_sharding(
            covered_options(question, limits),
            restrictions=limits,
            time_limit=None if math.isinf(limit) else limit,
            keep_on_interrupt=budget.keep_on_interrupt,
            solver=budget.solver,
        )
    except RunError as error:
        budget.failure = error
        return None
    budget.interrupted = budget.ended = found.interrupted
    return found


def sharding_scaling_frame(
    question: RecommenderQuestion,
    gpu_counts: Sequence[int],
    kinds: Sequence[str],
    budget: Budget | None = None,
) -> pd.DataFrame:
    """The best sharding at each number of GPUs, with the same batch (strong) and with as many samples a GPU (weak).

    Columns: `kind`, `gpus`, `global_batch`, `held` (tables by option), `step_seconds`, `samples_per_second`, `gap`,
    `longest` (the stage that takes most), and seconds of each stage by its name. Left out are numbers of GPUs on which
    nothing fits, over which the batch does not divide, and those the budget's time did not reach.

    Raises:
        InputError: numbers of GPUs that the cluster cannot have.
    """
    import pandas as pd

    whole, spending = on_whole_nodes(question), budget or Budget()
    require_possible(whole.cluster, gpu_counts)

    def row_at(gpus: int, samples: int) -> Row | None:
        there = resized(whole, gpus, samples)
        found = best_sharding(there, spending, seconds=POINT_SECONDS)
        return None if found is None else _row(there, found)

    return pd.DataFrame(scaling_rows(question, gpu_counts, kinds, spending, row_at))


def _row(question: RecommenderQuestion, found: ShardingAnswer) -> Row:
    priced = estimate(question, found.sharding)
    stages = priced.stages.as_dict()
    return {
        "gpus": question.cluster.num_gpus,
        "global_batch": question.training.global_batch,
        "held": _held(found),
        "step_seconds": priced.step_seconds,
        "samples_per_second": priced.samples_per_second,
        "gap": found.certificate.gap,
        "longest": max(stages, key=lambda name: stages[name]),
        **stages,
    }


def _held(found: ShardingAnswer) -> str:
    """ "18 whole, 6 copy, 2 row": how many tables are held in each way, most first."""
    counts: dict[str, int] = {}
    for placed in found.sharding.tables:
        option = str(placed.option)
        counts[option] = counts.get(option, 0) + 1
    return ", ".join(f"{count} {option}" for option, count in sorted(counts.items(), key=lambda one: -one[1]))
