"""Microbenchmarks → hardware profile: few constants by robust least squares, and curves where no constant does.

    matrix product   GPU: start-up + flops / (peak · efficiency) · (1 + k_half / k), in tile waves
                     CPU: start-up + flops / (peak · efficiency) + operand bytes / operand bandwidth
                     and both slower in training, as the largest is once it has run for seconds
    attention        flops / (peak · efficiency), and a curve over sequence length for each head width
    element-wise     bytes / (bandwidth · efficiency), and a curve over elements for each operator
    optimizer        tensors · start-up + bytes / (bandwidth · efficiency)
    host             GPU: a tiny block's seconds to launch; CPU: its seconds beyond those of its operators
    collectives      a curve over message bytes for each group size
    offload          see `offload_fit`
    tables           see `table_fit`

Rows of processes that measured side by side are averaged. What is not measured (network, jitter) stays as in
the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mode

import numpy as np

from cost_models.arrays import Array
from cost_models.compute.gemm import Device, gemm_seconds
from cost_models.errors import InputError
from cost_models.estimate import Breakdown
from cost_models.measured.calibration.least_squares import relative_errors, relative_least_squares
from cost_models.measured.calibration.measurements import Measurement, merge, select
from cost_models.measured.calibration.microbenchmark_parts import (
    action_host_seconds,
    attention_curves,
    collective_curves,
    host_constants,
    host_layer_seconds,
    operator_curves,
    rounded,
    split_host_seconds,
    table_rates,
    update_host_seconds,
)
from cost_models.specs.cluster import AttentionKernel, ClusterSpec, GpuSpec, KernelShare, Precision
from cost_models.specs.hardware import HardwareProfile

OPTIMIZER_BYTES = 32.0
"""Bytes per parameter that AdamW in fp32 moves: gradient read for norm and update, moments and weight read and written.
"""
_EFFICIENCY_RANGE = (1e-6, 1.0)
_TENSORS_MOVED = {"add": 3.0, "multiply": 3.0, "copy": 2.0, "relu": 2.0}
"""Plain operators → tensors read and written; memory efficiency is judged by these."""
_PERFECT_PRODUCTS = {
    "gemm_efficiency": 1.0,
    "gemm_settled": None,
    "gemm_k_half": 0.0,
    "gemm_operand_bandwidth": None,
    "kernel_seconds": 0.0,
}
_ELEMENT_BYTES: dict[Precision, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 2.0}
REPEATED = "repeated"
"""Name prefix of products whose operands stay in the cache, as no model's do: they give a CPU's peak."""
SUSTAINED = "sustained"
"""Name prefix of a product that ran for seconds without a gap."""
_NO_FASTER_THAN_THE_PEAK = np.array([1.0, 0.0, 0.0])
_NO_TRAFFIC = 1e15
"""Operand bandwidth, bytes/s, of products whose operands took no time that could be seen."""
_FAMILIES = ("matrix", "attention", "operator", "optimizer", "host")


_SPLIT_HOST = {
    "tensor_parallel_host_seconds": ("block.tensor-parallel", "block"),
    "sequence_parallel_host_seconds": ("block.sequence-parallel", "block.tensor-parallel"),
    "sharded_host_seconds": ("block.sharded", "block"),
}
"""Constant → (tiny block with what it is the time of, tiny block without)."""


def fit_microbenchmarks(
    measurements: Sequence[Measurement],
    cluster: ClusterSpec,
    base: HardwareProfile,
    *,
    name: str,
    precision: Precision,
    source: str,
) -> HardwareProfile:
    """The profile of one device of `cluster`, measured in `precision`; what was not measured is as in `base`.

    Peak and bandwidth of a CPU are the best that was measured, those of a GPU its datasheet's: no share of them is
    above 1. `source` opens the provenance; the number of points, the residuals and the noise are added to it.

    Raises:
        InputError: a family of measurements is missing.
    """
    rows = merge(measurements)
    if missing := [kind for kind in _FAMILIES if not any(row.kind == kind for row in rows)]:
        raise InputError(f"nothing was measured of {', '.join(missing)}")
    gpu = measured_gpu(rows, cluster.gpu)
    peak = gpu.peak[precision]
    kernel = _attention_kernel(rows)
    published = gpu.attention_share(kernel or "flash2")
    matrices, matrix_error = _matrices(rows, gpu, base, precision)
    memory_rate = _memory_rate(rows, precision)
    bandwidth = gpu.memory_bandwidth
    if gpu.kind == "cpu":
        updates = [OPTIMIZER_BYTES * row.size / row.quiet_seconds for row in select(rows, "optimizer")]
        bandwidth = max(bandwidth, memory_rate, *updates)
    optimizer_rate, optimizer_error = _optimizer(rows, bandwidth)
    residuals = Breakdown.of(matrix=matrix_error, optimizer=optimizer_error)
    noise = float(np.median([row.noise for row in measurements]))
    constants = {
        "name": name,
        "tier": "measured",
        "gpu": gpu.name,
        **matrices,
        "attention_kernel": kernel,
        "attention_forward_efficiency": _attention_efficiency(rows, "forward", peak * published.forward),
        "attention_backward_efficiency": _attention_efficiency(rows, "backward", peak * published.backward),
        "memory_efficiency": _efficiency(memory_rate / bandwidth),
        "kernel_seconds": rounded(min(row.seconds for row in select(rows, "operator"))),
        "optimizer_efficiency": _efficiency(optimizer_rate / bandwidth),
        "measured_peak": rounded(peak) if gpu.kind == "cpu" else None,
        "measured_bandwidth": rounded(bandwidth) if gpu.kind == "cpu" else None,
        "operators": operator_curves(rows),
        "attention": attention_curves(rows),
        "collectives": collective_curves(rows, behind_compute=gpu.kind == "cpu"),
        "tables": table_rates(rows, bandwidth, source),
        **host_constants(
            rows, ranks=1 + max(row.rank for row in measurements), is_cpu=cluster.gpu.kind == "cpu"
        ),
        "median_error": None,
        "unseen_error": None,
        "validated_runs": 0,
        "source": _provenance(source, measurements, residuals, noise),
    }
    return _with_host(base.model_copy(update=constants), base, rows, peak, is_cpu=gpu.kind == "cpu")


def _with_host(
    profile: HardwareProfile, base: HardwareProfile, rows: Sequence[Measurement], peak: float, *, is_cpu: bool
) -> HardwareProfile:
    """The profile with host times, which on a CPU depend on its curves; what was not measured is as in `base`."""
    layer = host_layer_seconds(rows, profile, peak, launches_ahead=not is_cpu)
    return profile.model_copy(
        update={
            "host_layer_seconds": rounded(layer),
            **{constant: rounded(_split(rows, base, constant)) for constant in _SPLIT_HOST},
            "action_host_seconds": rounded(action_host_seconds(rows, otherwise=base.action_host_seconds)),
            "step_seconds": rounded(update_host_seconds(rows)) if is_cpu else base.step_seconds,
        }
    )


def _split(rows: Sequence[Measurement], base: HardwareProfile, constant: str) -> float:
    name, than = _SPLIT_HOST[constant]
    return split_host_seconds(rows, name, than, otherwise=getattr(base, constant))


def _matrices(
    rows: Sequence[Measurement], gpu: GpuSpec, base: HardwareProfile, precision: Precision
) -> tuple[dict[str, float | None], float]:
    """Constants of matrix products, and the median error of their fit.

    `ideal` is the cost model's own formula at efficiency 1, so tile waves and the memory roof are taken out
    alike.
    """
    chosen = [
        row
        for row in select(rows, "matrix")
        if row.name.endswith(f".{precision}") and not row.name.startswith((REPEATED, SUSTAINED))
    ]
    perfect = base.model_copy(update=_PERFECT_PRODUCTS)
    device = Device(
        profile=perfect,
        peak=gpu.peak[precision],
        sustained=gpu.sustained.get(precision, 1.0),
        power_rate=gpu.power_rate(precision),
        memory_rate=np.inf,
        optimizer_rate=np.inf,
        attention=KernelShare(forward=1.0, backward=1.0),
        sm_count=gpu.sm_count,
        element_bytes=1.0,
        operand_bytes=_ELEMENT_BYTES[precision],
        launches_ahead=gpu.kind != "cpu",
    )
    shapes = np.array([row.shape for row in chosen], dtype=np.float64)
    seconds = np.array([row.seconds for row in chosen])
    ideal = gemm_seconds(shapes[:, 0], shapes[:, 1], shapes[:, 2], device)
    m, n, k = shapes.T
    element_bytes = _ELEMENT_BYTES[precision]
    second = ideal / k if gpu.kind != "cpu" else element_bytes * (m * k + k * n + m * n)
    terms = np.stack([ideal, second, np.ones(len(chosen))], axis=1)
    coefficients = relative_least_squares(terms, seconds, least=_NO_FASTER_THAN_THE_PEAK)
    error = float(np.median(np.abs(relative_errors(terms, coefficients, seconds))))
    slope, other = np.maximum(coefficients[:2], np.finfo(np.float64).tiny)
    constants = {
        "gemm_efficiency": _efficiency(1.0 / slope),
        "gemm_settled": _sustained(rows, chosen, terms @ coefficients, precision),
    }
    if gpu.kind != "cpu":
        return constants | {"gemm_k_half": rounded(other / slope)}, error
    return constants | {"gemm_operand_bandwidth": rounded(min(1.0 / other, _NO_TRAFFIC))}, error


def _sustained(
    rows: Sequence[Measurement], bursts: Sequence[Measurement], priced: Array, precision: Precision
) -> float | None:
    """Rate of the product that ran for seconds relative to its burst's; None where none did.

    To its fitted price's where that is longer: a fit that stops at the datasheet's rate has part of it already. The
    fastest window counts, because what neighbours took is not a matter of clocks.
    """
    for row in select(rows, "matrix", f"{SUSTAINED}.{precision}"):
        burst = (
            max(one.seconds, seconds)
            for one, seconds in zip(bursts, priced, strict=True)
            if one.shape == row.shape and one.name.startswith("forward")
        )
        return _efficiency(min(burst) / row.quiet_seconds)
    return None


def _attention_kernel(rows: Sequence[Measurement]) -> AttentionKernel | None:
    """What ran at most of the measured lengths and widths; None where nobody looked."""
    ran = [row.kernel for row in select(rows, "attention", "forward") if row.kernel is not None]
    return mode(ran) if ran else None


def _optimizer(rows: Sequence[Measurement], bandwidth: float) -> tuple[float, float]:
    """(bytes/s, at most `bandwidth`; median error) of the optimizer step, without start-up of each tensor."""
    chosen = select(rows, "optimizer")
    seconds = np.array([row.seconds for row in chosen])
    moved = np.array([OPTIMIZER_BYTES * row.size for row in chosen])
    terms = np.stack([moved, np.array([float(row.shape[0]) for row in chosen])], axis=1)
    coefficients = relative_least_squares(terms, seconds, least=np.array([1.0 / bandwidth, 0.0]))
    errors = relative_errors(terms, coefficients, seconds)
    return float(1.0 / coefficients[0]), float(np.median(np.abs(errors)))


def _attention_efficiency(rows: Sequence[Measurement], direction: str, rate: float) -> float:
    """Median share of `rate` reached over the measured sequences and head widths."""
    return _efficiency(
        float(np.median([row.size / row.seconds / rate for row in select(rows, "attention", direction)]))
    )


def _memory_rate(rows: Sequence[Measurement], precision: Precision) -> float:
    """Median bytes/s of plain operators, each at its largest size."""
    element_bytes = _ELEMENT_BYTES[precision]
    largest = {
        name: max(found, key=lambda row: row.size)
        for name in _TENSORS_MOVED
        if (found := select(rows, "operator", name))
    }
    rates = [_TENSORS_MOVED[name] * element_bytes * row.size / row.seconds for name, row in largest.items()]
    return float(np.median(rates))


def _efficiency(value: float) -> float:
    return rounded(float(np.clip(value, *_EFFICIENCY_RANGE)))


def _provenance(source: str, measurements: Sequence[Measurement], residuals: Breakdown, noise: float) -> str:
    fitted = ", ".join(f"{kind} {error:.1%}" for kind, error in residuals)
    return f"{source}; {len(measurements)} points; median residual: {fitted}; machine noise {noise:.1%}"


def measured_gpu(rows: Sequence[Measurement], gpu: GpuSpec) -> GpuSpec:
    """A CPU with its best matrix rate in each precision and its best copy rate; a GPU with its datasheet's.

    The best of all repetitions counts, with operands in caches too; every efficiency is a share of it.
    """
    if gpu.kind != "cpu":
        return gpu
    peak = dict(gpu.peak)
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
    for precision in precisions:
        rates = [
            row.size / row.quiet_seconds for row in select(rows, "matrix") if row.name.endswith(precision)
        ]
        if rates:
            peak[precision] = max(rates)
    copies = [row.size / row.quiet_seconds for row in select(rows, "memory", "copy")]
    bandwidth = max(copies) if copies else gpu.memory_bandwidth
    return gpu.model_copy(update={"peak": peak, "memory_bandwidth": bandwidth})
