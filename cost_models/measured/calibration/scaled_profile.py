"""Scaling of a profile's seconds, kind by kind, as runs suggest, and the way back.

No share of a peak exceeds 1. Where a run was faster than anything measured before, a measured peak rises with it; the
peak of a datasheet is the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from cost_models.specs.hardware import (
    AttentionCurve,
    CollectiveCurve,
    CurvePoint,
    FittedFactors,
    HardwareProfile,
    OperatorCurve,
)

Curve = TypeVar("Curve", OperatorCurve, AttentionCurve, CollectiveCurve)
PROVENANCE_MARK = "; moved by "
"""Separates, in a profile's source, how it was measured from the runs that moved it."""
_DIGITS = 6
"""Significant digits: enough that moving back gives the measured values, and short to read."""

_CEILING = 1.1
"""Largest value of a fitted share: a little above the best that was measured, never much."""
_OF_A_BENCHMARK = ("attention_forward_efficiency", "attention_backward_efficiency")
"""Shares of what a kernel reached alone, which none in a step exceeds."""


FOLLOW_HOST = ("action_host", "tensor_parallel_host", "sequence_parallel_host", "sharded_host")
"""Factors of `FittedFactors` for host time beside that of a block."""
_SECONDS = {"kernel_seconds": "compute", "collective_seconds": "collectives", "host_layer_seconds": "host"}
_SECONDS |= {f"{kind}_seconds": kind for kind in (*FOLLOW_HOST, "step")}
"""Constant in seconds → the factor of `FittedFactors` that multiplies it."""


def scale_seconds(profile: HardwareProfile, factors: FittedFactors) -> HardwareProfile:
    """Copy of `profile` with the seconds of each kind (compute, host, ...) multiplied by the factor of that kind."""
    compute, transfer = factors.compute, factors.collectives
    # factors by which a measured peak and bandwidth rise so that no fitted rate exceeds them
    rise = bandwidth_rise = 1.0
    changes: dict[str, object] = {
        "operators": tuple(_slowed(curve, compute) for curve in profile.operators),
        "attention": tuple(_slowed(curve, compute) for curve in profile.attention),
        "collectives": tuple(_slowed(curve, transfer) for curve in profile.collectives),
    }
    if profile.gemm_operand_bandwidth is not None:
        changes["gemm_operand_bandwidth"] = _short(profile.gemm_operand_bandwidth / compute)
    if profile.measured_peak is not None:
        rise = max(rise, profile.gemm_efficiency / compute)
        changes["measured_peak"] = _short(profile.measured_peak * rise)
    if profile.measured_bandwidth is not None:
        rates = profile.memory_efficiency / compute, profile.optimizer_efficiency / factors.optimizer
        bandwidth_rise = max(bandwidth_rise, *rates)
        changes["measured_bandwidth"] = _short(profile.measured_bandwidth * bandwidth_rise)
    shares = {
        "gemm_efficiency": (compute, rise),
        "attention_forward_efficiency": (compute, rise),
        "attention_backward_efficiency": (compute, rise),
        "memory_efficiency": (compute, bandwidth_rise),
        "optimizer_efficiency": (factors.optimizer, bandwidth_rise),
        "link_efficiency": (transfer, 1.0),
        "network_efficiency": (transfer, 1.0),
    }
    for name, (slower, more) in shares.items():
        changes[name] = min(1.0, _short(getattr(profile, name) / slower / more))
    for name, kind in _SECONDS.items():
        changes[name] = _short(getattr(profile, name) * getattr(factors, kind))
    return profile.model_copy(update=changes)


def before_runs(profile: HardwareProfile) -> HardwareProfile:
    """Profile as microbenchmarks measured it, with the effect of runs undone; a peak that a run raised stays."""
    if profile.moved is None:
        return profile
    back = FittedFactors(**{kind: 1.0 / factor for kind, factor in profile.moved})
    source = profile.source.partition(PROVENANCE_MARK)[0]
    changes = {"moved": None, "contention": 0.0, "source": source}
    return scale_seconds(profile, back).model_copy(update=changes)


def scale_constants(profile: HardwareProfile, factors: Mapping[str, float]) -> HardwareProfile:
    """Copy of the profile with constants multiplied by `factors`, each at most at the fit's ceiling or its
    former value."""
    values = {}
    for name, factor in factors.items():
        value = getattr(profile, name)
        values[name] = min(float(f"{value * factor:.4g}"), max(value, ceiling_of(name)))
    return profile.model_copy(update=values)


def ceiling_of(name: str) -> float:
    """Largest value that a fit may give the constant `name`, within the limits of the profile's file."""
    limit = next(mark.le for mark in HardwareProfile.model_fields[name].metadata if hasattr(mark, "le"))
    ceiling = 1.0 if name in _OF_A_BENCHMARK else _CEILING
    return min(float(limit), ceiling) if name.endswith("efficiency") else float(limit)


def _slowed(curve: Curve, factor: float) -> Curve:
    """Copy of a curve with the seconds of all its points multiplied by `factor`."""

    def slower(point: CurvePoint) -> CurvePoint:
        return CurvePoint(size=point.size, seconds=_short(point.seconds * factor))

    passes = {name: tuple(map(slower, points)) for name, points in curve if isinstance(points, tuple)}
    return curve.model_copy(update=passes)


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
