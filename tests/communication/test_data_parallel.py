"""Data-parallel communication of a step: who owns what, and what it takes to tell the others."""

from __future__ import annotations

import numpy as np

from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.pipeline.estimating import estimate
from cost_models.specs.training import TrainingSpec


def step_seconds(stack: str, gpus: int, shard: int | None = None) -> float:
    """Of 7 B parameters, ZeRO-1, 4 microbatches of 2 × 2048 tokens a rank on A100s with four adapters a node."""
    cluster = catalog.load_cluster("a100-80gb-roce").model_copy(update={"nodes": gpus // 8, "rails": 4})
    training = TrainingSpec(global_batch=8 * gpus, sequence_length=2048)
    question = complete_question(catalog.load_model("llama2-7b"), cluster, training, stack=stack)
    layout = Layout(dp=gpus, mbs=2, zero=1, shard=shard, layers=(32,))
    return estimate(question, layout).step_seconds


def test_updates_by_owner_cost_a_chain_for_every_tensor() -> None:
    """Weights that a gather collects from shards grow hardly dearer with more ranks; broadcasts, an owner after
    another, do by the length of each chain. Inside a node few owners have many tensors each."""
    spread, inside = (
        np.array([step_seconds("internevo", n, shard) for n in (128, 1024)]) for shard in (None, 8)
    )
    assert spread[1] / spread[0] > 1.3
    assert inside[1] / inside[0] < 1.05
    gathered = np.array([step_seconds("megatron-core", n) for n in (128, 1024)])
    assert gathered[1] / gathered[0] < 1.1
