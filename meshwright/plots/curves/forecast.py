"""The forecast of a job: its end against how often it saves, and its goodput against the GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.errors import InfeasibleError
from cost_models.reliability.forecast import Forecast, least_steps
from cost_models.reliability.forecast import forecast as forecast_of
from cost_models.units import format_days, grouped
from meshwright.plots.parts import style
from meshwright.plots.parts.style import Frame
from meshwright.records import frame_of
from meshwright.render.words import percent

if TYPE_CHECKING:
    import pandas as pd

_DAY = 86400.0


def forecast(frame: Frame, found: Forecast, subject: str) -> Figure:
    """Days until the end over the minutes between checkpoints, and goodput over GPUs.

    Args:
        frame: as `forecast_frame` makes it.
        found: the forecast itself.
        subject: what was forecast.
    """
    with style.sheet(10.0, 4.6) as figure:
        end, sizes = figure.subplots(1, 2)
        _ends(end, frame[frame["what"] == "interval"])
        _goodputs(sizes, frame[frame["what"] == "gpus"])
        finding = (
            f"Saving every {grouped(found.interval)} steps ends the job after {format_days(found.seconds)}, goodput"
            f" {percent(found.goodput)}"
        )
        style.put_title(figure, finding, subject)
    return figure


def _ends(axes: Axes, line: Frame) -> None:
    x = line["work_seconds"] / 60
    axes.fill_between(
        x,
        line["early_seconds"] / _DAY,
        line["late_seconds"] / _DAY,
        color=style.BLUE,
        alpha=0.15,
        linewidth=0,
    )
    axes.plot(x, line["seconds"] / _DAY, color=style.BLUE, linewidth=1.6)
    own = line[line["chosen"]]
    axes.scatter(
        own["work_seconds"] / 60, own["seconds"] / _DAY, s=150, marker="*", color=style.INK, zorder=4
    )
    axes.set_xscale("log")
    axes.set_xlabel("minutes of training between checkpoints")
    axes.set_ylabel("days until the end; band: 8 in 10")
    _plain(axes)
    style.quiet_axis(axes, grid="both")


def _goodputs(axes: Axes, line: Frame) -> None:
    axes.plot(line["gpus"], 100 * line["goodput"], color=style.GREEN, linewidth=1.6, marker="o", markersize=4)
    own = line[line["chosen"]]
    axes.scatter(own["gpus"], 100 * own["goodput"], s=150, marker="*", color=style.INK, zorder=4)
    axes.set_xscale("log", base=2)
    axes.set_xticks(line["gpus"], [grouped(int(gpus)) for gpus in line["gpus"]], rotation=40, ha="right")
    axes.minorticks_off()
    axes.set_xlabel("GPUs, each with its best interval; star: the plan")
    axes.set_ylabel("goodput (%)")
    axes.set_ylim(0, 102)
    style.quiet_axis(axes, grid="y")


def _plain(axes: Axes) -> None:
    """Numbers, not powers of ten."""
    from matplotlib.ticker import FuncFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


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
    rows = [_row("interval", one, chosen=one.interval == found.interval) for one in _intervals(found)]
    rows += [_row("gpus", one, chosen=one.job.gpus == found.job.gpus) for one in _sizes(found)]
    return frame_of(rows)


def _intervals(found: Forecast) -> Iterator[Forecast]:
    least = max(found.interval / _SPREAD, least_steps(replace(found, interval=1).segment))
    most = min(found.interval * _SPREAD, found.job.steps)
    steps = np.round(np.geomspace(least, max(least, most), _INTERVALS)).astype(int)
    for every in sorted({*steps.tolist(), found.interval}):
        yield replace(found, interval=every)


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
            yield forecast_of(other, found.operations)
        except InfeasibleError:
            return


def _row(what: str, one: Forecast, *, chosen: bool) -> dict[str, Any]:
    reach = _NINTH_TENTH * one.deviation
    return {
        "what": what,
        "gpus": one.job.gpus,
        "every": one.interval,
        "work_seconds": one.segment.work,
        "seconds": one.seconds,
        "early_seconds": max(one.job.seconds, one.seconds - reach),
        "late_seconds": one.seconds + reach,
        "goodput": one.goodput,
        "chosen": chosen,
    }
