"""Build a plan without its devices: what the first rank of every stage would hold, on the meta device.

The process group is a fake one in which every collective does nothing, so any number of ranks fits in this process.
What is checked is that the model can be sliced, split, sharded and scheduled as the layout says; nothing is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from cost_models.errors import RunError
from executor.apply.local import local
from executor.engine import Engine
from executor.families.transformer import require_trainable
from executor.fp8_support import require_torchao
from executor.measure.memory import held_parts
from executor.mesh import rank_places
from executor.run_config import EngineOptions
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltRank:
    """What a built rank holds before its first step."""

    rank: int
    pipeline_rank: int
    blocks: tuple[int, ...]
    """Transformer blocks of each of its virtual stages."""
    parameters: int
    """Elements on this rank: its tensor-parallel slice, under ZeRO-2 and 3 its shard of that."""
    weights_bytes: int


def build_without_devices(plan: Plan) -> tuple[BuiltRank, ...]:
    """Build the first rank of every pipeline stage, in order. Call it where no process group exists.

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
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=plan.layout.num_gpus)
    try:
        engine = Engine(plan, torch.device("meta"), EngineOptions())
    except Exception as error:
        raise RunError(f"rank {rank} (stage {stage}) cannot be built: {error}") from error
    finally:
        dist.destroy_process_group()
    return BuiltRank(
        rank=rank,
        pipeline_rank=stage,
        blocks=tuple(len(part.blocks) for part in engine.parts),
        parameters=sum(local(parameter).numel() for parameter in engine.optimizer.parameters),
        weights_bytes=held_parts(engine)["weights"],
    )
