"""Measurements → the curves of a profile: element-wise operators, attention, collectives."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import get_args

from cost_models.measured.calibration.measurements import Measurement, select
from cost_models.specs.hardware import (
    AttentionCurve,
    CollectiveCurve,
    CurvePoint,
    ElementwiseOperator,
    OperatorCurve,
)

_DIGITS = 4
"""Significant digits of a time: far finer than its noise, and short to read."""


def rounded(value: float) -> float:
    """A measured value with the significant digits it is worth."""
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


def collective_curves(rows: Sequence[Measurement]) -> tuple[CollectiveCurve, ...]:
    """A curve for each collective and group size."""
    groups: dict[tuple[str, int], list[Measurement]] = defaultdict(list)
    for row in select(rows, "collective"):
        groups[row.name, row.shape[0]].append(row)
    return tuple(
        CollectiveCurve.model_validate(
            {"operation": operation, "group_size": group_size, "points": _points(members)}
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
