"""Recommender shardings as data frames that plots read: steps' stages by GPU, memory of GPUs and hosts, shards of
tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.recommender import memory
from cost_models.recommender.prices import RecommenderEstimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding
from meshwright.records import fields_of, frame_of

if TYPE_CHECKING:
    import pandas as pd


def stages_frame(priced: RecommenderEstimate) -> pd.DataFrame:
    """Frame with a row for each stage of a recommender's step (such as the index exchange) and GPU: `stage`, `gpu`,
    `start_seconds` and `stage_seconds` of the stage, `busy_seconds` of the GPU, and `waits`: whether the stage waits
    for this GPU."""
    gpus, seconds_K = len(priced.loads), np.array(list(priced.stages.values()))
    longest_K, is_even_K = priced.loads.max(axis=0), np.ptp(priced.loads, axis=0) == 0
    is_limit_K = (longest_K > 0) & (longest_K >= priced.hidden) & ~is_even_K
    columns = {
        "stage": np.repeat(list(priced.stages), gpus),
        "gpu": np.tile(np.arange(gpus), len(seconds_K)),
        "start_seconds": np.repeat(np.cumsum([0.0, *seconds_K[:-1]]), gpus),
        "stage_seconds": np.repeat(seconds_K, gpus),
        "busy_seconds": (priced.loads + priced.fixed).T.ravel(),
        "waits": (is_limit_K & (np.arange(gpus)[:, None] == priced.busiest)).T.ravel(),
    }
    return frame_of(columns)


def tiers_frame(priced: RecommenderEstimate) -> pd.DataFrame:
    """Frame with a row for each GPU, and each host if tables lie in host memory: `tier`, `place` (its number),
    `moment` of the step when it is fullest, bytes of each part then, and `limit_bytes`."""
    tiers = [("device", priced.device_parts, priced.device_memory)]
    tiers += [("host", priced.host_parts, priced.host_memory)] * bool(priced.host_bytes.max() > 0)
    rows = [
        {"tier": tier, "place": place, "moment": priced.fullest_moment[place] if tier == "device" else ""}
        | {name: float(size[place]) for name, size in parts.items()}
        | {"limit_bytes": float(limit) or np.nan}
        for tier, parts, limit in tiers
        for place in range(len(next(iter(parts.values()))))
    ]
    return frame_of(rows).fillna(dict.fromkeys(priced.device_parts, 0.0))


def shards_frame(question: RecommenderQuestion, sharding: Sharding) -> pd.DataFrame:
    """Frame with a row for each embedding table and GPU that holds part of it: `table`, `name`, `bytes` of the table,
    `held_as`, `form`, `tier`, `hot`, `cached`, `gpu`, and `placed`: False if every GPU holds the table alike."""
    model, cluster = question.model, question.cluster
    rows = []
    for number, (name, table) in enumerate(zip(model.table_names, sharding.tables, strict=True)):
        kind, option = model.classes[model.class_of_table[number]], table.option
        on = set(table.at) if option.placed else set(range(cluster.num_gpus))
        if option.form == "node-row":
            node_size = cluster.gpus_per_node
            on = {gpu for node in table.at for gpu in range(node * node_size, (node + 1) * node_size)}
        rows += [
            {
                "table": number,
                "name": name,
                "bytes": kind.rows * kind.width * question.training.table_bytes,
                "held_as": str(option),
                **fields_of(option, "form", "tier", "hot", "cached"),
                "gpu": gpu,
                "placed": option.placed,
            }
            for gpu in sorted(on)
        ]
    return frame_of(rows)


_WORDS = {
    memory.FORWARD: "while vectors travel",
    memory.DENSE: "while the dense network runs",
    memory.BACKWARD: "while gradients travel",
    memory.COPIES: "while gradients of copied rows are added up",
    memory.UPDATE: "while rows are updated",
    memory.SUMS: "while gradients of the dense network are summed",
}


def moment_words(moment: str) -> str:
    """Words for the moment of a recommender's step when memory peaks, such as " while gradients travel"; empty if the
    moment has none."""
    return f" {_WORDS[moment]}" if moment in _WORDS else ""
