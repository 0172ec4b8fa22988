"""Whether this host can train in fp8: torchao installed, and devices that multiply in it."""

from __future__ import annotations

from importlib.util import find_spec

from cost_models.errors import HostError
from planner.plan import Plan
from planner.rules.runnable import IN_16_BITS

_LEAST_CAPABILITY = (8, 9)
"""The compute capability of Ada, the first NVIDIA GPUs with fp8 GEMMs."""
_AMD_ARCHITECTURES = ("gfx94", "gfx95")


def require_torchao(plan: Plan, name: str) -> None:
    """Raise HostError where a plan needs torchao and it is not installed."""
    if plan.training.precision == "fp8" and find_spec("torchao") is None:
        raise HostError(
            f"{name} trains in fp8, for which torchao is not installed",
            hint=f"pip install 'torchao>=0.18', or {IN_16_BITS}",
        )


def require_fp8_gemms(plan: Plan, name: str, *, on_gpu: bool) -> None:
    """Raise HostError where a plan needs fp8 GEMMs and the device it would run on has none."""
    if plan.training.precision != "fp8":
        return
    if not on_gpu:
        raise HostError(f"{name} trains in fp8, which it cannot on CPU processes", hint=IN_16_BITS)
    import torch

    if not torch.cuda.is_available():
        raise HostError(f"{name} trains in fp8, and this host has no GPU", hint=IN_16_BITS)
    if not _multiplies():
        found = torch.cuda.get_device_name()
        raise HostError(f"{name} trains in fp8, and {found} has no products in fp8", hint=IN_16_BITS)


def _multiplies() -> bool:
    """Whether `torch._scaled_mm` has kernels for the current GPU."""
    import torch

    if torch.version.hip:
        architecture: str = torch.cuda.get_device_properties().gcnArchName
        return architecture.startswith(_AMD_ARCHITECTURES)
    return torch.cuda.get_device_capability() >= _LEAST_CAPABILITY
