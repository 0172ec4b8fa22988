"""Measurements → parts of a profile: curves, host times, rates of offload, rates of embedding tables.

curves     element-wise operators, attention and collectives over their size
host       on a CPU the thread that drives operators also runs them, so host time is a tiny block's beyond the curves of
           its operators; on a GPU it is the time until the last launch returns, from which nothing is subtracted
update     seconds of a parameter with the threads that the executor gives a rank, over the ranks of the host, which
           updated at once; on a CPU, which is its own host, of one rank
call       seconds of an update of next to nothing, after other work
overlap    (passes + updates − together) / passes, where updates outlast passes
tables     lookups and updates of rows as shares of memory bandwidth, by row bytes and pooling
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, get_args

import numpy as np

from cost_models.measured.calibration.measurements import Measurement, select
from cost_models.recommender.caching import POLICIES
from cost_models.recommender.prices.lookup import change_bytes, lookup_bytes, sum_bytes
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

_DIGITS = 4
"""Significant digits of a time: far finer than its noise, and short to read."""


def rounded(value: float) -> float:
    """A measured value rounded to `_DIGITS` significant digits."""
    return float(f"{value:.{_DIGITS}g}")


def operator_curves(rows: Sequence[Measurement]) -> tuple[OperatorCurve, ...]:
    """A curve for each element-wise operator that was measured at two sizes or more."""
    curves = []
    for operator in get_args(ElementwiseOperator):
        forward = _points(select(rows, "operator", operator))
        backward = _points(select(rows, "operator", f"{operator}.backward"))
        if len(forward) > 1:
            curves.append(OperatorCurve(operator=operator, forward=forward, backward=backward))
    return tuple(curves)


def attention_curves(rows: Sequence[Measurement]) -> tuple[AttentionCurve, ...]:
    """A curve for each head width: seconds of one head over the sequence length."""
    forward, backward = select(rows, "attention", "forward"), select(rows, "attention", "backward")
    return tuple(
        AttentionCurve(
            head_dim=head_dim,
            forward=_points_over_sequence(forward, head_dim),
            backward=_points_over_sequence(backward, head_dim),
        )
        for head_dim in sorted({row.shape[1] for row in forward})
    )


def collective_curves(rows: Sequence[Measurement], *, behind_compute: bool) -> tuple[CollectiveCurve, ...]:
    """A curve for each collective and group size."""
    groups: dict[tuple[str, int], list[Measurement]] = defaultdict(list)
    for row in select(rows, "collective"):
        groups[row.name, row.shape[0]].append(row)
    return tuple(
        CollectiveCurve.model_validate(
            {
                "operation": operation,
                "group_size": group_size,
                "behind_compute": behind_compute,
                "points": _points(members),
            }
        )
        for (operation, group_size), members in sorted(groups.items(), key=lambda group: group[0])
    )


def _points(rows: Iterable[Measurement]) -> tuple[CurvePoint, ...]:
    return _curve((row.size, row.seconds) for row in rows)


def _points_over_sequence(rows: Iterable[Measurement], head_dim: int) -> tuple[CurvePoint, ...]:
    return _curve((float(row.shape[0]), row.seconds) for row in rows if row.shape[1] == head_dim)


def _curve(measured: Iterable[tuple[float, float]]) -> tuple[CurvePoint, ...]:
    """Points by size. Noise only adds time, so no size takes longer than any larger one."""
    quickest = math.inf
    points = []
    for size, seconds in sorted(measured, reverse=True):
        quickest = min(quickest, seconds)
        points.append(CurvePoint(size=size, seconds=rounded(quickest)))
    return tuple(reversed(points))


_BLOCK_OPERATORS: tuple[tuple[ElementwiseOperator, float, float], ...] = (
    ("layernorm", 1.0, 2.0),
    ("gelu", 4.0, 1.0),
    ("add", 1.0, 3.0),
)
"""Element-wise operators of the measured block: (operator, width in hidden sizes, how often)."""
_BLOCK_PRODUCTS = 12.0
"""Matrix products of the measured block forward, in units of tokens × hidden²."""


def host_layer_seconds(
    rows: Sequence[Measurement], profile: HardwareProfile, peak: float, *, launches_ahead: bool
) -> float:
    """Host seconds of a block per pass: those of a tiny block, less its operators' where the host runs them itself."""
    shape = select(rows, "host", "block")[0].shape
    explained = 0.0 if launches_ahead else _operator_seconds(shape, profile, peak)
    return max(0.0, _pass_seconds(rows, "block") - explained / 2)


def _operator_seconds(shape: Sequence[int], profile: HardwareProfile, peak: float) -> float:
    """Seconds of the tiny block's operators, forward and backward; `shape` is its tokens, hidden size and heads."""
    tokens, hidden, heads = shape
    products = 2.0 * tokens * hidden**2 * _BLOCK_PRODUCTS / (peak * profile.gemm_efficiency)
    explained = 3.0 * products
    curves = {curve.operator: curve for curve in profile.operators}
    for operator, width, count in _BLOCK_OPERATORS:
        if operator in curves:
            elements = np.array(width * tokens * hidden)
            curve = curves[operator]
            backward_points = curve.forward if operator == "add" else curve.backward
            explained += count * float(curve_seconds(curve.forward, elements))
            explained += count * float(curve_seconds(backward_points, elements))
    if profile.attention:
        each = attention_head_seconds(profile.attention, np.array(float(tokens)), hidden // heads)
        explained += heads * float(each[0] + each[1])
    return explained


def split_host_seconds(rows: Sequence[Measurement], name: str, than: str, *, otherwise: float) -> float:
    """Seconds of one pass that block `name` takes more than block `than`; `otherwise` where not measured.

    `block.tensor-parallel` and `block.sharded` are compared with `block`, `block.sequence-parallel` with
    `block.tensor-parallel`.
    """
    if not select(rows, "host", name):
        return otherwise
    return max(0.0, _pass_seconds(rows, name) - _pass_seconds(rows, than))


def action_host_seconds(rows: Sequence[Measurement], *, otherwise: float) -> float:
    """Host seconds of an action of a two-stage pipeline beyond its blocks; `otherwise` where not measured.

    Each stage has half of the blocks and one end of the model, which is driven like half a block.
    """
    if not select(rows, "host", "block.pipelined"):
        return otherwise
    few = min(select(rows, "host", "block.pipelined"), key=lambda row: row.size)
    blocks = 2 * _pass_seconds(rows, "block") * (few.size / 2 + 0.5)
    return max(0.0, few.seconds - blocks) / 2


def update_host_seconds(rows: Sequence[Measurement]) -> float:
    """Seconds of the update of a model with next to no parameters."""
    return select(rows, "host", "update")[0].seconds


def _pass_seconds(rows: Sequence[Measurement], name: str) -> float:
    """Seconds of one more block in a pass, the mean of forward and backward.

    The slope over models of more and more blocks by repeated medians (Siegel 1982): of each model's slopes towards the
    others, then of those, so that nearly half of the models may have been disturbed.
    """
    found = select(rows, "host", name)
    slopes = (
        median((one.seconds - other.seconds) / (one.size - other.size) for other in found if other is not one)
        for one in found
    )
    return median(slopes) / 2


def host_constants(rows: Sequence[Measurement], *, ranks: int, is_cpu: bool) -> dict[str, Any]:
    """Constants of a profile for offload, by name; empty where nothing of the host was measured.

    Args:
        rows: merged over the ranks.
        ranks: how many were measured at once.
        is_cpu: whether the devices are their own hosts, and update with one thread each.
    """
    measured = select(rows, "offload", "update")
    if not measured:
        return {}
    updates = tuple(
        HostUpdate(threads=row.shape[0], seconds=rounded(row.seconds / row.size)) for row in measured
    )
    chosen = updates[0] if is_cpu else updates[-1]
    return {
        "host_update_seconds": chosen.seconds if is_cpu else rounded(chosen.seconds / ranks),
        "host_call_seconds": rounded(_call(rows)),
        "host_overlap": rounded(_overlap(rows)),
        "host_rates": HostRates(updates=updates, copies=_copies(rows)),
    }


def _call(rows: Sequence[Measurement]) -> float:
    measured = select(rows, "offload", "call")
    return measured[0].seconds if measured else 0.0


def _overlap(rows: Sequence[Measurement]) -> float:
    passes, updates, together = (
        select(rows, "offload", name)[0].seconds for name in ("passes", "updates", "together")
    )
    return min(1.0, max(0.0, (passes + updates - together) / passes))


def _copies(rows: Sequence[Measurement]) -> tuple[HostCopies, ...]:
    """Copy rates by number of ranks that copy at once."""
    rates: dict[int, dict[str, str]] = {}
    for way in ("down", "up", "both"):
        for row in select(rows, "offload", way):
            rates.setdefault(row.shape[0], {})[way] = f"{rounded(row.size / row.seconds)!r} B/s"
    return tuple(HostCopies.model_validate({"ranks": ranks, **rates[ranks]}) for ranks in sorted(rates))


LOOKUP, SUMS, CHANGE, SERVED = "lookup", "sums", "change.", "served."
_FP32 = 4.0
_STATES = {"sgd": 0.0, "rowwise-adagrad": 0.0, "adagrad": 1.0, "adam": 2.0}
"""States of an element beside its weight."""
_ROW_STATES = {"rowwise-adagrad": 4.0}
"""Bytes of states of a row."""


def moved_bytes(name: str, shape: tuple[int, ...]) -> float:
    """Bytes that the price's formula has for a measurement: (row bytes, ids, bags, rows met), in fp32."""
    row_bytes, ids, bags, distinct = map(float, shape)
    if name == LOOKUP:
        return float(lookup_bytes(ids, row_bytes, bags * row_bytes))
    if name == SUMS:
        return float(sum_bytes(ids, row_bytes, distinct, row_bytes / _FP32))
    kind = name.removeprefix(CHANGE)
    return float(change_bytes(distinct, row_bytes * (1 + _STATES[kind]) + _ROW_STATES.get(kind, 0.0)))


def table_rates(rows: Sequence[Measurement], bandwidth: float, source: str) -> TableRates | None:
    """The rates of merged measurements, as shares of `bandwidth`; None where no table was measured."""
    found = select(rows, "table")
    if not found:
        return None

    def points(name: str) -> tuple[TablePoint, ...]:
        return tuple(
            TablePoint(
                row_bytes=one.shape[0],
                pooling=rounded(one.shape[1] / one.shape[2]),
                efficiency=rounded(one.size / one.seconds / bandwidth),
            )
            for one in select(found, "table", name)
        )

    kinds = dict.fromkeys(one.name.removeprefix(CHANGE) for one in found if one.name.startswith(CHANGE))
    return TableRates(
        lookup=points(LOOKUP),
        sums=points(SUMS),
        changes={kind: points(CHANGE + kind) for kind in kinds},
        served={policy: through for policy in POLICIES if (through := _served(found, policy))},
        source=source,
    )


def _served(found: Sequence[Measurement], policy: str) -> tuple[ServedPoint, ...]:
    """Lookups through a cache: seconds of a few ids, and what each of many takes beyond them."""
    few, hit, miss = (select(found, "table", f"{SERVED}{policy}.{name}") for name in ("few", "hit", "miss"))
    return tuple(
        ServedPoint(
            row_bytes=launch.shape[0],
            launch_seconds=rounded(launch.seconds),
            hit_seconds=rounded(max(0.0, there.seconds - launch.seconds) / there.shape[1]),
            miss_seconds=rounded(max(0.0, brought.seconds - launch.seconds) / brought.shape[1]),
        )
        for launch, there, brought in zip(few, hit, miss, strict=True)
    )
