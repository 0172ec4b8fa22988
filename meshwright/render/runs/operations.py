"""Saves and failures of a run as text: where its time went, what a save and a restart took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from cost_models.units import counted, format_bytes, format_seconds
from executor.measure.operations import OperationsReport
from meshwright.render.tables import Table, table
from meshwright.render.words import percent, wrapped

PART_WORDS = {
    "training": "training",
    "stragglers": "slow hosts",
    "saving": "saving",
    "lost_work": "work done again",
    "restarting": "restarting",
    "waiting_for_spares": "waiting for spares",
    "maintenance": "maintenance",
}
"""Parts of a job's time as people call them."""


def operations_text(seen: OperationsReport, rows: Sequence[Mapping[str, Any]]) -> Iterator[str | Table]:
    """Where the time of a run went; `rows` are of `meshwright.records.operations`."""
    yield ""
    cells = [
        (
            PART_WORDS[row["part"]],
            percent(row["forecast_share"]),
            percent(row["share"]),
            format_seconds(row["seconds"]),
        )
        for row in rows
    ]
    yield table(("where time went", "forecast", "measured", ""), cells, words=("where time went",))
    yield wrapped(_saves(seen))
    if seen.restarts:
        yield wrapped(_restarts(seen))


def _saves(seen: OperationsReport) -> str:
    save = seen.mean_save
    words = (
        f"{counted(len(seen.saves), 'save')}, every {counted(seen.every, 'step')}: training waits"
        f" {format_seconds(save.blocked)}"
    )
    return words + (
        f", readable {format_seconds(save.flush)} later ({format_bytes(save.size)})" if save.size else ""
    )


def _restarts(seen: OperationsReport) -> str:
    mean, lost = seen.mean_restart, fmean(one.steps_lost for one in seen.restarts)
    return (
        f"{counted(seen.failures, 'failure')}: {format_seconds(mean.detection)} until ranks were started again,"
        f" {format_seconds(mean.starting)} to start, {format_seconds(mean.loading)} to load, {lost:.1f} steps lost"
        " (means); the forecast is of these means, failures at random"
    )
