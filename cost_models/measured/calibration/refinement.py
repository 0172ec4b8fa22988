"""Refinement of a machine's measured hardware profile by runs on it: constants change only as far as the runs
imply.

Microbenchmarks time operators one by one. They cannot see how operators do inside a training step; a run sees just
that, but of one layout, and with the machine's noise. So the fit is over factors on seconds, one for each kind
(`FittedFactors`), which start at 1 and are held there the more firmly the better their kind was measured. A
quantity of a run pulls the less, the more it varied from step to step and the more others disturbed it.

No share of a peak exceeds 1. Where a run was faster than anything measured before, a measured peak rises with it; the
peak of a datasheet is the limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.estimate import Estimate
from cost_models.measured.calibration.least_squares import Interval, intervals, shrink
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.hardware import (
    AttentionCurve,
    CollectiveCurve,
    CurvePoint,
    FittedFactors,
    HardwareProfile,
    OperatorCurve,
)
from cost_models.units import rounded

Curve = TypeVar("Curve", OperatorCurve, AttentionCurve, CollectiveCurve)
PROVENANCE_MARK = "; moved by "
"""Text in a profile's source between the description of its measurement and the runs that changed it."""
_DIGITS = 6
"""Number of significant digits of changed constants, enough to restore the measured values."""
FOLLOW_HOST = ("action_host", "tensor_parallel_host", "sequence_parallel_host", "sharded_host")
"""Fields of `FittedFactors` for host seconds that are not spent on launching a block."""
_SECONDS = {"kernel_seconds": "compute", "collective_seconds": "collectives", "host_layer_seconds": "host"}
_SECONDS |= {f"{kind}_seconds": kind for kind in (*FOLLOW_HOST, "step")}
"""Field of `FittedFactors` that multiplies each constant in seconds."""


def scale_seconds(profile: HardwareProfile, factors: FittedFactors) -> HardwareProfile:
    """Copy of a profile in which the seconds of each kind (compute, host, ...) are multiplied by that kind's
    factor."""
    compute, transfer = factors.compute, factors.collectives
    # factors by which a measured peak and bandwidth rise so that no fitted rate exceeds them
    rise = bandwidth_rise = 1.0
    changes = dict[str, object]()
    for name, slower in (("operators", compute), ("attention", compute), ("collectives", transfer)):
        changes[name] = tuple(_slowed(curve, slower) for curve in getattr(profile, name))
    if profile.gemm_operand_bandwidth is not None:
        changes["gemm_operand_bandwidth"] = rounded(profile.gemm_operand_bandwidth / compute, _DIGITS)
    if profile.measured_peak is not None:
        rise = max(rise, profile.gemm_efficiency / compute)
        changes["measured_peak"] = rounded(profile.measured_peak * rise, _DIGITS)
    if profile.measured_bandwidth is not None:
        rates = profile.memory_efficiency / compute, profile.optimizer_efficiency / factors.optimizer
        bandwidth_rise = max(bandwidth_rise, *rates)
        changes["measured_bandwidth"] = rounded(profile.measured_bandwidth * bandwidth_rise, _DIGITS)
    products = ("gemm_efficiency", "attention_forward_efficiency", "attention_backward_efficiency")
    shares = dict.fromkeys(products, (compute, rise))
    shares["memory_efficiency"] = compute, bandwidth_rise
    shares["optimizer_efficiency"] = factors.optimizer, bandwidth_rise
    shares |= dict.fromkeys(("link_efficiency", "network_efficiency"), (transfer, 1.0))
    for name, (slower, peak_rise) in shares.items():
        changes[name] = min(1.0, rounded(getattr(profile, name) / slower / peak_rise, _DIGITS))
    for name, kind in _SECONDS.items():
        changes[name] = rounded(getattr(profile, name) * getattr(factors, kind), _DIGITS)
    return profile.model_copy(update=changes)


def before_runs(profile: HardwareProfile) -> HardwareProfile:
    """Copy of a profile as microbenchmarks measured it, with the changes that timed runs made to it undone. A
    peak that a run raised is not lowered."""
    if profile.moved is None:
        return profile
    back = FittedFactors(**{kind: 1.0 / factor for kind, factor in profile.moved})
    changes = {"moved": None, "contention": 0.0, "source": profile.source.partition(PROVENANCE_MARK)[0]}
    return scale_seconds(profile, back).model_copy(update=changes)


def _slowed(curve: Curve, factor: float) -> Curve:
    """Copy of a curve with the seconds of all points multiplied by `factor`."""

    def slower(point: CurvePoint) -> CurvePoint:
        """Copy of a curve point with its seconds multiplied by `factor`."""
        return CurvePoint(size=point.size, seconds=rounded(point.seconds * factor, _DIGITS))

    passes = {name: tuple(map(slower, points)) for name, points in curve if isinstance(points, tuple)}
    return curve.model_copy(update=passes)


_COMMUNICATION = ("tp_comm", "cp_comm", "ep_comm", "dp_comm")
QUANTITIES: dict[str, tuple[str, ...]] = {
    "thread": ("compute", "recompute", "host", "optimizer"),
    "compute": ("compute", "recompute"),
    "host": ("host",),
    "update": ("optimizer",),
} | {part: (part,) for part in _COMMUNICATION}
"""Parts of an estimate that make up each quantity measured by runs; `step` is the sum of all parts."""
STEP = "step"
_MODEL_ERROR = {STEP: 0.05, "thread": 0.02, "compute": 0.1, "host": 0.5, "update": 0.2}
_MODEL_ERROR |= dict.fromkeys(_COMMUNICATION, 0.3)
"""Relative error of a quantity even without noise: that of clocks and profilers, and of the cost model itself."""
_PULLS = {"compute": 0.1, "host": 0.7, **dict.fromkeys(FOLLOW_HOST, 0.5), "step": 0.7, "optimizer": 0.3}
_PULLS |= {"collectives": 0.5, "contention": 0.5}
"""Log-distance from what was measured apart that is as likely as one deviation: operators repeat within a tenth, host
times differ by factors, and so do collectives whose members wait for one another. Contention is 1 + it, from 1."""
_SHARED_HOST_FACTOR = 0.3
"""Share of the logarithm by which all host time is off that `FOLLOW_HOST` are taken to be off by, beside something of
their own: caches are colder in a step than where it was measured, which is most of a short time and little of a long
one."""
_FARTHEST = math.log(100.0)
"""Logarithm of the largest factor by which a constant may change: beyond it something else is wrong."""
_MAX_NAMED_RUNS = 4
"""Maximum number of runs that a profile's source names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredQuantity:
    """Seconds and noise of one quantity (such as `step` or `tp_comm`) as one run measured it."""

    seconds: float
    """Seconds in the median step."""
    noise: float
    """Relative width of the middle half of the steps."""
    disturbance: float = 0.0
    """Further uncertainty, as a logarithm: what other work took of the machine, which varies from run to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """Timed run on the machine of the profile: question, layout, and the quantities that the run measured."""

    name: str
    question: Question
    layout: Layout
    """The layout, with its ranks placed on the cluster."""
    seen: Mapping[str, MeasuredQuantity]
    """Measurements of `step` and of the `QUANTITIES` that this run measured, by quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """Hardware profile before and after its refinement by timed runs, with the fitted factors and the
    estimates of the runs."""

    start: HardwareProfile
    """The measured profile, before runs changed it."""
    profile: HardwareProfile
    """Refined profile, whose `median_error` is that of the fit, or the noise of the runs where that is larger."""
    runs: tuple[ObservedRun, ...]
    estimates: tuple[Estimate, ...]
    """Estimate of each run under the refined profile."""
    factors: dict[str, Interval]
    """Factor by kind of `FittedFactors`; `contention` stands for 1 + contention."""


def refine(profile: HardwareProfile, runs: Sequence[ObservedRun]) -> Refinement:
    """Refine a measured hardware profile by timed `runs` on one machine, after earlier refinements are
    undone.

    Raises:
        InputError: the profile is of another GPU.
    """
    start, question = before_runs(profile), runs[0].question
    priced(runs[0], start)  # refuses a profile of another GPU, before it is given the name of this one
    gpu = question.cluster.gpu.name
    identity = {"name": f"measured-{gpu}", "tier": "measured", "gpu": gpu, "stack": question.stack.name}
    start = start.model_copy(update=identity)
    predicted = [quantities(priced(run, start)) for run in runs]
    usable = [
        (index, quantity, one)
        for index, run in enumerate(runs)
        for quantity, one in run.seen.items()
        if 0 < one.seconds < math.inf and predicted[index][quantity] > 0
    ]
    noise = np.array([math.hypot(_MODEL_ERROR[name], one.noise, one.disturbance) for _, name, one in usable])
    measured = np.log([one.seconds for _, _, one in usable])
    kinds = list(_PULLS)
    shared = np.eye(len(kinds))  # host kinds share a part of what the host's time of a block is off by
    shared[[kinds.index(kind) for kind in FOLLOW_HOST], kinds.index("host")] = _SHARED_HOST_FACTOR
    prior = shared @ np.diag(np.square(list(_PULLS.values()))) @ shared.T

    def errors_at(points: Array) -> Array:
        """Logarithms of predicted over measured quantities, (K, R), at K points (K, C), which are logarithms
        of C factors."""
        profiles = (_scaled_profile(start, point) for point in points)
        predicted = [[quantities(priced(run, profile)) for run in runs] for profile in profiles]
        logarithms = np.log([[by_run[index][name] for index, name, _ in usable] for by_run in predicted])
        return np.asarray(logarithms - measured)

    floor = np.array([0.0 if kind == "contention" else -_FARTHEST for kind in kinds])
    around, covariance = shrink(errors_at, np.zeros(len(kinds)), prior, noise, floor=floor, ceiling=_FARTHEST)
    result = _scaled_profile(start, around.point)
    estimates = tuple(priced(run, result) for run in runs)
    steps = zip(runs, estimates, strict=True)
    errors = [abs(one.step_seconds / run.seen[STEP].seconds - 1) for run, one in steps]
    variation = float(np.median([run.seen[STEP].noise for run in runs]))
    layouts = ", ".join(run.layout.brief for run in runs[:_MAX_NAMED_RUNS])
    further = f" and {len(runs) - _MAX_NAMED_RUNS} more" if len(runs) > _MAX_NAMED_RUNS else ""
    claims = {
        "median_error": round(max(float(np.median(errors)), variation), 4),
        "validated_runs": len(runs),
        "source": f"{start.source}{PROVENANCE_MARK}runs of {question.model.name} under {layouts}{further}",
    }
    return Refinement(
        start=start,
        profile=result.model_copy(update=claims),
        runs=tuple(runs),
        estimates=estimates,
        factors=intervals(kinds, around.point, np.diag(covariance), np.diag(prior)),
    )


def priced(run: ObservedRun, profile: HardwareProfile) -> Estimate:
    """Estimate the step of a run under another hardware profile. Raises InputError if the profile is of
    another GPU."""
    question = run.question
    completed = complete_question(
        question.model, question.cluster, question.training, stack=question.stack, profile=profile
    )
    return estimate(completed, run.layout)


def quantities(result: Estimate) -> dict[str, float]:
    """Seconds of an estimate by quantity that runs measure: the step (`step`), and each sum of parts in
    `QUANTITIES`."""
    parts = dict(result.time)
    sums = {name: sum(parts[part] for part in part_names) for name, part_names in QUANTITIES.items()}
    return {STEP: result.step_seconds} | sums


def _scaled_profile(start: HardwareProfile, logarithms: Array) -> HardwareProfile:
    """Profile with seconds multiplied by the factors whose logarithms (C,) are given, in the order of
    `_PULLS`."""
    factors = {kind: rounded(factor) for kind, factor in zip(_PULLS, np.exp(logarithms), strict=True)}
    contention = round(factors.pop("contention") - 1.0, 4)
    by = FittedFactors(**factors)
    return scale_seconds(start, by).model_copy(update={"moved": by, "contention": contention})
