"""What other planners charge for an option, as rows of the same form as our prices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.arrays import Array
from cost_models.recommender.options import STAGES, Pair, PricedOptions
from cost_models.recommender.question import RecommenderQuestion


def option_prices(
    question: RecommenderQuestion,
    pairs: Sequence[Pair],
    seconds: Array,
    device_bytes: Array,
    host_bytes: Array,
    *,
    memory: float,
    host_memory: float,
) -> PricedOptions:
    """Prices of (class, option) pairs from (O, K) seconds and (O,) bytes of a shard, with nothing beside the tables."""
    count = np.array([option.shards if option.placed else 0 for _, option in pairs], dtype=np.int64)
    placed = count > 0
    none = np.zeros(len(STAGES))
    return PricedOptions(
        options=tuple(option for _, option in pairs),
        table_class=np.array([which for which, _ in pairs], dtype=np.int64),
        shards=count,
        shard_seconds=np.where(placed[:, None], seconds, 0.0),
        everywhere_seconds=np.where(placed[:, None], 0.0, seconds),
        shard_bytes=np.where(placed, device_bytes, 0.0)[:, None],
        everywhere_bytes=np.where(placed, 0.0, device_bytes)[:, None],
        shard_host_bytes=np.where(placed, host_bytes, 0.0),
        everywhere_host_bytes=np.where(placed, 0.0, host_bytes),
        counts=np.array([one.count for one in question.model.classes], dtype=np.int64),
        fixed=none,
        stage_floors=none.copy(),
        fixed_bytes=np.zeros(1),
        device_memory=memory,
        host_memory=host_memory,
        gpus=question.cluster.num_gpus,
        gpus_per_node=question.cluster.gpus_per_node,
    )
