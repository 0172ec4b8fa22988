"""Trainers whose files plans are written as, and read from: one exporter a line."""

from __future__ import annotations

from cost_models.errors import UnknownNameError
from planner.exporters import deepspeed, megatron, nemo, own_executor, torchrec, torchtitan
from planner.exporters.exporter import Exporter

EXPORTERS: dict[str, Exporter] = {
    "megatron": megatron.TARGET.exporter,
    "torchtitan": torchtitan.TARGET.exporter,
    "deepspeed": deepspeed.TARGET.exporter,
    "nemo": nemo.TARGET.exporter,
    "torchrun": own_executor.TORCHRUN,
    "slurm": own_executor.SLURM,
    "torchrec": torchrec.EXPORTER,
}


def exporter_named(name: str) -> Exporter:
    """An exporter. Raises UnknownNameError."""
    if name not in EXPORTERS:
        known = tuple(EXPORTERS)
        raise UnknownNameError("trainer to export to", name, known, hint=f"there are {', '.join(known)}")
    return EXPORTERS[name]
