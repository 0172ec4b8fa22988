"""Prices as HugeCTR's planner has them: lookups of the busiest GPU, and a due for every shard that it sends.

HugeCTR 25.03, samples/dlrm/sharding/planner.py and generate_plan.py; with k slices of a table's rows or columns:

    cost of a GPU = Σ over its shards of B · D · (ρ · p/k + β)        of D/k for slices of columns

p ids a sample, β how many times faster memory is than links (7 on eight H100, 67 on several nodes), ρ how many times
more a lookup moves in memory than its vector on links (4). The sample's planner leaves out D, which is one for all.
A plan's rate is the most that any GPU has: `PricedOptions` with all of it in one stage and nothing fixed. Tables
smaller than a threshold are copied and cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.recommenders.planners import option_prices
from cost_models.errors import InputError
from cost_models.recommender.options import STAGES, Pair, PricedOptions
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Option

WORK_RATIO = 4.0
"""ρ, `mem_comm_work_ratio`."""
MEMORY = 60e9
"""Bytes of a GPU for tables, `memory_cap_for_embedding`."""


def hugectr_options(
    question: RecommenderQuestion,
    options: Sequence[Pair] | None = None,
    *,
    bandwidth_ratio: float = 60.0,
    work_ratio: float = WORK_RATIO,
    memory: float = MEMORY,
) -> PricedOptions:
    """Costs of a step in elements of vectors; default options: whole, slices of rows by powers of two, row.

    Raises:
        InputError: an option that its planner has not.
    """
    classes, cluster = question.model.classes, question.cluster
    pairs = list(_usual(question) if options is None else options)
    if strange := [str(option) for _, option in pairs if option.hot or option.tier == "host"]:
        raise InputError(f"HugeCTR's planner has no `{strange[0]}`")
    cost, size = np.zeros(len(pairs)), np.zeros(len(pairs))
    for at, (which, option) in enumerate(pairs):
        table, spread = classes[which], {"row": cluster.num_gpus, "node-row": cluster.gpus_per_node}
        rows = option.shards if option.shards > 1 and option.form == "row" else spread.get(option.form, 1)
        rows *= option.shards if option.form == "node-row" else 1
        columns = option.shards if option.form == "column" else 1
        width = table.width / columns
        if option.form != "copy":
            cost[at] = (
                question.training.global_batch * width * (work_ratio * table.pooling / rows + bandwidth_ratio)
            )
        states = {"sgd": 0.0, "rowwise-adagrad": 4.0 / table.width, "adagrad": 4.0, "adam": 8.0}
        each = question.training.table_bytes + states[question.training.optimizer]
        size[at] = table.rows / rows * table.width / columns * each
    stages = np.zeros((len(pairs), len(STAGES)))
    stages[:, STAGES.index(STAGES.lookup)] = cost
    return option_prices(question, pairs, stages, size, np.zeros(len(pairs)), memory=memory, host_memory=0.0)


def _usual(question: RecommenderQuestion) -> Sequence[Pair]:
    """Options that HugeCTR's planner tries: whole tables, and row slices over powers of two GPUs."""
    gpus = question.cluster.num_gpus
    forms = [
        Option("whole"),
        *(Option("row", 2**k) for k in range(1, (gpus - 1).bit_length())),
        Option("row"),
    ]
    return [(which, form) for which in range(len(question.model.classes)) for form in forms]
