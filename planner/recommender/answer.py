"""Best sharding of a recommender's tables with the proof of its quality, for one question and at each number
of GPUs."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from cost_models.base import Spec
from cost_models.errors import InputError, RunError
from cost_models.recommender.estimating import estimate
from cost_models.recommender.priced import PricedOptions
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding, TablePlacement
from cost_models.units import counted
from planner.exact.solvers import SolverName, available_solver, interruptible
from planner.recommender.restrictions import ShardingRestrictions, covered_options
from planner.recommender.search.problem import Objective, Placement, Problem, pose
from planner.recommender.search.search import PROVEN, Progress, Search, run
from planner.search.search import Budget, Row, scaling_rows
from planner.space.sizes import on_whole_nodes, require_possible, resized


def rows_of(priced: PricedOptions, sharding: Sharding) -> tuple[int, ...]:
    """Index into the priced options of the option that each table of a sharding takes.

    Raises:
        InputError: tables of another number, or an option that has no price.
    """
    class_of_table, row_of = priced.class_of_table.tolist(), priced.row_of
    if len(sharding.tables) != len(class_of_table):
        raise InputError(f"the sharding has {len(sharding.tables)} tables, the prices {len(class_of_table)}")
    rows = []
    for table, (class_index, placed) in enumerate(zip(class_of_table, sharding.tables, strict=True)):
        if (row := row_of.get((class_index, placed.option))) is None:
            raise InputError(f"{priced.name_of(table)} cannot be held as `{placed.option}`: it has no price")
        rows.append(row)
    return tuple(rows)


Method = Literal["flat", "two levels"]
"""Method of a proof, `flat` for options and places in one program, or `two levels` for a bound over options
with places by local search."""


class ShardingCertificate(Spec):
    """Proven lower bound on the objective over all covered shardings, and the gap of the sharding found. Method
    and solver are no part of a plan file."""

    objective: Objective
    space: str
    """Text that says which shardings the proof covers."""
    method: Method | None = None
    solver: str = ""
    tables: int
    distinct: int
    """Number of tables that differ by prices or restrictions."""
    options: int
    """Number of options, over distinct tables."""
    value: float
    """Objective of the sharding found, seconds."""
    bound: float
    """Proven lower bound on the objective of any covered sharding, seconds."""
    gap: float
    """(value − bound) / value; 0 proves that the sharding is optimal."""
    greedy: float | None
    """Objective of the greedy sharding, seconds; None if that sharding does not fit."""
    undecided: bool = False
    """Whether the search ended before it was done, by the time limit or by the user."""
    seconds: float = Field(default=0.0, exclude=True)
    """Seconds of the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingAnswer:
    """The best sharding found, with the certificate of its quality."""

    sharding: Sharding
    rows: tuple[int, ...]
    """(T,) index into the priced options of each table's sharding option."""
    certificate: ShardingCertificate
    interrupted: bool = False
    """Whether Ctrl-C ended the search; the answer is then the best found so far."""


def sharding_of(problem: Problem, placement: Placement) -> tuple[Sharding, tuple[int, ...]]:
    """Convert a placement of the search into a sharding, and the index of each table's option in the prices."""
    held = dict(problem.preplaced)
    for unit, row, at in zip(problem.units, placement.row.tolist(), placement.places, strict=True):
        held |= {table: (pick, at) for table, pick in zip(unit, problem.rows.picks[row], strict=True)}
    in_order, options = [held[table] for table in range(len(held))], problem.priced.options
    tables = tuple(TablePlacement(options[row], tuple(sorted(at))) for row, at in in_order)
    return Sharding(tables), tuple(row for row, _ in in_order)


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
    """Search for the best sharding at these prices, and prove how far from optimal the result can be.

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
    interrupt = Event()
    search = Search(
        problem=problem,
        solver=solver or available_solver(),
        time_limit=math.inf if time_limit is None else time_limit,
        interrupt=interrupt,
        progress=progress,
    )
    with interruptible(interrupt):
        run(search)
    if interrupt.is_set() and not keep_on_interrupt:
        raise KeyboardInterrupt
    assert search.best is not None
    certificate = ShardingCertificate(
        objective=objective,
        **certificate_fields(search),
        method="flat" if search.flat else "two levels",
        solver=search.solver,
        value=search.value,
        bound=search.bound,
        gap=search.gap if search.gap > PROVEN else 0.0,
        undecided=search.left_open and search.gap > PROVEN,
        seconds=time.monotonic() - start,
    )
    sharding, rows = sharding_of(problem, search.best)
    ended = interrupt.is_set()
    return ShardingAnswer(sharding=sharding, rows=rows, certificate=certificate, interrupted=ended)


def certificate_fields(search: Search) -> dict[str, Any]:
    """Certificate fields that are known once a search has a greedy sharding; `space` says which shardings the proof
    covers."""
    problem, greedy = search.problem, search.greedy_value
    options = problem.priced.options
    used = [options[pick] for picks in problem.rows.picks for pick in picks]
    forms = sorted({str(option.form) for option in used})
    forms += ["copies of hot rows"] * any(option.hot for option in used)
    tiers = sorted({option.tier for option in used})
    places = counted(problem.gpus, "GPU")
    if problem.priced.nodes > 1:
        places += f" in {counted(problem.priced.nodes, 'node')}"
    units = f"{counted(len(problem.units), 'table')}, {len(problem.members)} of them distinct"
    fixed = f"; {counted(len(problem.preplaced), 'table')} where said" if problem.preplaced else ""
    held = f"held as {', '.join(forms)} in memory of {' and '.join(tiers)}"
    return {
        "space": f"{units}, {held}, on all places of {places}{fixed}",
        "tables": int(problem.priced.counts.sum()),
        "distinct": len(problem.members),
        "options": len(problem.rows.picks),
        "greedy": greedy if math.isfinite(greedy) else None,
    }


def best_sharding(
    question: RecommenderQuestion,
    budget: Budget,
    restrictions: ShardingRestrictions | None = None,
    seconds: float = math.inf,
) -> ShardingAnswer | None:
    """Search for the best sharding of a question in the budget's remaining time; None if no time is left or
    none was found in time.

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
        answer = plan_sharding(
            covered_options(question, limits),
            restrictions=limits,
            time_limit=None if math.isinf(limit) else limit,
            keep_on_interrupt=budget.keep_on_interrupt,
            solver=budget.solver,
        )
    except RunError as error:
        budget.failure = error
        return None
    budget.interrupted = budget.ended = answer.interrupted
    return answer


def sharding_scaling_frame(
    question: RecommenderQuestion,
    gpu_counts: Sequence[int],
    kinds: Sequence[str],
    budget: Budget | None = None,
) -> pd.DataFrame:
    """Best sharding at each number of GPUs, with a fixed batch (strong scaling) and a fixed batch per GPU (weak
    scaling).

    Columns: `kind`, `gpus`, `global_batch`, `held` (tables by option), `step_seconds`, `samples_per_second`, `gap`,
    `longest` (the stage that takes most), and seconds of each stage by its name. Left out are numbers of GPUs on which
    nothing fits, over which the batch does not divide, and those the budget's time did not reach.

    Raises:
        InputError: numbers of GPUs that the cluster cannot have.
    """
    import pandas as pd

    on_nodes, spending = on_whole_nodes(question), budget or Budget()
    require_possible(on_nodes.cluster, gpu_counts)

    def row_at(gpus: int, samples: int) -> Row | None:
        resized_question = resized(on_nodes, gpus, samples)
        answer = best_sharding(resized_question, spending, seconds=POINT_SECONDS)
        return None if answer is None else _row(resized_question, answer)

    return pd.DataFrame(scaling_rows(question, gpu_counts, kinds, spending, row_at))


def _row(question: RecommenderQuestion, answer: ShardingAnswer) -> Row:
    priced = estimate(question, answer.sharding)
    stages = dict(priced.stages)
    held = Counter(str(placed.option) for placed in answer.sharding.tables)
    return {
        "gpus": question.cluster.num_gpus,
        "global_batch": question.training.global_batch,
        "held": ", ".join(f"{count} {option}" for option, count in held.most_common()),
        "step_seconds": priced.step_seconds,
        "samples_per_second": priced.samples_per_second,
        "gap": answer.certificate.gap,
        "longest": max(stages, key=lambda name: stages[name]),
        **stages,
    }
