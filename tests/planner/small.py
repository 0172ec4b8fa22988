"""Small questions, of one pool and of several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from asking import change
from synthetic import POLICIES, random_costs

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.pipeline.pools import costs_of_ranks
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, GpuSpec, Links, LinkSpec, MixedCluster
from cost_models.specs.kinds import Kinds
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.placement.leaf import Leaf, Placement
from planner.placement.patterns import chunk_patterns
from planner.search.pools import ReplicaSpace
from planner.space.restrictions import Restrictions

MODEL = TransformerSpec(
    name="small", num_layers=4, hidden_size=512, num_heads=8, num_kv_heads=4, vocab_size=8000
)


def small_cluster(gpus: int = 4, memory: str = "1 GiB") -> ClusterSpec:
    """One node of slow GPUs so small that no context or workspace would fit: all but a share is the model's."""
    gpu = GpuSpec(
        name="small-gpu",
        memory=memory,  # type: ignore[arg-type]
        memory_bandwidth="100 GB/s",  # type: ignore[arg-type]
        peak={"bf16": "10 TFLOP/s", "fp32": "5 TFLOP/s"},  # type: ignore[dict-item]
        library_workspace="1 B",  # type: ignore[arg-type]
    )
    link = LinkSpec(kind="pcie", bandwidth="10 GB/s", latency="5 us")  # type: ignore[arg-type]
    return ClusterSpec(
        name="small", gpu=gpu, gpus_per_node=gpus, links=Links(intra_node=link), memory_reserve=0.06
    )


def small_question(
    gpus: int = 4, memory: str = "1 GiB", *, stack: str = "megatron-core", **training: Any
) -> Question:
    """A question about `MODEL`."""
    spec = TrainingSpec(**{"global_batch": 8, "sequence_length": 256} | training)
    return complete_question(MODEL, small_cluster(gpus, memory), spec, stack=stack)


def every_axis(question: Question) -> Question:
    """The same on a stack that also has context parallelism, in two ways, and shard groups."""
    ways = {"context_kinds": ("ring", "all-to-all"), "hybrid_shard": True}
    return change(question, stack=ways)


NETWORK = LinkSpec(kind="infiniband", bandwidth="2 GB/s", latency="10 us")  # type: ignore[arg-type]

PLAIN_SHAPES = [
    ("1f1b", 2, 2, 5), ("1f1b", 2, 5, 6), ("1f1b", 3, 3, 6), ("1f1b", 3, 8, 6), ("1f1b", 4, 6, 6),
    ("gpipe", 2, 1, 5), ("gpipe", 3, 4, 5),
]  # fmt: skip
"""(schedule, pp, microbatches, blocks)."""


def pool(
    name: str, *, gpus: int = 2, nodes: int = 1, speed: float = 1.0, memory: str = "1 GiB"
) -> ClusterSpec:
    """Nodes of a GPU that is `speed` times as fast as the small one."""
    base = small_cluster(gpus, memory)
    peak = {precision: rate * speed for precision, rate in base.gpu.peak.items()}
    rates = {"peak": peak, "memory_bandwidth": base.gpu.memory_bandwidth * speed}
    gpu = base.gpu.model_copy(update={"name": f"{name}-gpu"} | rates)
    links = base.links.model_copy(update={"inter_node": NETWORK})
    return base.model_copy(update={"name": name, "gpu": gpu, "nodes": nodes, "links": links})


def mixed_question(
    *pools: ClusterSpec, layers: int = 4, stack: str = "megatron-core", **training: Any
) -> Question:
    """A question about the small model on some pools."""
    spec = TrainingSpec(**{"global_batch": 8, "sequence_length": 256} | training)
    model = MODEL.model_copy(update={"num_layers": layers})
    return complete_question(model, MixedCluster(name="mixed", pools=pools), spec, stack=stack)


def mixed_leaf(seed: int) -> Leaf:
    """One small leaf whose ranks lie in two or three pools, each pool with costs of its own."""
    rng = np.random.default_rng(seed)
    schedule, pp, microbatches, layers = PLAIN_SHAPES[rng.integers(len(PLAIN_SHAPES))]
    pools = int(rng.integers(2, min(pp, 3) + 1))
    allowed = rng.random(POLICIES) < 0.6
    allowed[rng.integers(POLICIES)] = True
    pool_R = np.sort(np.concatenate([np.arange(pools), rng.integers(0, pools, pp - pools)]))
    costs = random_costs(rng, pools, tightness=rng.uniform(0.5, 2.5))
    ranks = StageCosts(**{name: getattr(costs, name)[pool_R] for name in COLUMNS})
    same = {name: np.full(pp, getattr(ranks, name).max()) for name in ("p2p", "step_overhead")}
    kinds = Kinds((0,) * layers)
    shape = {"pp": pp, "vpp": 1, "schedule": schedule, "microbatches": microbatches, "allowed": allowed}
    return Leaf(costs=replace(ranks, **same), kinds=kinds, **shape)


def leaf_of(question: Question, layout: Layout, allowed: np.ndarray) -> Leaf:
    """A layout of stages in several pools, whose blocks are to be placed under the allowed policies."""
    microbatches = layout.microbatches(question.training.global_batch)
    shape = {"pp": layout.pp, "vpp": 1, "schedule": layout.schedule, "microbatches": microbatches}
    return Leaf(costs=costs_of_ranks(question, layout), kinds=question.kinds, allowed=allowed, **shape)


def replica_prices(
    question: Question, layout: Layout, limits: Restrictions | None = None
) -> list[tuple[float, bool]]:
    """What every covered placement of whole replicas takes, and whether it fits, each priced in full."""
    limits, found = limits or Restrictions(), []
    for blocks in chunk_patterns(ReplicaSpace(question, LayoutColumns.of([layout]), limits).leaf(0)):
        placement = Placement.of(blocks)
        update = {"layers": placement.layers, "recompute": placement.recompute}
        priced = estimate(question, layout.model_copy(update=update))
        priced = priced if limits.max_memory is None else priced.within(limits.max_memory)
        found.append((priced.step_seconds, priced.fits))
    return found
