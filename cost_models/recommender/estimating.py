"""Prediction of a recommender's training step under one sharding of its tables, with seconds of each stage,
its busiest GPU, and memory of GPUs and hosts.

Stages are barriers: a step lasts Σ_k max_g load_gk. What a search for the most loaded GPU alone would see,
max_g Σ_k load_gk, is given beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import InputError, Problem
from cost_models.estimate import Breakdown
from cost_models.recommender.priced import STAGES
from cost_models.recommender.prices.dense import DenseNetwork, dense_device
from cost_models.recommender.prices.exchange import links_of
from cost_models.recommender.prices.memory import PARTS, fixed_bytes, moments_of, option_bytes
from cost_models.recommender.prices.pricing import fixed_seconds, stage_loads
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import option_columns
from cost_models.specs.recommender.sharding import Sharding, TablePlacement, require_none


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderEstimate:
    """Predicted seconds by stage and memory of one training step of a recommender, on W GPUs, K stages and N
    nodes."""

    stages: Breakdown
    """Seconds of each stage of the step on the stage's busiest GPU, which sum to the step time."""
    busiest: tuple[int, ...]
    """(K,) GPU that each stage waits for."""
    loads: Array
    """(W, K) seconds of work on embedding tables by each GPU in each stage."""
    fixed: Array
    """(K,) seconds of each stage that do not depend on the tables."""
    hidden: Array
    """(K,) seconds of other work that overlaps the table work of each stage, and counts where it takes
    longer."""
    device_bytes: Array
    """(W,) peak memory of each GPU during a step, bytes."""
    fullest_moment: tuple[str, ...]
    """(W,) name of the moment of the step at which each GPU's memory peaks."""
    moments: dict[str, Array]
    """Moment of the step → (W,) bytes of each GPU's memory."""
    device_parts: dict[str, Array]
    """Part of the device memory → (W,) bytes of the part at each GPU's memory peak."""
    host_bytes: Array
    """(N,) bytes of each host's memory that tables fill."""
    rank_host_bytes: Array
    """(W,) bytes of host memory of each GPU's process."""
    host_parts: dict[str, Array]
    """Part of the host memory → (N,) bytes on each host."""
    device_memory: float
    """Bytes of a GPU's memory that may be used."""
    host_memory: float
    """Bytes of a host's memory that may be used; 0 if unknown."""
    samples_per_second: float
    mfu: float
    """Model FLOPs utilisation, in which only FLOPs of the dense network count, as a share of peak over the
    step."""

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a step, the sum over stages."""
        return self.stages.total

    @property
    def busiest_sum_seconds(self) -> float:
        """Seconds of a step without barriers between stages, max_g Σ_k load_gk plus the fixed seconds."""
        return float(self.loads.sum(axis=1).max() + self.fixed.sum())

    @property
    def fullest(self) -> int:
        """Index of the GPU with the largest peak memory."""
        return int(self.device_bytes.argmax())

    @property
    def fits(self) -> bool:
        """Whether the peak memory of all GPUs and hosts is within their limits."""
        device = bool((self.device_bytes <= self.device_memory).all())
        return device and (not self.host_memory or bool((self.host_bytes <= self.host_memory).all()))


def estimate(question: RecommenderQuestion, sharding: Sharding) -> RecommenderEstimate:
    """Predict the seconds by stage and the memory of GPUs and hosts for one step under a sharding.

    Raises:
        InputError: it names other tables, GPUs or nodes than there are; or the GPU has no rate in that precision.
    """
    _check(question, sharding)
    cluster = question.cluster
    gpus, nodes, per_node = cluster.num_gpus, cluster.nodes, cluster.gpus_per_node
    kinds = list(zip(question.model.class_of_table, (one.option for one in sharding.tables), strict=True))
    pairs = tuple(dict.fromkeys(kinds))
    row_of = {pair: index for index, pair in enumerate(pairs)}
    table_rows = np.array([row_of[kind] for kind in kinds], dtype=np.int64)
    shard_gpus, held_rows, holders = _shards(sharding, table_rows, per_node)
    counts = np.bincount(table_rows, minlength=len(pairs)).astype(np.float64)
    x, links = option_columns(question, pairs), links_of(question)
    shard_seconds, everywhere_seconds = stage_loads(question, x, links)
    size = option_bytes(question, x)

    def on_gpus(shard: Array, everywhere: Array, holders: Array | float = 1.0) -> Array:
        total: Array = np.tile(counts @ everywhere, (gpus, 1))
        np.add.at(total, shard_gpus, shard[held_rows] / holders)
        return total

    loads = on_gpus(shard_seconds, everywhere_seconds)
    fixed_parts, moments = fixed_bytes(question), moments_of(question)
    parts = np.stack([on_gpus(*of) for of in zip(size.shard, size.everywhere, strict=True)])  # (M, W, P)
    filled = parts.sum(axis=2) + np.sum(list(fixed_parts.values()), axis=0)[:, None]
    peak = filled.argmax(axis=0)
    device = parts[peak, np.arange(gpus)]
    rank_host = on_gpus(size.shard_host, size.everywhere_host / per_node, holders[:, None])
    host = rank_host.reshape(nodes, per_node, -1).sum(axis=1)
    fixed, hidden = fixed_seconds(question, links)
    stages = np.maximum(loads.max(axis=0), hidden) + fixed
    batch, flops = question.training.global_batch, DenseNetwork(question.model).flops
    return RecommenderEstimate(
        stages=Breakdown(zip(STAGES, map(float, stages), strict=True)),
        busiest=tuple(int(gpu) for gpu in loads.argmax(axis=0)),
        loads=loads,
        fixed=fixed,
        hidden=hidden,
        device_bytes=filled.max(axis=0),
        fullest_moment=tuple(moments[at] for at in peak.tolist()),
        moments=dict(zip(moments, filled, strict=True)),
        device_parts={name: device[:, at] for at, name in enumerate(PARTS)}
        | {name: each[peak] for name, each in fixed_parts.items()},
        host_bytes=host.sum(axis=1),
        rank_host_bytes=rank_host.sum(axis=1),
        host_parts={name: host[:, at] for at, name in enumerate(PARTS)},
        device_memory=cluster.gpu.memory * (1 - (cluster.memory_reserve or 0.0)),
        host_memory=cluster.host_memory or 0.0,
        samples_per_second=batch / float(stages.sum()),
        mfu=batch * flops / float(stages.sum()) / (gpus * dense_device(question).peak),
    )


def _shards(sharding: Sharding, table_rows: Ints, per_node: int) -> tuple[Ints, Ints, Array]:
    """For every shard with a GPU of its own, the index of the GPU, the index of the table's option, and the
    number of GPUs that share the shard, (S,) each. A `node-row` shard has one entry for each GPU of the
    node."""
    entries = []
    for placement, row in zip(sharding.tables, table_rows.tolist(), strict=True):
        size = per_node if placement.option.form == "node-row" else 1
        entries += [(gpu, row, size) for at in placement.at for gpu in range(at * size, (at + 1) * size)]
    gpus, rows, holders = np.array(entries, dtype=np.int64).reshape(-1, 3).T
    return gpus, rows, holders.astype(np.float64)


def _check(question: RecommenderQuestion, sharding: Sharding) -> None:
    model, tables = question.model, len(sharding.tables)
    if tables != model.num_tables:
        raise InputError(f"the sharding has {tables} tables, `{model.name}` has {model.num_tables}")
    problems = []
    for number, (name, placement) in enumerate(zip(model.table_names, sharding.tables, strict=True)):
        width = model.classes[model.class_of_table[number]].width
        complaints = _complaints(question, placement, width)
        problems += [Problem(f"table:{number} (`{name}`)", complaint) for complaint in complaints]
    require_none(problems, "tables cannot be held so")


def _complaints(question: RecommenderQuestion, placement: TablePlacement, width: int) -> Iterator[str]:
    """What forbids to hold a table of `width` columns so, in words."""
    option, cluster = placement.option, question.cluster
    place, limit = ("node", cluster.nodes) if option.form == "node-row" else ("GPU", cluster.num_gpus)
    if invalid := [at for at in placement.at if at >= limit]:
        yield f"lies on {place} {invalid[0]}, and there are {limit}, counted from 0"
    if option.tier == "host" and not question.facts.host_tables:
        yield f"lies in host memory, where software stack `{question.stack.name}` keeps no tables"
    if option.form == "column" and width % option.shards:
        yield f"has {width} columns, which {option.shards} slices do not divide"
