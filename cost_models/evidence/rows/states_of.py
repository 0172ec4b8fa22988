"""What a row's notes and assumptions say of the optimizer's states: Megatron Core's precision-aware optimizer.

It may keep gradients and moments in 16 bits, and of the fp32 weights only the bits that bf16 weights lack.
"""

from __future__ import annotations

import re
from typing import Any

from cost_models.evidence.rows.row import Row

_AWARE = re.compile(r"precision[- ]aware[- ]optimizer")
_MAIN_GRADIENTS = re.compile(r"(?:bf16|16-bit) main[- ]grad|main[- ]grads[- ]dtype[= ]bf16")
_MOMENTS = re.compile(r"(?:bf16|16-bit) (?:adam )?moments|exp[- ]avg[- ]dtype[= ]bf16")
_WHERE_SPLIT = re.compile(r"when tp\*pp ?> ?1")
"""A launcher that asks for 16-bit moments where the model is split."""


def state_changes(row: Row) -> dict[str, Any]:
    """Field of `TrainingSpec` → value."""
    said, changes = _said(row), {}
    if _MAIN_GRADIENTS.search(said):
        changes["gradient_dtype"] = "bf16"
    if _narrow_moments(row):
        changes["moment_dtype"] = "bf16"
    return changes


def keeps_remainders(row: Row) -> bool:
    """Whether the row ran with the precision-aware optimizer, which alone has moments in 16 bits."""
    return _AWARE.search(_said(row)) is not None or _narrow_moments(row)


def _narrow_moments(row: Row) -> bool:
    said = _said(row)
    split = (row.count("tp") or 1) * (row.count("pp") or 1) > 1
    return _MOMENTS.search(said) is not None and (split or _WHERE_SPLIT.search(said) is None)


def _said(row: Row) -> str:
    return f"{row.text('notes')}; {row.text('assumed_fields')}".lower()
