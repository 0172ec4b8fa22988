"""What saves and failures took of a run's time, beside what a forecast makes of the same saves, failures, restarts."""

from __future__ import annotations

import math
from typing import Any

from cost_models.errors import InputError
from cost_models.reliability.segments import Segment
from cost_models.specs.operations import OperationsSpec
from cost_models.units import counted
from executor.measure.operations import PARTS, OperationsReport

_LONGEST_BETWEEN = 3.6e12
"""Seconds between failures of operations in which none was seen: the longest that a file may say."""


def operations_rows(seen: OperationsReport) -> list[dict[str, Any]]:
    """A row for each part of the time: `part`, `seconds`, its measured `share`, and that of the forecast."""
    forecast = forecast_shares(seen)
    return [
        {
            "part": part,
            "seconds": seen.parts[part],
            "share": seen.parts[part] / seen.wall_seconds if seen.wall_seconds else 0.0,
            "forecast_share": forecast[part],
        }
        for part in PARTS
    ]


def segment_of(seen: OperationsReport) -> Segment:
    """The segment of a forecast with the run's own step, mean save, mean restart and time between failures."""
    save, restart, failures = seen.mean_save, seen.mean_restart, seen.failures
    return Segment(
        work=seen.every * seen.step_seconds,
        saving=save.blocked,
        restart=restart.detection + restart.starting + restart.loading,
        between=seen.wall_seconds / failures if failures else math.inf,
        lag=save.flush,
    )


def forecast_shares(seen: OperationsReport) -> dict[str, float]:
    """Part → its share of the time by the formula of a segment."""
    one = segment_of(seen)
    if math.isinf(one.between):
        return {"training": one.work / one.length, "saving": one.saving / one.length} | dict.fromkeys(
            ("lost_work", "restarting"), 0.0
        )
    return {
        "training": one.goodput,
        "saving": one.saving / one.expected,
        "lost_work": one.lost / one.expected,
        "restarting": one.restarting / one.expected,
    }


def operations_spec(seen: OperationsReport, gpus: int, name: str) -> OperationsSpec:
    """Operations as a run has seen them: what `forecast --operations run-report.json` counts.

    Raises:
        InputError: it saved nothing.
    """
    if not (seen.mean_save.size and seen.mean_save.flush):
        raise InputError(
            f"`{name}` tells of no checkpoint that was written", hint="--checkpoint saves, --every how often"
        )
    save, restart, one = seen.mean_save, seen.mean_restart, segment_of(seen)
    return OperationsSpec.model_validate(
        {
            "name": "measured",
            "mtbf": _seconds(min(one.between * gpus, _LONGEST_BETWEEN)),
            "detection": _seconds(restart.detection),
            "restart": _seconds(restart.starting),
            "storage_write": _rate(save.size / save.flush),
            "storage_read": _rate(save.size / (restart.loading or save.flush)),
            "pause": save.blocked,  # with the copy to host memory in it
            "host_copy": _rate(_FASTEST),
            "source": f"{name}: {counted(len(seen.saves), 'save')}, {counted(seen.failures, 'failure')}",
        }
    )


_SLOWEST, _FASTEST = 1e3, 1e17
"""Rates that operations may have, bytes/s."""
_LEAST_SECONDS = 1e-6


def _seconds(value: float) -> str:
    return f"{max(value, _LEAST_SECONDS):.9f} s"


def _rate(value: float) -> str:
    return f"{min(max(value, _SLOWEST), _FASTEST):.0f} B/s"
