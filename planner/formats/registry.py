"""Trainers whose files plans are written as, and read from: one exporter a line."""

from __future__ import annotations

from cost_models.errors import UnknownNameError
from planner.formats import own_executor, torchrec
from planner.formats.deepspeed import writing as deepspeed
from planner.formats.exporter import Exporter
from planner.formats.megatron import script as megatron
from planner.formats.nemo import recipe as nemo
from planner.formats.torchtitan import writing as torchtitan

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
