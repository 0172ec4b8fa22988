"""The predicted peak as a row measured it: on which rank, and as the allocator or the driver counts."""

from __future__ import annotations

import re

from cost_models.axes.columns import LayoutColumns
from cost_models.estimate import Estimate
from cost_models.measured.runs.cases import Case
from cost_models.memory.device import in_use
from cost_models.pipeline.memory_terms import HOLES

_LAST_RANK = re.compile(r"last (pipeline )?(rank|stage)|rank -1")
_FIRST_RANK = re.compile(r"first (pipeline )?(rank|stage)|rank 0")
_DRIVER = re.compile(r"nvidia-smi|nvml|driver|pynvml|rocm-smi|gpu memory used|device memory")
_RESERVED = re.compile(r"reserved|cached")


def peak_bytes(case: Case, priced: Estimate) -> float:
    """Bytes on the rank the row names, else on the fullest; allocated, reserved or in use as `memory_kind` says."""
    words = case.row.text("memory_kind").lower()
    rank = -1 if _LAST_RANK.search(words) else 0 if _FIRST_RANK.search(words) else priced.fullest_rank
    memory = priced.rank_memory[rank]
    if _DRIVER.search(words):
        return float(in_use(case.question, LayoutColumns.of([priced.layout]), memory.total)[0])
    if _RESERVED.search(words) and "allocated" not in words:
        return memory.total
    return memory.total - memory[HOLES]
