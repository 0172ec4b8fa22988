"""Trainers whose files plans are written as, and read from: one exporter a line."""

from __future__ import annotations

from cost_models.errors import UnknownNameError
from planner.exporters import torchrec
from planner.exporters.exporter import Exporter

EXPORTERS: dict[str, Exporter] = {
    "torchrec": torchrec.EXPORTER,
}


def exporter_named(name: str) -> Exporter:
    """An exporter. Raises UnknownNameError."""
    if name not in EXPORTERS:
        raise UnknownNameError("trainer to export to", name, tuple(EXPORTERS))
    return EXPORTERS[name]
