"""A device as the compute formulas see it: datasheet rates together with the profile's constants."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cost_models.errors import InputError
from cost_models.question import Question
from cost_models.specs.cluster import NARROW, GpuSpec, KernelShare, Precision
from cost_models.specs.hardware import HardwareProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Rates of one accelerator under one profile."""

    profile: HardwareProfile
    peak: float
    """FLOP/s of matrix products, by the datasheet."""
    sustained: float
    """Share of the peak that the best products reach at full clocks."""
    power_rate: float = math.inf
    """FLOP/s of products that the power limit pays for, whatever share of the peak their shape could reach."""
    memory_rate: float
    """Bytes/s that element-wise kernels reach."""
    optimizer_rate: float
    """Bytes/s that the optimizer step reaches."""
    attention: KernelShare
    """Share of peak of the stack's flash kernel."""
    sm_count: int
    element_bytes: float
    """Bytes of one activation or weight."""
    operand_bytes: float
    """Bytes of one operand of a product; where that is less, operands are cast."""
    launches_ahead: bool
    """The host launches kernels ahead of the device (GPU), so its time hides behind theirs; on a CPU they add up."""
    casts_apart: bool = False
    """Every product in fp8 casts its own operands."""
    tensor_cores: bool = True
    """Products run on tensor cores, which are fed in whole rows of memory; fp32 on its own units does not mind."""
    gemm_half: float | None = None
    """Inner dimension with which a product reaches half of the rate; None: the profile's."""
    fuses: bool = False
    """Chains of element-wise operators run as one kernel."""


def require_rate(gpu: GpuSpec, precision: Precision) -> None:
    """Raise InputError where a GPU has no matrix rate in a precision."""
    if precision not in gpu.peak:
        known = ", ".join(f"`{name}`" for name in gpu.peak)
        hint = f"it has {known}: --precision {next(iter(gpu.peak))}"
        raise InputError(f"`{gpu.name}` has no {precision} matrix rate", hint=hint)


def device_of(question: Question, *, wide: bool = False) -> Device:
    """The device a question runs on, multiplying in the training precision, or in what fp8 training leaves `wide`.

    Raises:
        InputError: the GPU has no matrix rate in the training precision.
    """
    gpu, training, profile = question.cluster.gpu, question.training, question.hardware
    precision = training.wide_precision if wide else training.precision
    require_rate(gpu, precision)
    narrow = _narrow_share(profile, precision)
    return Device(
        profile=profile,
        peak=gpu.peak[precision],
        sustained=gpu.sustained.get(precision, 1.0) * narrow,
        power_rate=gpu.power_rate(precision, question.cluster.gpu_watts) * narrow,
        memory_rate=gpu.memory_bandwidth * profile.memory_efficiency,
        optimizer_rate=gpu.memory_bandwidth * profile.optimizer_efficiency,
        attention=_attention(question),
        sm_count=gpu.sm_count,
        element_bytes=training.element_bytes,
        operand_bytes=training.element_bytes if wide else training.operand_bytes,
        casts_apart=question.stack.fp8_casts_apart,
        fuses=question.stack.fused_elementwise,
        launches_ahead=gpu.kind != "cpu" and not question.stack.launches_block,
    )


def _narrow_share(profile: HardwareProfile, precision: Precision) -> float:
    """Efficiency of products in fp8 or fp4 relative to products in the profile's precision."""
    if precision not in NARROW or profile.fp8_gemm_efficiency is None:
        return 1.0
    return profile.fp8_gemm_efficiency / profile.gemm_efficiency


def _attention(question: Question) -> KernelShare:
    """Share of peak of the stack's kernel: what was published for the GPU, times the profile's constants."""
    profile = question.hardware
    share = question.cluster.gpu.attention_share(question.stack.attention)
    forward = np.minimum(1.0, share.forward * profile.attention_forward_efficiency)
    backward = np.minimum(1.0, share.backward * profile.attention_backward_efficiency)
    return share.model_copy(update={"forward": forward, "backward": backward})
