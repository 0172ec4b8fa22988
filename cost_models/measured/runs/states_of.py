"""What a row's notes and assumptions say of the optimizer's moments: 16 bits take a precision-aware optimizer.

Megatron Core's has moments in 16 bits and, of the fp32 weights, only the bits that bf16 weights lack.
"""

from __future__ import annotations

import re
from typing import Any

from cost_models.measured.runs.row import Row

_MOMENTS = re.compile(r"(?:bf16|16-bit) (?:adam )?moments|exp[- ]avg[- ]dtype[= ]bf16")
_WHERE_SPLIT = re.compile(r"when tp\*pp ?> ?1")
"""A launcher that asks for 16-bit moments where the model is split."""


def state_changes(row: Row) -> dict[str, Any]:
    """Field of `TrainingSpec` → value."""
    return {"moment_dtype": "bf16"} if has_narrow_moments(row) else {}


def has_narrow_moments(row: Row) -> bool:
    """Whether moments are in 16 bits."""
    said = f"{row.text('notes')}; {row.text('assumed_fields')}".lower()
    split = (row.count("tp") or 1) * (row.count("pp") or 1) > 1
    return _MOMENTS.search(said) is not None and (split or _WHERE_SPLIT.search(said) is None)
