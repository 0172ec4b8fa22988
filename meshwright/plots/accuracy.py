"""How good predictions are: predicted against measured, and the error of every quantity."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from meshwright.plots import style
from meshwright.plots.style import Frame
from meshwright.render.words import count, part_label, percent

_BAND = 0.10
"""Half-width of the drawn band: the error people call good."""
_MAX_QUANTITIES = 14
_MAX_LABELS = 12
_MAX_ERROR = 100.0
"""Percent; larger errors are drawn at the edge."""
_TICK_STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)


def accuracy(frame: Frame, subject: str) -> Figure:
    """Step times on a diagonal with a ±10 % band; beside it the relative error of every quantity.

    Args:
        frame: a row per run and quantity with `label`, `quantity`, `predicted`, `measured` (base units); step time is
            the quantity `step_seconds`.
        subject: where the runs come from.
    """
    compared = frame[(frame["measured"] > 0) & (frame["predicted"] > 0)]
    steps = compared[compared["quantity"] == "step_seconds"]
    others = compared["quantity"].nunique() > 1
    with style.drawing():
        figure = style.new_figure(10.0 if others else 6.6, 5.4)
        charts = list(figure.subplots(1, 2 if others else 1, squeeze=False)[0])
        _diagonal(charts[0], steps)
        if others:
            _errors(charts[1], compared)
        style.put_title(figure, _finding(steps), subject)
    return figure


def _diagonal(axes: Axes, steps: Frame) -> None:
    values = pd.concat([steps["predicted"], steps["measured"]])
    low, high = 0.7 * float(values.min()), 1.45 * float(values.max())
    ends = [low, high]
    axes.fill_between(
        ends,
        [(1 - _BAND) * value for value in ends],
        [(1 + _BAND) * value for value in ends],
        color=style.SKY,
        alpha=0.25,
        linewidth=0,
    )
    axes.plot(ends, ends, color=style.GREY, linewidth=1.2)
    axes.scatter(steps["measured"], steps["predicted"], s=34, color=style.BLUE, edgecolors="white", zorder=3)
    if len(steps) <= _MAX_LABELS:
        for _, run in steps.iterrows():
            above = run["predicted"] >= run["measured"]
            axes.annotate(
                style.short_layout(str(run["label"]), 24),
                (run["measured"], run["predicted"]),
                xytext=(-7, 4) if above else (7, -4),
                textcoords="offset points",
                ha="right" if above else "left",
                va="bottom" if above else "top",
                size=7.5,
            )
    axes.text(
        0.98, 0.02, f"band: ±{_BAND:.0%}", transform=axes.transAxes, ha="right", color=style.BLUE, size=8
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=_TICK_STEPS if high < 30 * low else (1.0, 3.0)))
        axis.set_major_formatter(lambda value, _position: f"{value:g}")
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("measured step time (s)")
    axes.set_ylabel("predicted step time (s)")
    style.quiet_axis(axes, grid="both")


def _errors(axes: Axes, frame: Frame) -> None:
    """A dot per run and a bar at the median for each quantity."""
    error = (100 * (frame["predicted"] / frame["measured"] - 1)).clip(-_MAX_ERROR, _MAX_ERROR)
    quantities = list(dict.fromkeys(frame["quantity"]))[:_MAX_QUANTITIES]
    axes.axvspan(-100 * _BAND, 100 * _BAND, color=style.SKY, alpha=0.25, linewidth=0)
    axes.axvline(0, color=style.GREY, linewidth=1.2)
    for row, quantity in enumerate(quantities):
        some = error[frame["quantity"] == quantity]
        axes.scatter(some, [row] * len(some), s=26, color=style.BLUE, alpha=0.7, linewidths=0)
        axes.scatter([some.median()], [row], s=220, marker="|", color=style.VERMILION, linewidths=2)
        axes.annotate(
            f"{some.median():+.1f} %",
            (some.median(), row),
            xytext=(0, 10),
            textcoords="offset points",
            ha="center",
            size=7.5,
            color=style.VERMILION,
        )
    axes.set_yticks(range(len(quantities)), [part_label(name) for name in quantities])
    axes.set_ylim(len(quantities) - 0.4, -0.8)
    reach = 1.15 * max(float(error.abs().max()), 150 * _BAND)
    axes.set_xlim(-reach, reach)
    axes.set_xlabel("error of the prediction (%); bar: median")
    style.quiet_axis(axes, grid="x")


def _finding(steps: Frame) -> str:
    if steps.empty:
        return "No step time was compared"
    error = (steps["predicted"] / steps["measured"] - 1).abs()
    within = int((error <= _BAND).sum())
    return (
        f"Step time is predicted with a median error of {percent(float(error.median()))}; "
        f"{within} of {count(len(error), 'run')} within {_BAND:.0%}"
    )
