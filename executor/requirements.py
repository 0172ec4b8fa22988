"""Checks of this host before a run: packages, devices and their memory, fp8 products, the number of processes.

Nothing here imports torch unless it must ask for devices.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cost_models.errors import HostError, require_installed
from cost_models.specs.cluster import GpuSpec
from cost_models.units import counted, format_bytes
from planner.plan import AnyPlan, Plan
from planner.rules.stack import IN_16_BITS

if TYPE_CHECKING:
    import torch

_PROCESSES_PER_CORE = 4


def require_host(plan: AnyPlan, name: str, backend: str, nodes: int = 1) -> None:
    """Raise HostError where this host has too few devices for its share of the plan's ranks."""
    ranks, cores = plan.num_ranks // nodes, os.cpu_count() or 1
    name = name if nodes == 1 else f"each of {nodes} nodes of {name}"
    limit, on_gpus = _PROCESSES_PER_CORE * cores, backend == "nccl"
    shortage = ""
    if ranks > (cuda_devices() if on_gpus else cores) and (on_gpus or plan.gpu.kind != "cpu"):
        shortage = f"{counted(ranks, 'GPU')}; this host has {cuda_devices()}"
    elif not on_gpus and ranks > limit:
        shortage = f"{counted(ranks, 'process')}; this host runs {limit} at most"
    if shortage:
        hint = "--nodes N and --rendezvous HOST:PORT run it on several hosts"
        raise HostError(f"{name} needs {shortage}", hint=hint)


def require_world(plan: AnyPlan, name: str) -> None:
    """Raise HostError where another number of ranks was started than the plan has."""
    ranks, started = plan.num_ranks, int(os.environ.get("WORLD_SIZE", "1"))
    if started != ranks:
        raise HostError(
            f"{name} needs {counted(ranks, 'process')}; {started} {'was' if started == 1 else 'were'} started",
            hint=f"torchrun --nproc-per-node {ranks} on one host, or as many on each that their product is {ranks}",
        )


def cuda_devices() -> int:
    """Number of GPUs that torch can use here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def require_torch(verb: str) -> None:
    """Raise HostError where torch, or the package that saves its tensors, is not installed."""
    require_installed(f"`{verb}`", torch="torch>=2.11", safetensors="safetensors>=0.5")


_LEAST_CAPABILITY = (8, 9)
"""Compute capability of Ada, the first NVIDIA GPUs with fp8 matrix products."""
_AMD_ARCHITECTURES = ("gfx94", "gfx95")


def require_torchao(plan: Plan, name: str) -> None:
    """Raise HostError where a plan trains in fp8 and torchao is not installed."""
    if plan.training.precision == "fp8" and find_spec("torchao") is None:
        raise HostError(
            f"{name} trains in fp8, for which torchao is not installed",
            hint=f"pip install 'torchao>=0.18', or {IN_16_BITS}",
        )


def require_fp8_gemms(plan: Plan, name: str, *, on_gpu: bool) -> None:
    """Raise HostError where a plan trains in fp8 and the device that would run it has no fp8 products."""
    if plan.training.precision != "fp8":
        return
    if not on_gpu:
        raise HostError(f"{name} trains in fp8, which it cannot on CPU processes", hint=IN_16_BITS)
    import torch

    if not torch.cuda.is_available():
        raise HostError(f"{name} trains in fp8, and this host has no GPU", hint=IN_16_BITS)
    if not _multiplies():
        device_name = torch.cuda.get_device_name()
        raise HostError(f"{name} trains in fp8, and {device_name} has no products in fp8", hint=IN_16_BITS)


def _multiplies() -> bool:
    """Whether the current GPU has kernels for fp8 matrix products (`torch._scaled_mm`)."""
    import torch

    if torch.version.hip:
        architecture: str = torch.cuda.get_device_properties().gcnArchName
        return architecture.startswith(_AMD_ARCHITECTURES)
    return torch.cuda.get_device_capability() >= _LEAST_CAPABILITY


def device_for(gpu: GpuSpec) -> torch.device:
    """A GPU if the plan is for GPUs and this host has one, else the CPU."""
    import torch

    if gpu.kind != "cpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def name_of(device: torch.device) -> str:
    """`cpu`, or the name of the GPU."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def as_planned(device: torch.device, gpu: GpuSpec) -> bool:
    """Whether a device is of the plan's kind, and not a CPU in the place of a GPU."""
    return (device.type == "cpu") == (gpu.kind == "cpu")


def require_memory(who: str, needs: float, device: torch.device, hint: str) -> None:
    """Raise HostError, with the missing bytes, if `needs` bytes do not fit into a device's free memory."""
    free = free_bytes(device)
    if needs > free:
        raise HostError(
            f"{who} should need {format_bytes(needs)}; this {name_of(device)} has"
            f" {format_bytes(free)} free: {format_bytes(needs - free)} are missing",
            hint=hint,
        )


def free_bytes(device: torch.device) -> float:
    """Free bytes of a device's memory, or for the CPU of the host's."""
    import psutil
    import torch

    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(psutil.virtual_memory().available)
