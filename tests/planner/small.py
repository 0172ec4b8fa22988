"""A small model on a small cluster: questions whose whole space can be searched by brute force."""

from __future__ import annotations

from typing import Any

from asking import change

from cost_models.defaults import complete_question
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, GpuSpec, Links, LinkSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

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
