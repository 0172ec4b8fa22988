"""A device as the compute formulas see it: datasheet rates together with the profile's constants."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.errors import InputError
from cost_models.question import Question
from cost_models.specs.cluster import KernelShare
from cost_models.specs.hardware import HardwareProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Rates of one accelerator under one profile."""

    profile: HardwareProfile
    peak: float
    """FLOP/s of matrix products in the training precision, by the datasheet."""
    sustained: float
    """Share of it that the best products reach."""
    memory_rate: float
    """Bytes/s that element-wise kernels reach."""
    optimizer_rate: float
    """Bytes/s that the optimizer step reaches."""
    attention: KernelShare
    """Share of peak of the stack's flash kernel."""
    sm_count: int
    element_bytes: float
    """Bytes of one activation or weight."""
    launches_ahead: bool
    """The host launches kernels ahead of the device (GPU), so its time hides behind theirs; on a CPU they add up."""


def device_of(question: Question) -> Device:
    """The device a question runs on.

    Raises:
        InputError: the GPU has no matrix rate in the training precision.
    """
    gpu, precision, profile = question.cluster.gpu, question.training.precision, question.hardware
    if precision not in gpu.peak:
        known = ", ".join(f"`{name}`" for name in gpu.peak)
        raise InputError(f"`{gpu.name}` has no {precision} matrix rate", hint=f"it has {known}")
    return Device(
        profile=profile,
        peak=gpu.peak[precision],
        sustained=gpu.sustained.get(precision, 1.0),
        memory_rate=gpu.memory_bandwidth * profile.memory_efficiency,
        optimizer_rate=gpu.memory_bandwidth * profile.optimizer_efficiency,
        attention=_attention(question),
        sm_count=gpu.sm_count,
        element_bytes=question.training.element_bytes,
        launches_ahead=gpu.kind != "cpu" and not question.stack.launches_block,
    )


def _attention(question: Question) -> KernelShare:
    """Share of peak of the stack's kernel: what was published for the GPU, times the profile's constants."""
    profile = question.hardware
    share = question.cluster.gpu.attention_share(question.stack.attention)
    return KernelShare(
        forward=min(1.0, share.forward * profile.attention_forward_efficiency),
        backward=min(1.0, share.backward * profile.attention_backward_efficiency),
    )
