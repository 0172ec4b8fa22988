"""Scaling curves of recommenders: the best sharding at each number of GPUs, and what its step consists of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_models.errors import RunError
from cost_models.recommender.estimating import estimate
from cost_models.recommender.question import RecommenderQuestion
from planner.recommender.answer import ShardingAnswer
from planner.recommender.planning import plan_sharding
from planner.recommender.restrictions import ShardingRestrictions, covered_options
from planner.search.budget import Budget
from planner.search.scaling import Row, scaling_rows
from planner.space.gpu_counts import on_whole_nodes, require_possible, resized

if TYPE_CHECKING:
    import pandas as pd

POINT_SECONDS = 20.0
"""Time limit of one point of a curve, seconds; its answer is then the best found."""


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
