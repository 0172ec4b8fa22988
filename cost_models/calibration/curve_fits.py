"""Measurements → the curves of a profile: element-wise operators, attention, collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import numpy as np

from cost_models.calibration.measurements import Measurement, select
from cost_models.specs.hardware import (
    AttentionCurve,
    CollectiveCurve,
    CurvePoint,
    ElementwiseOperator,
    OperatorCurve,
)

_DIGITS = 4
"""Significant digits kept of a time: far below its noise, and short to read."""


def rounded(value: float) -> float:
    """A measured value with as many digits as it deserves."""
    return float(f"{value:.{_DIGITS}g}")


def operator_curves(rows: Sequence[Measurement]) -> tuple[OperatorCurve, ...]:
    """A curve for each operator measured at two sizes or more."""
    curves = []
    for operator in get_args(ElementwiseOperator):
        forward = _points(select(rows, "operator", operator))
        backward = _points(select(rows, "operator", f"{operator}.backward"))
        if len(forward) > 1:
            curves.append(OperatorCurve(operator=operator, forward=forward, backward=backward))
    return tuple(curves)


def attention_curves(rows: Sequence[Measurement]) -> tuple[AttentionCurve, ...]:
    """Seconds of one head over the sequence length, for each head width."""
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
    """A curve for each operation and group size.

    A larger message is never quicker: noise that says so is smoothed away (isotonic regression of log
    seconds).
    """
    keys = sorted({(row.name, row.shape[0]) for row in select(rows, "collective")})
    return tuple(
        CollectiveCurve.model_validate(
            {
                "operation": operation,
                "group_size": group_size,
                "points": _rising(
                    _points(
                        row for row in select(rows, "collective", operation) if row.shape == (group_size,)
                    )
                ),
            }
        )
        for operation, group_size in keys
    )


def _points(rows: Iterable[Measurement]) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(size=row.size, seconds=rounded(row.seconds))
        for row in sorted(rows, key=lambda row: row.size)
    )


def _points_over_sequence(rows: Iterable[Measurement], head_dim: int) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(size=float(row.shape[0]), seconds=rounded(row.seconds))
        for row in sorted(rows, key=lambda row: row.shape)
        if row.shape[1] == head_dim
    )


def _rising(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Pool adjacent violators (Ayer et al. 1955) on the logarithm of seconds."""
    blocks: list[list[float]] = []
    for point in points:
        blocks.append([np.log(point.seconds)])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    smooth = [float(np.exp(np.mean(block))) for block in blocks for _ in block]
    return tuple(
        CurvePoint(size=point.size, seconds=rounded(seconds))
        for point, seconds in zip(points, smooth, strict=True)
    )
