"""How good predictions are: predicted against measured, and the error of every quantity."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meshwright.plots import style
from meshwright.plots.diagonal import BAND, MAX_ERROR, draw_band, draw_diagonal, finding
from meshwright.plots.style import Frame
from meshwright.render.words import part_label

_MAX_QUANTITIES = 14
_MAX_LABELS = 12


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
        style.put_title(figure, finding(steps["measured"], steps["predicted"]), subject)
    return figure


def _diagonal(axes: Axes, steps: Frame) -> None:
    draw_diagonal(axes, steps["measured"], steps["predicted"])
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


def _errors(axes: Axes, frame: Frame) -> None:
    """A dot per run and a bar at the median for each quantity."""
    error = (100 * (frame["predicted"] / frame["measured"] - 1)).clip(-MAX_ERROR, MAX_ERROR)
    quantities = list(dict.fromkeys(frame["quantity"]))[:_MAX_QUANTITIES]
    draw_band(axes)
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
    reach = 1.15 * max(float(error.abs().max()), 150 * BAND)
    axes.set_xlim(-reach, reach)
    axes.set_xlabel("error of the prediction (%); bar: median")
    style.quiet_axis(axes, grid="x")
