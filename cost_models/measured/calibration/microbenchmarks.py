"""Fit of a hardware profile to microbenchmarks: a few constants by robust least squares, and curves where no
constant describes the measurements.

    matrix product   GPU: start-up + flops / (peak · efficiency) · (1 + k_half / k), in tile waves
                     CPU: start-up + flops / (peak · efficiency) + operand bytes / operand bandwidth
                     and both slower in training, as the largest is once it has run for seconds
    attention        flops / (peak · efficiency), and a curve over sequence length for each head width
    element-wise     bytes / (bandwidth · efficiency), and a curve over elements for each operator
    optimizer        tensors · start-up + bytes / (bandwidth · efficiency)
    host             GPU: a tiny block's seconds to launch; CPU: its seconds beyond those of its operators
    collectives      a curve over message bytes for each group size
    offload          see `host_constants`
    tables           see `table_rates`

Rows of processes that measured side by side are averaged. What is not measured (network, jitter) stays as in
the base.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean, median, mode
from typing import Any, Literal, get_args

import numpy as np

from cost_models.arrays import MAD_TO_DEVIATION, Array, group_by
from cost_models.compute.gemm import gemm_seconds, rated_device
from cost_models.errors import InputError
from cost_models.recommender.accesses import POLICIES
from cost_models.recommender.prices import change_bytes, lookup_bytes, sum_bytes
from cost_models.specs.cluster import AttentionKernel, ClusterSpec, GpuSpec, Precision
from cost_models.specs.hardware import (
    AttentionCurve,
    CollectiveCurve,
    CurvePoint,
    ElementwiseOperator,
    HardwareProfile,
    HostCopies,
    HostRates,
    HostUpdate,
    OperatorCurve,
    attention_head_seconds,
    curve_seconds,
)
from cost_models.specs.recommender.constants import ServedPoint, TablePoint, TableRates
from cost_models.units import FP32_BYTES, rounded

Kind = Literal[
    "matrix", "attention", "operator", "memory", "optimizer", "host", "offload", "collective", "table"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Seconds of one operation, timed by a microbenchmark in one process.

    `shape` and `size` by kind:
    matrix (m, n, k) and FLOPs, called `repeated` where its operands stay in the cache and `sustained` where it ran
    for seconds · attention (sequence, head_dim)
    and FLOPs of one causal head · operator () and elements · memory () and bytes read + written · optimizer (tensors,)
    and parameters · host (tokens, hidden size, heads) and blocks · offload (threads,) and parameters of an update,
    (ranks,) and bytes of a copy, (threads,) and blocks of what overlaps · collective (group size,) and bytes of the
    tensor · table (row bytes, ids, bags, rows met) and bytes moved, through a cache (row bytes, ids) and ids.
    """

    kind: Kind
    name: str
    """Operation and pass: `gelu` and `gelu.backward`."""
    shape: tuple[int, ...] = ()
    size: float
    seconds: float
    """Seconds of a typical repetition on a quiet machine, which add up over the hundreds of calls of a step."""
    quiet_seconds: float
    """Seconds of the fastest repetition; its distance from `seconds` is the noise."""
    rank: int = 0
    kernel: AttentionKernel | None = None
    """Kernel that torch chose for attention."""

    @property
    def noise(self) -> float:
        """Ratio of the typical repetition's seconds to the fastest repetition's, minus 1."""
        return self.seconds / self.quiet_seconds - 1.0

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Measurement:
        """Measurement from a dictionary of its fields, whose `shape` may be a list, as JSON has no tuples."""
        return cls(**{**row, "shape": tuple(row["shape"])})


def select(measurements: Iterable[Measurement], kind: Kind, name: str | None = None) -> list[Measurement]:
    """Measurements of the given kind and, unless None, the given name."""
    return [row for row in measurements if row.kind == kind and name in (None, row.name)]


def quietest(rounds: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    """Merge repeated rounds of timings into one measurement per operation, the mean of its fastest quarter of
    rounds (at least one).

    Rounds lie apart in time, so that a passing disturbance of the machine does not hit every timing of one thing.
    """
    fastest_rounds = max(1, len(rounds) // 4)
    means = []
    for repetitions in zip(*rounds, strict=True):
        fastest = sorted(repetitions, key=lambda row: row.seconds)[:fastest_rounds]
        seconds, quiet = fmean(row.seconds for row in fastest), min(row.quiet_seconds for row in repetitions)
        means.append(replace(repetitions[0], seconds=seconds, quiet_seconds=quiet))
    return means


def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Merge the timings of processes that ran side by side into one measurement per operation, with the mean
    seconds."""
    means = []
    for rows in group_by(measurements, lambda row: (row.kind, row.name, row.shape, row.size)).values():
        seconds, quiet = fmean(row.seconds for row in rows), fmean(row.quiet_seconds for row in rows)
        means.append(replace(rows[0], rank=0, seconds=seconds, quiet_seconds=quiet))
    return means


OPTIMIZER_BYTES = 32.0
"""Bytes per parameter that AdamW in fp32 moves: gradient read for norm and update, moments and weight read and written.
"""
_TENSORS_MOVED = {"add": 3.0, "multiply": 3.0, "copy": 2.0, "relu": 2.0}
"""Number of tensors that each plain operator reads and writes; these operators determine memory efficiency."""
_PERFECT_PRODUCTS: dict[str, float | None] = {"gemm_settled": None, "gemm_operand_bandwidth": None}
_PERFECT_PRODUCTS |= {"gemm_efficiency": 1.0, "gemm_k_half": 0.0, "kernel_seconds": 0.0}
_ELEMENT_BYTES: dict[Precision, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 2.0}
REPEATED = "repeated"
"""Name prefix of products whose operands stay in the cache, as no model's do: they give a CPU's peak."""
SUSTAINED = "sustained"
"""Name prefix of a product that ran for seconds without a gap."""
_NO_FASTER_THAN_THE_PEAK = np.array([1.0, 0.0, 0.0])
_NO_TRAFFIC = 1e15
"""Operand bandwidth, bytes/s, of products whose operands took no time that could be seen."""
_FAMILIES = ("matrix", "attention", "operator", "optimizer", "host")
Rows = Sequence[Measurement]
"""Rows of a fit: one for each thing that was timed."""


_SPLIT_HOST = {
    "tensor_parallel_host_seconds": ("block.tensor-parallel", "block"),
    "sequence_parallel_host_seconds": ("block.sequence-parallel", "block.tensor-parallel"),
    "sharded_host_seconds": ("block.sharded", "block"),
}
"""Names of the tiny blocks with and without the mechanism that each constant times, by constant."""


def fit_microbenchmarks(
    points: Rows, cluster: ClusterSpec, base: HardwareProfile, *, name: str, precision: Precision, source: str
) -> HardwareProfile:
    """Fit the hardware profile of one device of `cluster` to microbenchmarks in `precision`; constants that
    were not measured are taken from `base`.

    Peak and bandwidth of a CPU are the best that was measured, those of a GPU its datasheet's: no share of them is
    above 1. `source` opens the provenance; the number of `points`, the residuals and the noise are added to it.

    Raises:
        InputError: a family of measurements is missing.
    """
    rows = merge(points)
    if missing := [kind for kind in _FAMILIES if not any(row.kind == kind for row in rows)]:
        raise InputError(f"nothing was measured of {', '.join(missing)}")
    gpu = measured_gpu(rows, cluster.gpu)
    is_cpu, peak = gpu.kind == "cpu", gpu.peak[precision]
    kernels = [row.kernel for row in select(rows, "attention", "forward") if row.kernel is not None]
    kernel: AttentionKernel | None = mode(kernels) if kernels else None
    published = gpu.attention_share(kernel or "flash2")
    matrices, matrix_error = _matrices(rows, gpu, base, precision)
    memory_rate = _memory_rate(rows, precision)
    bandwidth, updates = gpu.memory_bandwidth, select(rows, "optimizer")
    if is_cpu:
        update_rates = [OPTIMIZER_BYTES * row.size / row.quiet_seconds for row in updates]
        bandwidth = max(bandwidth, memory_rate, *update_rates)
    terms = np.array([(OPTIMIZER_BYTES * row.size, row.shape[0]) for row in updates])
    seconds, at_best = np.array([row.seconds for row in updates]), np.array([1.0 / bandwidth, 0.0])
    (seconds_a_byte, _), optimizer_error = relative_least_squares(terms, seconds, floor=at_best)
    errors = f"matrix {matrix_error:.1%}, optimizer {optimizer_error:.1%}"
    noise = float(np.median([row.noise for row in points]))
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
        "optimizer_efficiency": _efficiency(float(1.0 / seconds_a_byte) / bandwidth),
        "measured_peak": rounded(peak) if is_cpu else None,
        "measured_bandwidth": rounded(bandwidth) if is_cpu else None,
        "operators": operator_curves(rows),
        "attention": attention_curves(rows),
        "collectives": collective_curves(rows, behind_compute=is_cpu),
        "tables": table_rates(rows, bandwidth, source),
        **host_constants(rows, ranks=1 + max(row.rank for row in points), is_cpu=is_cpu),
        "median_error": None,
        "unseen_error": None,
        "validated_runs": 0,
        "source": f"{source}; {len(points)} points; median residual: {errors}; machine noise {noise:.1%}",
    }
    profile = base.model_copy(update=constants)  # on a CPU, host seconds depend on its curves
    host_seconds = {"action_host_seconds": action_host_seconds(rows, otherwise=base.action_host_seconds)}
    host_seconds["host_layer_seconds"] = host_layer_seconds(rows, profile, peak, launches_ahead=not is_cpu)
    for constant, (block, baseline) in _SPLIT_HOST.items():
        host_seconds[constant] = getattr(base, constant)
        if select(rows, "host", block):
            host_seconds[constant] = max(0.0, _pass_seconds(rows, block) - _pass_seconds(rows, baseline))
    if is_cpu:  # an update of a model with next to no parameters
        host_seconds["step_seconds"] = select(rows, "host", "update")[0].seconds
    return profile.model_copy(update={name: rounded(seconds) for name, seconds in host_seconds.items()})


def _matrices(
    rows: Rows, gpu: GpuSpec, base: HardwareProfile, precision: Precision
) -> tuple[dict[str, float | None], float]:
    """Fitted constants of matrix products, by name, and the median relative error of the fit.

    `ideal` is the cost model's own formula at efficiency 1, so tile waves and the memory roof are taken out
    alike.
    """
    all_products = (row for row in select(rows, "matrix") if row.name.endswith(f".{precision}"))
    products = [row for row in all_products if not row.name.startswith((REPEATED, SUSTAINED))]
    element_bytes = _ELEMENT_BYTES[precision]
    device = rated_device(gpu, base.model_copy(update=_PERFECT_PRODUCTS), precision, 1.0)
    device = replace(device, memory_rate=np.inf, optimizer_rate=np.inf, operand_bytes=element_bytes)
    shapes = np.array([row.shape for row in products], dtype=np.float64)
    seconds = np.array([row.seconds for row in products])
    m, n, k = shapes.T
    ideal = gemm_seconds(m, n, k, device)
    second = ideal / k if gpu.kind != "cpu" else element_bytes * (m * k + k * n + m * n)
    terms = np.stack([ideal, second, np.ones(len(products))], axis=1)
    coefficients, error = relative_least_squares(terms, seconds, floor=_NO_FASTER_THAN_THE_PEAK)
    slope, second_coefficient = np.maximum(coefficients[:2], np.finfo(np.float64).tiny)
    settled = _sustained(rows, products, terms @ coefficients, precision)
    constants = {"gemm_efficiency": _efficiency(1.0 / slope), "gemm_settled": settled}
    if gpu.kind != "cpu":
        return constants | {"gemm_k_half": rounded(second_coefficient / slope)}, error
    return constants | {"gemm_operand_bandwidth": rounded(min(1.0 / second_coefficient, _NO_TRAFFIC))}, error


def _sustained(rows: Rows, bursts: Rows, priced: Array, precision: Precision) -> float | None:
    """Ratio of a matrix product's rate over several seconds to its rate in a short burst; None if no product
    ran that long.

    To its fitted price's where that is longer: a fit that stops at the datasheet's rate has part of it already. The
    fastest window counts, because what neighbours took is not a matter of clocks.
    """
    for row in select(rows, "matrix", f"{SUSTAINED}.{precision}"):
        pairs = zip(bursts, priced, strict=True)
        forward = [(one, price) for one, price in pairs if one.name.startswith("forward")]
        burst = min(max(one.seconds, price) for one, price in forward if one.shape == row.shape)
        return _efficiency(burst / row.quiet_seconds)
    return None


_HUBER_ROUNDS = 30
_HUBER = 1.345
"""Residuals beyond this many deviations count linearly: 95 % efficient on clean data (Huber 1964)."""


def relative_least_squares(terms: Array, seconds: Array, floor: Array | float = 0.0) -> tuple[Array, float]:
    """Coefficients c (T,), at least `floor`, that minimise the relative errors of `terms` (N, T) · c against
    `seconds` (N,). The second result is the median absolute relative error that remains.

    Iteratively reweighted with Huber's weights, so that a disturbed point does not move the rest. Coefficients that
    come out below `floor` have no meaning and are fixed at it, the lowest first.
    """
    coefficients = np.broadcast_to(np.asarray(floor, dtype=np.float64), terms.shape[1:]).copy()
    free = np.ones(terms.shape[1], dtype=bool)
    values = 1.0 - terms @ coefficients / seconds
    while free.any():
        solution = _huber(terms[:, free] / seconds[:, None], values)
        if (solution >= 0).all():
            coefficients[free] += solution
            break
        free[np.flatnonzero(free)[np.argmin(solution)]] = False
    return coefficients, float(np.median(np.abs(terms @ coefficients / seconds - 1.0)))


def _huber(terms: Array, values: Array) -> Array:
    """Solve `terms` · x ≈ `values` by iteratively reweighted least squares with Huber's weights, starting
    from the plain solution."""
    root = np.ones(len(values))
    for _ in range(_HUBER_ROUNDS + 1):
        fit = np.linalg.lstsq(terms * root[:, None], values * root, rcond=None)
        solution = np.asarray(fit[0], dtype=np.float64)
        residual = np.abs(terms @ solution - values)
        deviation = max(MAD_TO_DEVIATION * float(np.median(residual)), np.finfo(np.float64).eps)
        root = np.sqrt(np.minimum(1.0, _HUBER * deviation / np.maximum(residual, np.finfo(np.float64).tiny)))
    return solution


def _attention_efficiency(rows: Rows, direction: str, rate: float) -> float:
    """Median ratio of attention's measured rates to `rate` (FLOP/s), over all measured sequence lengths and
    head widths."""
    shares = [row.size / row.seconds / rate for row in select(rows, "attention", direction)]
    return _efficiency(float(np.median(shares)))


def _memory_rate(rows: Rows, precision: Precision) -> float:
    """Median memory rate in bytes/s of add, multiply, copy and relu, each at its largest measured size."""
    rates = []
    for name, tensors in _TENSORS_MOVED.items():
        if measured := select(rows, "operator", name):
            largest = max(measured, key=lambda row: row.size)
            rates.append(tensors * _ELEMENT_BYTES[precision] * largest.size / largest.seconds)
    return float(np.median(rates))


def _efficiency(value: float) -> float:
    """Value limited to the range from 1e-6 to 1 and rounded, as a profile's efficiencies are."""
    return rounded(float(np.clip(value, 1e-6, 1.0)))


def measured_gpu(rows: Rows, gpu: GpuSpec) -> GpuSpec:
    """Copy of the GPU's spec in which a CPU's peak FLOP/s and bandwidth are the best measured rates, as a CPU
    has no datasheet; a GPU is unchanged.

    The best of all repetitions counts, with operands in caches too; every efficiency is a share of it.
    """
    if gpu.kind != "cpu":
        return gpu
    peak = dict(gpu.peak)
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
    for precision in precisions:
        products = (row for row in select(rows, "matrix") if row.name.endswith(precision))
        if rates := [row.size / row.quiet_seconds for row in products]:
            peak[precision] = max(rates)
    copies = (row.size / row.quiet_seconds for row in select(rows, "memory", "copy"))
    bandwidth = max(copies, default=gpu.memory_bandwidth)
    return gpu.model_copy(update={"peak": peak, "memory_bandwidth": bandwidth})


def operator_curves(rows: Rows) -> tuple[OperatorCurve, ...]:
    """Curve of seconds over elements of each element-wise operator that was measured at two sizes or more."""
    curves = []
    for operator in get_args(ElementwiseOperator):
        forward = _points(select(rows, "operator", operator))
        backward = _points(select(rows, "operator", f"{operator}.backward"))
        if len(forward) > 1:
            curves.append(OperatorCurve(operator=operator, forward=forward, backward=backward))
    return tuple(curves)


def attention_curves(rows: Rows) -> tuple[AttentionCurve, ...]:
    """Curves of seconds of one attention head over the sequence length, one for each head width."""

    def curve(direction: str, width: int) -> tuple[CurvePoint, ...]:
        """Curve of one attention head's seconds over the sequence length, for the given head width, forward
        or backward."""
        timed = (row for row in select(rows, "attention", direction) if row.shape[1] == width)
        return _curve((float(row.shape[0]), row.seconds) for row in timed)

    return tuple(
        AttentionCurve(head_dim=width, forward=curve("forward", width), backward=curve("backward", width))
        for width in sorted({row.shape[1] for row in select(rows, "attention")})
    )


def collective_curves(rows: Rows, *, behind_compute: bool) -> tuple[CollectiveCurve, ...]:
    """Curve of seconds over message bytes for each measured collective and group size."""
    groups = group_by(select(rows, "collective"), lambda row: (row.name, row.shape[0]))
    curves = []
    for operation, ranks in sorted(groups):
        fields = {"operation": operation, "group_size": ranks, "points": _points(groups[operation, ranks])}
        curves.append(CollectiveCurve.model_validate(fields | {"behind_compute": behind_compute}))
    return tuple(curves)


def _points(rows: Iterable[Measurement]) -> tuple[CurvePoint, ...]:
    """Curve points in order of size from measurements."""
    return _curve((row.size, row.seconds) for row in rows)


def _curve(measured: Iterable[tuple[float, float]]) -> tuple[CurvePoint, ...]:
    """Curve points in order of size from measured (size, seconds). Noise only adds time, so each size takes
    the least seconds measured at this or any larger size."""
    largest_first = sorted(measured, reverse=True)
    quickest = [rounded(seconds) for seconds in accumulate((seconds for _, seconds in largest_first), min)]
    points = zip(largest_first, quickest, strict=True)
    return tuple(CurvePoint(size=size, seconds=seconds) for (size, _), seconds in points)[::-1]


_BLOCK_OPERATORS = {"layernorm": (1.0, 2.0), "gelu": (4.0, 1.0), "add": (1.0, 3.0)}
"""Width in hidden sizes and number of calls of each element-wise operator in the measured block, by operator."""
_BLOCK_PRODUCTS = 12.0
"""Matrix products of the measured block forward, in units of tokens × hidden²."""


def host_layer_seconds(rows: Rows, profile: HardwareProfile, peak: float, *, launches_ahead: bool) -> float:
    """Host seconds of one block per pass, measured on a tiny block. If the host itself runs the operators,
    their seconds are subtracted."""
    tokens, hidden, heads = select(rows, "host", "block")[0].shape
    explained = 0.0
    if not launches_ahead:
        explained = 3 * 2.0 * tokens * hidden**2 * _BLOCK_PRODUCTS / (peak * profile.gemm_efficiency)
        curves: dict[str, OperatorCurve] = {curve.operator: curve for curve in profile.operators}
        for operator, (width, count) in _BLOCK_OPERATORS.items():
            if operator in curves:
                curve, elements = curves[operator], np.array(width * tokens * hidden)
                for points in (curve.forward, curve.forward if operator == "add" else curve.backward):
                    explained += count * float(curve_seconds(points, elements))
        if profile.attention:
            lengths = np.array(float(tokens))
            forward, backward = attention_head_seconds(profile.attention, lengths, hidden // heads)
            explained += heads * float(forward + backward)
    return max(0.0, _pass_seconds(rows, "block") - explained / 2)


def action_host_seconds(rows: Rows, *, otherwise: float) -> float:
    """Host seconds of one pipeline action, excluding those of its blocks, measured with two stages;
    `otherwise` if not measured.

    Each stage has half of the blocks and one end of the model, which is driven like half a block.
    """
    if not (pipelined := select(rows, "host", "block.pipelined")):
        return otherwise
    smallest = min(pipelined, key=lambda row: row.size)
    blocks = 2 * _pass_seconds(rows, "block") * (smallest.size / 2 + 0.5)
    return max(0.0, smallest.seconds - blocks) / 2


def _pass_seconds(rows: Rows, name: str) -> float:
    """Host seconds per block and pass, averaged over forward and backward passes.

    The slope over models of more and more blocks by repeated medians (Siegel 1982): of each model's slopes towards the
    others, then of those, so that nearly half of the models may have been disturbed.
    """
    blocks = select(rows, "host", name)

    def slope(first: Measurement, second: Measurement) -> float:
        """Seconds per additional block, from measurements of two models with different numbers of blocks."""
        return (first.seconds - second.seconds) / (first.size - second.size)

    slopes = (median(slope(first, second) for second in blocks if second is not first) for first in blocks)
    return median(slopes) / 2


def host_constants(rows: Rows, *, ranks: int, is_cpu: bool) -> dict[str, Any]:
    """Profile constants for offload, by name (host updates, calls, overlap, copies); empty if offload was not
    measured.

    Args:
        rows: merged over the ranks.
        ranks: how many were measured at once.
        is_cpu: whether the devices are their own hosts, and update with one thread each.
    """
    if not (measured := select(rows, "offload", "update")):
        return {}
    updates = [HostUpdate(threads=row.shape[0], seconds=rounded(row.seconds / row.size)) for row in measured]
    update = updates[0] if is_cpu else updates[-1]
    calls = select(rows, "offload", "call")
    names = ("passes", "updates", "together")
    pass_seconds, update_seconds, joint_seconds = (select(rows, "offload", name)[0].seconds for name in names)
    overlap = (pass_seconds + update_seconds - joint_seconds) / pass_seconds
    return {
        "host_update_seconds": update.seconds if is_cpu else rounded(update.seconds / ranks),
        "host_call_seconds": rounded(calls[0].seconds if calls else 0.0),
        "host_overlap": rounded(min(1.0, max(0.0, overlap))),
        "host_rates": HostRates(updates=tuple(updates), copies=_copies(rows)),
    }


def _copies(rows: Rows) -> tuple[HostCopies, ...]:
    """Rates of copies to and from host memory for each measured number of ranks that copy at once."""
    rates: dict[int, dict[str, str]] = {}
    for way in ("down", "up", "both"):
        for row in select(rows, "offload", way):
            rates.setdefault(row.shape[0], {})[way] = f"{rounded(row.size / row.seconds)!r} B/s"
    return tuple(HostCopies.model_validate({"ranks": ranks, **rates[ranks]}) for ranks in sorted(rates))


LOOKUP, SUMS, CHANGE, SERVED_PREFIX = "lookup", "sums", "change.", "served."

_STATES = {"sgd": 0.0, "rowwise-adagrad": 0.0, "adagrad": 1.0, "adam": 2.0}
"""States of an element beside its weight."""
_ROW_STATES = {"rowwise-adagrad": 4.0}
"""Bytes of states of a row."""


def moved_bytes(name: str, shape: tuple[int, ...]) -> float:
    """Bytes moved by a measured operation on an fp32 embedding table, by the cost model's formula; `shape` is
    (row bytes, ids, bags, distinct rows)."""
    row_bytes, ids, bags, distinct = map(float, shape)
    if name == LOOKUP:
        return float(lookup_bytes(ids, row_bytes, bags * row_bytes))
    if name == SUMS:
        return float(sum_bytes(ids, row_bytes, distinct, row_bytes / FP32_BYTES))
    kind = name.removeprefix(CHANGE)
    return float(change_bytes(distinct, row_bytes * (1 + _STATES[kind]) + _ROW_STATES.get(kind, 0.0)))


def table_rates(rows: Rows, bandwidth: float, source: str) -> TableRates | None:
    """Rates of embedding-table operations as shares of `bandwidth` (bytes/s), from merged measurements; None
    if no table was measured."""
    if not (table_rows := select(rows, "table")):
        return None

    def point(row: Measurement) -> TablePoint:
        """Efficiency that one measurement shows, with its row bytes and ids per bag."""
        pooling, rate = row.shape[1] / row.shape[2], row.size / row.seconds
        efficiency = rounded(rate / bandwidth)
        return TablePoint(row_bytes=row.shape[0], pooling=rounded(pooling), efficiency=efficiency)

    def points(name: str) -> tuple[TablePoint, ...]:
        """Efficiencies of all measurements of one operation."""
        return tuple(map(point, select(table_rows, "table", name)))

    kinds = dict.fromkeys(one.name.removeprefix(CHANGE) for one in table_rows if one.name.startswith(CHANGE))
    return TableRates(
        lookup=points(LOOKUP),
        sums=points(SUMS),
        changes={kind: points(CHANGE + kind) for kind in kinds},
        served={policy: through for policy in POLICIES if (through := _served_points(table_rows, policy))},
        source=source,
    )


def _served_points(table_rows: Rows, policy: str) -> tuple[ServedPoint, ...]:
    """Launch seconds of lookups through a cache, and additional seconds of each hit and of each miss, for
    each measured row size."""
    prefix = f"{SERVED_PREFIX}{policy}."
    launches, hits, misses = (select(table_rows, "table", prefix + name) for name in ("few", "hit", "miss"))
    return tuple(
        ServedPoint(
            row_bytes=launch.shape[0],
            launch_seconds=rounded(launch.seconds),
            hit_seconds=rounded(max(0.0, hit.seconds - launch.seconds) / hit.shape[1]),
            miss_seconds=rounded(max(0.0, miss.seconds - launch.seconds) / miss.shape[1]),
        )
        for launch, hit, miss in zip(launches, hits, misses, strict=True)
    )
