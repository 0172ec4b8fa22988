"""Several clusters to choose from: what training costs on each number of their GPUs, and how many days it takes."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from cost_models.units import counted
from meshwright.plots import style
from meshwright.plots.style import Frame
from meshwright.render.words import money

_COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY, style.BROWN)
_WIDE = 8.0
"""Ratio of the ends of an axis from which it is drawn in even ratios."""


def cost_and_days(frame: Frame, subject: str) -> Figure:
    """Days across, cost upwards, a line and a colour for each cluster, a ring round what nothing beats in both.

    Args:
        frame: a row per answer with `cluster`, `gpus`, `days`, `cost` and whether it is of the `frontier`.
        subject: what is trained.
    """
    with style.drawing():
        figure = style.new_figure(9.0, 5.6)
        axes = figure.add_subplot()
        names = sorted(set(frame["cluster"]))
        for place, name in enumerate(names):
            own = frame[frame["cluster"] == name].sort_values("gpus")
            _draw_cluster(axes, own, name, _COLOURS[place % len(_COLOURS)], above=place % 2 == 0)
        best = frame[frame["frontier"]].sort_values("days")
        axes.plot(best["days"], best["cost"], color=style.GREY, linewidth=1.0, linestyle=":", zorder=1)
        axes.scatter(
            best["days"],
            best["cost"],
            s=90,
            facecolors="none",
            edgecolors=style.INK,
            zorder=4,
            label="frontier",
        )
        axes.set_xlabel("days of the training run")
        axes.set_ylabel("cost of the training run")
        if frame["days"].max() > _WIDE * frame["days"].min():
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter(lambda value, _position: f"{value:,g}")
            axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _position: money(value))
        axes.margins(x=0.1, y=0.12)
        axes.legend(loc="best")
        style.quiet_axis(axes, grid="both")
        style.put_title(figure, _finding(best), subject)
    return figure


def _draw_cluster(axes: Axes, own: Frame, name: str, colour: str, *, above: bool) -> None:
    """One line, its points named by their GPUs: those of neighbours in the legend above and below."""
    axes.plot(own["days"], own["cost"], color=colour, linewidth=1.2, marker="o", markersize=5, label=name)
    for _, row in own.iterrows():
        axes.annotate(
            f"{int(row['gpus']):,}",
            (row["days"], row["cost"]),
            xytext=(4, 6) if above else (-4, -6),
            ha="left" if above else "right",
            va="bottom" if above else "top",
            textcoords="offset points",
            size=7,
            color=colour,
        )


def _finding(best: Frame) -> str:
    """The ends of the frontier."""
    soonest, cheapest = best.iloc[0], best.iloc[-1]

    def words(row: Frame) -> str:
        where = f"{counted(int(row['gpus']), 'GPU')} of {row['cluster']}"
        return f"{money(row['cost'])} in {row['days']:.1f} days on {where}"

    if len(best) == 1:
        return f"One choice is cheapest and soonest: {words(cheapest)}"
    return f"From {words(cheapest)} to {words(soonest)}"
