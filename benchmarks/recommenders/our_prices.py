"""TorchRec's prices as this project's formulas have them, beside those that TorchRec enumerates."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np

from benchmarks.recommenders.instances import Instance
from benchmarks.recommenders.planners.torchrec import TorchRecTopology, torchrec_options
from cost_models.arrays import Array
from cost_models.files.catalog import load_cluster, load_profile, load_stack
from cost_models.recommender.options import STAGES, PricedOptions
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.constants import EmbeddingProfile
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import Option
from cost_models.specs.recommender.training import RecommenderTraining

GIB = 1024**3
TOPOLOGY = TorchRecTopology(memory=80 * GIB, memory_bandwidth=2039 * GIB, intra_node=300 * GIB)
SLICE = 128
"""Columns of a slice where TorchRec cuts a table unasked."""
ORDER = [
    STAGES.index(one)
    for one in (STAGES.lookup, STAGES.forward_exchange, STAGES.backward_exchange, STAGES.update)
]
"""Our stages in the order of TorchRec's parts."""
ALIKE = 1e-6


def our_prices(instance: Instance) -> tuple[PricedOptions, float]:
    """Our prices of an instance, from its tables as they stand, and the CPU seconds that took."""
    cluster, stack, hardware = (
        load_cluster("dgx-h100"),
        load_stack("meshwright"),
        load_profile("datasheet-gpu"),
    )
    start = time.process_time()
    node = min(8, instance.gpus)
    question = RecommenderQuestion(
        model=RecommenderSpec(
            tables=tuple(
                TableSpec(
                    name=f"t{at}", count=count, rows=table.rows, width=table.width, pooling=table.pooling
                )
                for at, (table, count) in enumerate(Counter(instance.tables).items())
            ),
            bottom_mlp=(64, 32),
            interaction=Interaction(kind="none"),
            top_mlp=(64, 1),
        ),
        cluster=cluster.model_copy(update={"nodes": instance.gpus // node, "gpus_per_node": node}),
        training=RecommenderTraining(global_batch=instance.batch * instance.gpus),
        stack=stack,
        hardware=hardware,
        embedding=EmbeddingProfile(),
    )
    pairs = [
        (which, option)
        for which, table in enumerate(question.model.classes)
        for option in (
            Option("column", table.width // SLICE) if table.width > SLICE else Option("whole"),
            Option("whole"),
            Option("copy"),
            Option("row"),
        )
    ]
    priced = torchrec_options(question, list(dict.fromkeys(pairs)), TOPOLOGY)
    return priced, time.process_time() - start


def agree(ours: PricedOptions, theirs: PricedOptions) -> bool:
    """Whether each option that TorchRec enumerates has our seconds and bytes."""
    mine = _figures(ours, ORDER, 1e3)
    known = {one: np.flatnonzero([option == one for option in ours.options]) for one in set(ours.options)}
    return all(
        (np.abs(mine[known[option]] - row) <= ALIKE * np.abs(row)).all(axis=1).any()
        for option, row in zip(theirs.options, _figures(theirs, [0, 1, 2, 3], 1.0), strict=True)
    )


def _figures(priced: PricedOptions, order: list[int], scale: float) -> Array:
    """(O, 5) milliseconds of the parts and bytes of a shard, or of a table on every GPU."""
    seconds = (priced.shard_seconds + priced.everywhere_seconds)[:, order] * scale
    size = priced.shard_bytes + priced.everywhere_bytes
    figures: Array = np.column_stack([seconds, size.reshape(len(size), -1).sum(axis=1)])
    return figures
