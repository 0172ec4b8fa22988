"""Host time of a block and of an update, from a model so small that its operators compute next to nothing.

On a CPU the thread that drives operators also runs them, so host time is the tiny block's time beyond the curves of its
operators. A GPU runs kernels beside the host: there the time until the last launch returns is measured, none of which
is the kernels' own, so nothing is subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.curves import attention_head_seconds, curve_seconds
from cost_models.measured.calibration.measurements import Measurement, select
from cost_models.specs.hardware import ElementwiseOperator, HardwareProfile

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
    """Seconds of one more block in a pass, the mean of forward and backward: models of more blocks against fewer."""
    few, *_, many = sorted(select(rows, "host", name), key=lambda row: row.size)
    return (many.seconds - few.seconds) / (many.size - few.size) / 2
