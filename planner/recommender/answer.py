"""The best sharding of a recommender's tables, its loads and certificate: of one question, and at each number of GPUs.

Loads are added up table by table from the prices, apart from the search's own sums.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from cost_models.arrays import Array
from cost_models.base import Spec
from cost_models.errors import InputError, RunError
from cost_models.recommender.estimating import estimate
from cost_models.recommender.priced import PricedOptions
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding, TablePlacement
from cost_models.units import counted
from planner.exact.solvers import Interrupt, SolverName, available_solver, interruptible
from planner.recommender.restrictions import ShardingRestrictions, covered_options
from planner.recommender.search.problem import Objective, Placement, Problem, pose
from planner.recommender.search.search import PROVEN, Progress, Search, run
from planner.search.search import Budget, Row, scaling_rows
from planner.space.sizes import on_whole_nodes, require_possible, resized


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Table seconds of each GPU and stage, and bytes of each memory, under one sharding."""

    load: Array
    """(G, K) seconds of each GPU in each stage."""
    stage_seconds: Array
    """(K,) seconds of each stage, what no table changes left out."""
    fixed: float
    """Seconds that no table changes."""
    device_bytes: Array
    """(G, M) of each GPU at each moment."""
    host_bytes: Array
    """(N,)"""

    @property
    def step_seconds(self) -> float:
        """Seconds of a step, as the longest load of each stage, summed, plus the fixed seconds."""
        return float(self.stage_seconds.sum()) + self.fixed

    @property
    def torchrec_seconds(self) -> float:
        """Largest sum over stages of one GPU's table seconds (TorchRec's objective), without dense network and
        latencies."""
        return float(self.load.sum(axis=1).max())


def loads_of(priced: PricedOptions, rows: Sequence[int], places: Sequence[tuple[int, ...]]) -> Loads:
    """Loads and memory of a sharding in which table t takes option `rows[t]` of the prices, with shards at
    `places[t]`."""
    per_node = priced.gpus_per_node
    nodes = -(-priced.gpus // per_node)
    load = np.zeros((priced.gpus, len(priced.fixed)))
    device = np.tile(priced.fixed_bytes, (priced.gpus, 1))
    host = np.zeros(nodes)
    for row, at in zip(rows, places, strict=True):
        load += priced.everywhere_seconds[row]
        device += priced.everywhere_bytes[row]
        host += priced.everywhere_host_bytes[row]
        on_nodes = priced.options[row].form == "node-row"
        for place in at:
            gpus = slice(place * per_node, (place + 1) * per_node) if on_nodes else slice(place, place + 1)
            load[gpus] += priced.shard_seconds[row]
            device[gpus] += priced.shard_bytes[row]
            host[place if on_nodes else place // per_node] += priced.shard_host_bytes[row]
    return Loads(
        load=load,
        stage_seconds=np.maximum(load.max(axis=0), priced.stage_floors),
        fixed=float(priced.fixed.sum()),
        device_bytes=device,
        host_bytes=host,
    )


def rows_of(priced: PricedOptions, sharding: Sharding) -> tuple[int, ...]:
    """Index into the priced options of the option that each table of a sharding takes.

    Raises:
        InputError: tables of another number, or an option that has no price.
    """
    table_class = np.repeat(np.arange(len(priced.counts)), priced.counts).tolist()
    if len(sharding.tables) != len(table_class):
        raise InputError(f"the sharding has {len(sharding.tables)} tables, the prices {len(table_class)}")
    row_of = {
        (class_index, option): row
        for row, (class_index, option) in enumerate(
            zip(priced.table_class.tolist(), priced.options, strict=True)
        )
    }
    rows = []
    for table, (class_index, placed) in enumerate(zip(table_class, sharding.tables, strict=True)):
        row = row_of.get((class_index, placed.option))
        if row is None:
            raise InputError(f"{priced.name_of(table)} cannot be held as `{placed.option}`: it has no price")
        rows.append(row)
    return tuple(rows)


Method = Literal["flat", "two levels"]
"""`flat`: options and places in one program; `two levels`: bound over options, places by local search."""


class ShardingCertificate(Spec):
    """Proven lower bound on the objective over all covered shardings, and the gap of the sharding found. Method
    and solver are no part of a plan file."""

    objective: Objective
    space: str
    """Space of the proof, in words."""
    method: Method | None = None
    solver: str = ""
    tables: int
    distinct: int
    """Tables that prices and restrictions tell apart."""
    options: int
    """Number of options, over distinct tables."""
    value: float
    """The objective of the sharding, seconds."""
    bound: float
    """Proven lower bound on the objective of any covered sharding, seconds."""
    gap: float
    """(value − bound) / value; 0 proves that the sharding is optimal."""
    greedy: float | None
    """The objective of the greedy sharding, seconds; None where it does not fit."""
    undecided: bool = False
    """Whether time ran out, or the user ended the search, before it was done."""
    seconds: float = Field(default=0.0, exclude=True)
    """Search time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingAnswer:
    """The best sharding found, with its loads, the prices used and the certificate of its quality."""

    sharding: Sharding
    rows: tuple[int, ...]
    """(T,) row of the prices that each table takes."""
    priced: PricedOptions
    """The prices, with the memories that restrictions leave."""
    loads: Loads
    certificate: ShardingCertificate
    interrupted: bool = False
    """True where Ctrl-C ended the search; the answer is what was found by then."""

    @property
    def step_seconds(self) -> float:
        """Seconds of a step, in which stages follow one another, each as long as on the busiest GPU."""
        return self.loads.step_seconds


def sharding_of(problem: Problem, placement: Placement) -> tuple[Sharding, tuple[int, ...]]:
    """Convert a placement of the search into a sharding, and the index of each table's option in the prices."""
    rows = np.full(int(problem.priced.counts.sum()), -1, dtype=np.int64)
    places: dict[int, tuple[int, ...]] = {}
    for table, (row, at) in problem.preplaced.items():
        rows[table], places[table] = row, at
    for unit, row, at in zip(problem.units, placement.row.tolist(), placement.places, strict=True):
        for table, pick in zip(unit, problem.picks[row], strict=True):
            rows[table], places[table] = pick, at
    chosen_rows = tuple(rows.tolist())
    options = problem.priced.options
    tables = tuple(
        TablePlacement(options[row], tuple(sorted(places[table]))) for table, row in enumerate(chosen_rows)
    )
    return Sharding(tables), chosen_rows


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
        **certificate_fields(search),
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


def certificate_fields(search: Search) -> dict[str, Any]:
    """Certificate fields that are known once a search has a greedy sharding."""
    problem, greedy = search.problem, search.greedy_value
    return {
        "space": space_in_words(problem),
        "tables": int(problem.priced.counts.sum()),
        "distinct": len(problem.members),
        "options": len(problem.picks),
        "greedy": greedy if math.isfinite(greedy) else None,
    }


def space_in_words(problem: Problem) -> str:
    """Description, in words, of the shardings that a proof over this problem covers."""
    options = problem.priced.options
    forms = sorted({str(options[pick].form) for picks in problem.picks for pick in picks})
    forms += ["copies of hot rows"] * any(options[pick].hot for picks in problem.picks for pick in picks)
    tiers = sorted({options[pick].tier for picks in problem.picks for pick in picks})
    places = counted(problem.gpus, "GPU")
    if problem.nodes > 1:
        places += f" in {counted(problem.nodes, 'node')}"
    units = f"{counted(len(problem.unit_class), 'table')}, {len(problem.members)} of them distinct"
    fixed = f"; {counted(len(problem.preplaced), 'table')} where said" if problem.preplaced else ""
    return f"{units}, held as {', '.join(forms)} in memory of {' and '.join(tiers)}, on all places of {places}{fixed}"


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
    stages = priced.stages.as_dict()
    return {
        "gpus": question.cluster.num_gpus,
        "global_batch": question.training.global_batch,
        "held": _tables_by_option(answer),
        "step_seconds": priced.step_seconds,
        "samples_per_second": priced.samples_per_second,
        "gap": answer.certificate.gap,
        "longest": max(stages, key=lambda name: stages[name]),
        **stages,
    }


def _tables_by_option(answer: ShardingAnswer) -> str:
    """Number of tables held in each option, most first, such as "18 whole, 6 copy, 2 row"."""
    counts: dict[str, int] = {}
    for placed in answer.sharding.tables:
        option = str(placed.option)
        counts[option] = counts.get(option, 0) + 1
    return ", ".join(
        f"{count} {option}" for option, count in sorted(counts.items(), key=lambda item: -item[1])
    )
