"""Checks that all ranks were given the same job, as on several nodes the command is typed once on each."""

from __future__ import annotations

import hashlib
import json

import torch
import torch.distributed as dist

from cost_models.errors import InputError
from executor.run_config import RunConfig
from planner.any_plan import AnyPlan

_BYTES = 7
"""How many bytes of the digest are compared: a whole number of that size fits int64, which every backend reduces."""


def require_same_job(plan: AnyPlan, config: RunConfig, device: torch.device) -> None:
    """Compare plan and flags with those of all other ranks; every rank must call it.

    Raises:
        InputError: on every rank, where the plan or the flags of one differ from those of another.
    """
    job = json.dumps([plan.model_dump(mode="json"), config.of_all_nodes()], sort_keys=True)
    mine = int.from_bytes(hashlib.sha256(job.encode()).digest()[:_BYTES])
    both = torch.tensor([mine, -mine], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    largest, smallest = both.tolist()
    if largest != -smallest:
        raise InputError(
            "ranks were started with different plans or flags",
            hint="the same plan file and the same command on every node",
        )
