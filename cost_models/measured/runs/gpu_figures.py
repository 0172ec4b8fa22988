"""Figures that a table prints inside its GPU cell: memory, power limit and memory bandwidth of that very board.

A cell as `H100 SXM 96GB HBM2e (500W, 2.4TB/s)` names a board that the catalogue's H100 is not.
"""

from __future__ import annotations

import re
from typing import Any

from cost_models.measured.runs.notes import Notes
from cost_models.specs.cluster import GpuSpec
from cost_models.units import GIB

_MEMORY = re.compile(r"(?<![\d.])(\d{2,3})\s*gi?b\b(?!\s*/\s*s)", re.IGNORECASE)
_WATTS = re.compile(r"(?<![\d.])(\d{2,4})\s*w(?:atts?)?\b", re.IGNORECASE)
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*([tg])b\s*/\s*s", re.IGNORECASE)
_REPORTED = 79.1 / 80
"""GiB that the runtime reports for each GB of an H100's label."""
_SAME_LABEL = 0.07
"""Difference between label and catalogue within which a cell names the catalogue's own board."""
_BOARDS = (0.5, 1.6)
"""Least and most memory of a board relative to the catalogue's of its name; beyond, a cell counts several GPUs."""


def as_printed(gpu: GpuSpec, words: str, notes: Notes) -> GpuSpec:
    """The catalogue's GPU with what the cell's words say of memory, power limit and bandwidth."""
    found: dict[str, Any] = {}
    if label := _MEMORY.search(words):
        memory = int(label[1]) * _REPORTED * GIB
        ratio = memory / gpu.memory
        if abs(ratio - 1) > _SAME_LABEL and _BOARDS[0] < ratio < _BOARDS[1]:
            found["memory"] = memory
    if limit := _WATTS.search(words):
        found["tdp_watts"] = int(limit[1])
    if rate := _BANDWIDTH.search(words):
        found["memory_bandwidth"] = float(rate[1]) * (1e12 if rate[2] in "tT" else 1e9)
    changed = {name: value for name, value in found.items() if value != getattr(gpu, name)}
    if not changed:
        return gpu
    notes.assume(f"{', '.join(name.replace('_', ' ') for name in changed)} as the GPU's cell says")
    return gpu.model_copy(update=changed)
