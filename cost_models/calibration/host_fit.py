"""Host time of a block: what a tiny block takes beyond its operators' own start-ups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.calibration.measurements import Measurement, select
from cost_models.curves import attention_head_seconds, curve_seconds
from cost_models.specs.hardware import ElementwiseOperator, HardwareProfile

_BLOCK_OPERATORS: tuple[tuple[ElementwiseOperator, float, float], ...] = (
    ("layernorm", 1.0, 2.0),
    ("gelu", 4.0, 1.0),
    ("add", 1.0, 3.0),
)
"""Of the measured block: operator, its width in hidden sizes, how often."""
_BLOCK_PRODUCTS = 12.0
"""Products of the block in units of tokens × hidden², forward."""


def host_layer_seconds(rows: Sequence[Measurement], profile: HardwareProfile, peak: float) -> float:
    """Mean over forward and backward of the tiny block's seconds beyond its operators' and products'."""
    forward, backward = _passes(rows, "block")
    tokens, hidden, heads = forward.shape
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
    return max(0.0, (forward.seconds + backward.seconds - explained) / 2)


def split_host_seconds(rows: Sequence[Measurement], name: str, than: str, *, otherwise: float) -> float:
    """What block `name` takes longer than block `than` in one pass, mean of forward and backward.

    `block.tensor-parallel` than `block`, and `block.sequence-parallel` than that; `otherwise` where neither was
    measured, with one process.
    """
    if not select(rows, "host", f"{name}.forward"):
        return otherwise
    plain, split = _passes(rows, than), _passes(rows, name)
    return max(0.0, sum(row.seconds for row in split) - sum(row.seconds for row in plain)) / 2


def _passes(rows: Sequence[Measurement], name: str) -> tuple[Measurement, Measurement]:
    return select(rows, "host", f"{name}.forward")[0], select(rows, "host", f"{name}.backward")[0]
