"""Build a recommender's plan without its devices: what ranks would hold of its tables, on the meta device.

The process group is a fake one in which every collective does nothing. What is checked is that tables can be sliced and
ranks grouped as the sharding says; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from cost_models.errors import RunError
from executor.embeddings.places import Places
from executor.families.recommender import RecommenderTraining
from executor.recommender.engine import RecommenderEngine
from executor.recommender.memory import held_on_host
from executor.run_config import RunConfig
from planner.recommender.plan import RecommenderPlan

MOST_RANKS = 16
"""Ranks that are all built; of more the fullest, the least full, and those that stages wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltShards:
    """What a built rank holds before its first step."""

    rank: int
    slices: int
    """Slices of tables, copies of hot rows among them."""
    rows: int
    """Rows of all of them."""
    table_bytes: int
    """Rows on the device, and hash tables of keys."""
    state_bytes: int
    """Their optimizer states there."""
    host_bytes: int
    """Rows and states in host memory."""
    dense_parameters: int
    predicted_table_bytes: float
    predicted_state_bytes: float


def build_shards_without_devices(plan: RecommenderPlan) -> tuple[BuiltShards, ...]:
    """Build ranks one after another. Call it where no process group exists.

    Raises:
        InputError: the executor cannot train this plan.
        RunError: a rank cannot be built as the plan says.
    """
    RecommenderTraining().require_trainable(plan, RunConfig(), lambda note: None)
    return tuple(_built(plan, rank) for rank in built_ranks(plan))


def built_ranks(plan: RecommenderPlan) -> Sequence[int]:
    """The ranks that are built."""
    if plan.num_ranks <= MOST_RANKS:
        return range(plan.num_ranks)
    sizes = plan.prediction.device_bytes
    return sorted({0, sizes.index(max(sizes)), sizes.index(min(sizes)), *plan.prediction.busiest})


def _built(plan: RecommenderPlan, rank: int) -> BuiltShards:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=plan.num_ranks)
    try:
        places = Places(plan.num_ranks, plan.cluster.gpus_per_node)
        engine = RecommenderEngine(plan.model, plan.sharding, plan.training, places, torch.device("meta"))
    except Exception as error:
        raise RunError(f"rank {rank} cannot be built: {error}") from error
    finally:
        dist.destroy_process_group()
    held = engine.embeddings.held
    parts = plan.prediction.device_parts
    return BuiltShards(
        rank=rank,
        slices=len(held),
        rows=sum(one.held_rows for one in held),
        table_bytes=sum(
            one.device.weights.nbytes + (0 if one.keys is None else one.keys.nbytes) for one in held.values()
        ),
        state_bytes=sum(state.nbytes for one in held.values() for state in one.device.states.values()),
        host_bytes=held_on_host(engine),
        dense_parameters=sum(one.numel() for one in engine.network.parameters()),
        predicted_table_bytes=parts["weights"][rank] + parts["hash tables"][rank],
        predicted_state_bytes=parts["optimizer"][rank],
    )
