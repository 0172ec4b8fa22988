"""Checks of this host before a run starts: has it the devices, and were as many processes started as the plan has?"""

from __future__ import annotations

import os

from cost_models.errors import HostError
from cost_models.units import counted
from executor.run_config import Backend
from planner.any_plan import AnyPlan

_PROCESSES_PER_CORE = 4


def require_host(plan: AnyPlan, name: str, backend: Backend, nodes: int = 1) -> None:
    """Raise HostError where this host has too few devices for its share of the ranks."""
    ranks = plan.num_ranks // nodes
    hint = "--nodes N and --rendezvous HOST:PORT run it on several hosts"
    name = name if nodes == 1 else f"each of {nodes} nodes of {name}"
    if backend == "nccl":
        devices = cuda_devices()
        if devices < ranks:
            raise HostError(f"{name} needs {counted(ranks, 'GPU')}; this host has {devices}", hint=hint)
        return
    if plan.gpu.kind != "cpu" and ranks > (os.cpu_count() or 1):
        raise HostError(f"{name} needs {counted(ranks, 'GPU')}; this host has {cuda_devices()}", hint=hint)
    most = _PROCESSES_PER_CORE * (os.cpu_count() or 1)
    if ranks > most:
        raise HostError(f"{name} needs {counted(ranks, 'process')}; this host runs {most} at most", hint=hint)


def require_world(plan: AnyPlan, name: str) -> None:
    """Raise HostError where another number of ranks was started than the plan has."""
    ranks, started = plan.num_ranks, int(os.environ.get("WORLD_SIZE", "1"))
    if started != ranks:
        raise HostError(
            f"{name} needs {counted(ranks, 'process')}; {started} {'was' if started == 1 else 'were'} started",
            hint=f"torchrun --nproc-per-node {ranks} on one host, or as many on each that their product is {ranks}",
        )


def cuda_devices() -> int:
    """GPUs that torch can use here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
