"""The chart of predicted against measured step times: a diagonal, the band people call good, and its finding."""

from __future__ import annotations

from matplotlib.axes import Axes

from cost_models.units import counted
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.style import Frame
from meshwright.render.words import percent

BAND = 0.10
"""Half-width of the drawn band: the error people call good."""


def draw_diagonal(axes: Axes, measured: Frame, predicted: Frame) -> None:
    """Both axes logarithmic and alike, wide enough for these step times (s), with the band behind them."""
    low = 0.7 * min(float(measured.min()), float(predicted.min()))
    high = 1.45 * max(float(measured.max()), float(predicted.max()))
    ends = [low, high]
    lower, upper = ([(1 + side * BAND) * value for value in ends] for side in (-1, 1))
    axes.fill_between(ends, lower, upper, color=style.FAINT, linewidth=0)
    axes.plot(ends, ends, color=style.GREY, linewidth=1.0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        ticks.logarithmic(axis, low, high)
    axes.set_xlabel("measured step time (s)")
    axes.set_ylabel("predicted step time (s)")
    style.quiet_axis(axes, grid="both")
    words = f"band: ±{100 * BAND:.0f} %"
    axes.text(0.98, 0.02, words, transform=axes.transAxes, ha="right", color=style.GREY, size=8)


def draw_band(axes: Axes) -> None:
    """The same band behind errors in per cent along x."""
    axes.axvspan(-100 * BAND, 100 * BAND, color=style.FAINT, linewidth=0)
    axes.axvline(0, color=style.GREY, linewidth=1.0)


def finding(measured: Frame, predicted: Frame) -> str:
    """The median error and how many runs are inside the band."""
    if measured.empty:
        return "No step time was compared"
    error = (predicted / measured - 1).abs()
    within = int((error <= BAND).sum())
    return (
        f"Step time: median error {percent(float(error.median()))}; "
        f"{within} of {counted(len(error), 'run')} within {100 * BAND:.0f} %"
    )
