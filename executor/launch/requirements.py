"""Checks before a run starts, of its plan, its data and this host; each returns nothing, or raises."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cost_models.axes.offload import NOWHERE
from cost_models.defaults import OWN_COMPILED
from cost_models.errors import HostError, InputError
from cost_models.files.catalog import load_stack
from cost_models.schedules import SPLIT_BACKWARD
from cost_models.units import counted
from executor.data.tokens import open_tokens, require_a_sequence, require_whole
from executor.run_config import RANDOM, TEXT, Backend
from planner.plan import Plan
from planner.rules.stack import require_runnable

_PROCESSES_PER_CORE = 4
_BYTE_VOCABULARY = 256


def require_trainable(plan: Plan, *, byte_text: bool) -> None:
    """Raise InputError where the executor cannot train the plan."""
    require_runnable(plan.question, plan.layout)
    if byte_text and plan.model.vocab_size < _BYTE_VOCABULARY:
        raise InputError(
            f"text of bytes needs a vocabulary of {_BYTE_VOCABULARY}; model `{plan.model.name}` has"
            f" {plan.model.vocab_size}",
            hint="--data random, or a folder that meshwright tokens made",
        )


def require_data(plan: Plan, data: str, on_note: Callable[[str], None] | None = None) -> None:
    """Raise InputError where there are no whole tokens that go with the plan."""
    if data not in (TEXT, RANDOM):
        require_whole(Path(data), on_note or (lambda note: None))
        header, _ = open_tokens(Path(data), plan.model.vocab_size)
        require_a_sequence(header.tokens, plan.training.sequence_length, data)


def require_compilable(plan: Plan) -> None:
    """Raise InputError where the plan's blocks cannot be compiled, whatever stack it was made for."""
    schedule = plan.layout.schedule
    if schedule in SPLIT_BACKWARD:
        raise InputError(
            f"a compiled block has one backward pass, which `schedule={schedule}` splits",
            hint="leave out `compile`, or use another schedule",
        )
    if plan.layout.offload != NOWHERE:
        raise InputError(
            "compiled blocks stay on the device, and the plan keeps some in host memory",
            hint="leave out `compile`, or plan without `offload`",
        )
    require_runnable(replace(plan.question, stack=load_stack(OWN_COMPILED)), plan.layout)


def require_host(plan: Plan, name: str, backend: Backend, nodes: int = 1) -> None:
    """Raise HostError where this host has too few devices for its share of the ranks."""
    ranks = plan.layout.num_gpus // nodes
    hint = "--nodes N and --rendezvous HOST:PORT run it on several hosts"
    name = name if nodes == 1 else f"each of {nodes} nodes of {name}"
    if backend == "nccl":
        devices = cuda_devices()
        if devices < ranks:
            raise HostError(f"{name} needs {counted(ranks, 'GPU')}; this host has {devices}", hint=hint)
        return
    if plan.question.cluster.gpu.kind != "cpu" and ranks > (os.cpu_count() or 1):
        raise HostError(f"{name} needs {counted(ranks, 'GPU')}; this host has {cuda_devices()}", hint=hint)
    most = _PROCESSES_PER_CORE * (os.cpu_count() or 1)
    if ranks > most:
        raise HostError(f"{name} needs {counted(ranks, 'process')}; this host runs {most} at most", hint=hint)


def require_world(plan: Plan, name: str) -> None:
    """Raise HostError where another number of ranks was started than the plan has."""
    ranks, started = plan.layout.num_gpus, int(os.environ.get("WORLD_SIZE", "1"))
    if started != ranks:
        raise HostError(
            f"{name} needs {counted(ranks, 'process')}; {started} {'was' if started == 1 else 'were'} started",
            hint=f"torchrun --nproc-per-node {ranks} on one host, or as many on each that their product is {ranks}",
        )


def cuda_devices() -> int:
    """GPUs that torch can use here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
