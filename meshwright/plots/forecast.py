"""The forecast of a job: its end against how often it saves, and its goodput against the GPUs."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.reliability.forecast import Forecast
from cost_models.units import format_days, grouped
from meshwright.plots.parts import style
from meshwright.plots.parts.style import Frame
from meshwright.render.words import percent

_DAY = 86400.0


def forecast(frame: Frame, found: Forecast, subject: str) -> Figure:
    """Days until the end over the minutes between checkpoints, and goodput over GPUs.

    Args:
        frame: as `forecast_frame` makes it.
        found: the forecast itself.
        subject: what was forecast.
    """
    with style.drawing():
        figure = style.new_figure(10.0, 4.6)
        end, sizes = figure.subplots(1, 2)
        _ends(end, frame[frame["what"] == "interval"])
        _goodputs(sizes, frame[frame["what"] == "gpus"])
        finding = (
            f"Saving every {grouped(found.every)} steps ends the job after {format_days(found.seconds)}, goodput"
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
