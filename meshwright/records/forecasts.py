"""Forecasts as the data frame that their plot reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.errors import InfeasibleError
from cost_models.reliability.forecast import Forecast, forecast, least_steps, with_every

if TYPE_CHECKING:
    import pandas as pd

_INTERVALS = 81
_SPREAD = 30.0
"""Intervals are drawn from so many times less than the best to so many times more."""
_SIZES = [2.0**power for power in range(-4, 5)]
_NINTH_TENTH = 1.2816
"""Deviations from the mean that one in ten lies beyond."""


def forecast_frame(found: Forecast) -> pd.DataFrame:
    """A row per interval between checkpoints (`what` interval), and per number of GPUs (`what` gpus) at its best one:
    `gpus`, `every`, `work_seconds`, `seconds`, `early_seconds`, `late_seconds`, `goodput`, `chosen`.

    Steps on other numbers of GPUs are taken to be as many times shorter.
    """
    import pandas as pd

    rows = [_row("interval", one, chosen=one.every == found.every) for one in _intervals(found)]
    rows += [_row("gpus", one, chosen=one.job.gpus == found.job.gpus) for one in _sizes(found)]
    return pd.DataFrame(rows)


def _intervals(found: Forecast) -> Iterator[Forecast]:
    least, most = max(found.every / _SPREAD, least_steps(found)), min(found.every * _SPREAD, found.job.steps)
    steps = np.round(np.geomspace(least, max(least, most), _INTERVALS)).astype(int)
    for every in sorted({*steps.tolist(), found.every}):
        yield with_every(found, every)


def _sizes(found: Forecast) -> Iterator[Forecast]:
    for factor in _SIZES:
        job = found.job
        gpus = round(job.gpus * factor)
        if gpus < 1:
            continue
        other = replace(
            job,
            gpus=gpus,
            nodes=max(1, round(job.nodes * factor)),
            step_seconds=job.step_seconds * job.gpus / gpus,
        )
        try:
            yield forecast(other, found.operations)
        except InfeasibleError:
            return


def _row(what: str, one: Forecast, *, chosen: bool) -> dict[str, Any]:
    reach = _NINTH_TENTH * one.deviation
    return {
        "what": what,
        "gpus": one.job.gpus,
        "every": one.every,
        "work_seconds": one.segment.work,
        "seconds": one.seconds,
        "early_seconds": max(one.job.seconds, one.seconds - reach),
        "late_seconds": one.seconds + reach,
        "goodput": one.goodput,
        "chosen": chosen,
    }
