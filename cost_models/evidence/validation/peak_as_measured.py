"""The predicted peak as a row measured it: on which rank, and as the allocator or the driver counts."""

from __future__ import annotations

import re

from cost_models.axes.columns import LayoutColumns
from cost_models.estimate import Estimate
from cost_models.evidence.rows.cases import Case
from cost_models.memory.device import in_use, reserved

_LAST_RANK = re.compile(r"last (pipeline )?(rank|stage)|rank -1")
_FIRST_RANK = re.compile(r"first (pipeline )?(rank|stage)|rank 0")
_DRIVER = re.compile(r"nvidia-smi|nvml|driver|pynvml|rocm-smi|gpu memory used|device memory")
_RESERVED = re.compile(r"reserved|cached")


def peak_bytes(case: Case, priced: Estimate) -> float:
    """Bytes on the rank the row names, else on the fullest; allocated, reserved or in use as `memory_kind` says."""
    words = case.row.text("memory_kind").lower()
    if _LAST_RANK.search(words):
        allocated = priced.rank_memory[-1].total
    elif _FIRST_RANK.search(words):
        allocated = priced.rank_memory[0].total
    else:
        allocated = priced.peak_bytes
    if _DRIVER.search(words):
        return float(in_use(case.question, LayoutColumns.of([priced.layout]), allocated)[0])
    if _RESERVED.search(words) and "allocated" not in words:
        return float(reserved(case.question, allocated))
    return allocated
