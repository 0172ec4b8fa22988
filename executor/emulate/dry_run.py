"""Builds a plan without its devices: the state of ranks before their first step, on the meta device.

The process group is a fake one in which every collective does nothing, so any number of ranks fits in this process.
Checked is that the model can be sliced, split, sharded and scheduled as the layout or sharding says; nothing is
trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cost_models.errors import RunError
from executor.embeddings.exchanges import Places
from executor.emulate.stand_ins import fake_process_group
from executor.engine.engine import Engine
from executor.measure.memory import held_parts
from executor.mesh import local, rank_places
from executor.recommender.engine import RecommenderEngine
from executor.recommender.train import held_on_host
from executor.recommender.training import RecommenderTraining
from executor.requirements import require_torchao
from executor.run_config import EngineOptions, RunConfig
from executor.transformer.training import require_trainable
from planner.plan import Plan
from planner.recommender.plan import RecommenderPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltRank:
    """Contents of a built rank of a transformer's plan, before its first step."""

    rank: int
    pipeline_rank: int
    blocks: tuple[int, ...]
    """Number of transformer blocks of each of the rank's virtual stages."""
    parameters: int
    """Number of elements on this rank: its tensor-parallel slice, or under ZeRO-2 and 3 its shard of that."""
    weights_bytes: int


def build_without_devices(plan: Plan) -> tuple[BuiltRank, ...]:
    """Build the first rank of every pipeline stage, in order, on the meta device. Call it where no process group
    exists.

    Raises:
        InputError: the executor cannot train this plan.
        HostError: it trains in fp8, for which something is missing here.
        RunError: a rank cannot be built as the plan says.
    """
    require_trainable(plan, byte_text=False)
    require_torchao(plan, "plan")
    first_of_stages = rank_places(plan.layout)[:, 0, 0, 0].tolist()
    return tuple(_built(plan, stage, rank) for stage, rank in enumerate(first_of_stages))


def _built(plan: Plan, stage: int, rank: int) -> BuiltRank:
    """Build one rank of a pipeline stage, and return its contents."""
    try:
        with fake_process_group(rank, plan.layout.num_gpus):
            engine = Engine(plan, torch.device("meta"), EngineOptions())
    except Exception as error:
        raise RunError(f"rank {rank} (stage {stage}) cannot be built: {error}") from error
    return BuiltRank(
        rank=rank,
        pipeline_rank=stage,
        blocks=tuple(len(part.blocks) for part in engine.parts),
        parameters=sum(local(parameter).numel() for parameter in engine.optimizer.parameters),
        weights_bytes=held_parts(engine)["weights"],
    )


MOST_RANKS = 16
"""Largest number of ranks that are all built; of more, only the fullest, the least full and the busiest are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltShards:
    """Contents of a built rank of a recommender's plan, before its first step."""

    rank: int
    slices: int
    """Number of slices of tables, copies of hot rows included."""
    rows: int
    """Number of rows of all slices."""
    table_bytes: int
    """Bytes of rows on the device and of hash tables of keys."""
    state_bytes: int
    """Bytes of optimizer states of the rows on the device."""
    host_bytes: int
    """Bytes of rows and states in host memory."""
    dense_parameters: int
    predicted_table_bytes: float
    predicted_state_bytes: float


def build_shards_without_devices(plan: RecommenderPlan) -> tuple[BuiltShards, ...]:
    """Build ranks of a recommender's plan, one after another, on the meta device. Call it where no process group
    exists.

    Raises:
        InputError: the executor cannot train this plan.
        RunError: a rank cannot be built as the plan says.
    """
    RecommenderTraining().require_trainable(plan, RunConfig(), lambda note: None)
    return tuple(_built_shards(plan, rank) for rank in built_ranks(plan))


def built_ranks(plan: RecommenderPlan) -> Sequence[int]:
    """Ranks of a recommender's plan that a dry run builds."""
    if plan.num_ranks <= MOST_RANKS:
        return range(plan.num_ranks)
    sizes = plan.prediction.device_bytes
    return sorted({0, sizes.index(max(sizes)), sizes.index(min(sizes)), *plan.prediction.busiest})


def _built_shards(plan: RecommenderPlan, rank: int) -> BuiltShards:
    """Build one rank of a recommender's plan, and return its contents."""
    places = Places(plan.num_ranks, plan.cluster.gpus_per_node)
    try:
        with fake_process_group(rank, plan.num_ranks):
            engine = RecommenderEngine(plan.model, plan.sharding, plan.training, places, torch.device("meta"))
    except Exception as error:
        raise RunError(f"rank {rank} cannot be built: {error}") from error
    holdings = engine.embeddings.holdings
    parts = plan.prediction.device_parts
    weights_bytes = sum(one.device.weights.nbytes for one in holdings.values())
    return BuiltShards(
        rank=rank,
        slices=len(holdings),
        rows=sum(one.held_rows for one in holdings),
        table_bytes=weights_bytes + sum(one.keys.nbytes for one in holdings.values() if one.keys),
        state_bytes=sum(one.device.nbytes for one in holdings.values()) - weights_bytes,
        host_bytes=held_on_host(engine),
        dense_parameters=sum(one.numel() for one in engine.network.parameters()),
        predicted_table_bytes=parts["weights"][rank] + parts["hash tables"][rank],
        predicted_state_bytes=parts["optimizer"][rank],
    )
