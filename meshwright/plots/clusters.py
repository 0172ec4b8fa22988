"""Several clusters to choose from: what training costs on each number of their GPUs, and how many days it takes."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from cost_models.documents import printable
from cost_models.units import counted
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.labels import Label, put_labels
from meshwright.plots.parts.style import Frame
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
    with style.sheet(9.0, 5.6) as figure:
        axes = figure.add_subplot()
        lines, names, numbers = [], [], []
        for place, cluster in enumerate(sorted(set(frame["cluster"]))):
            own = frame[frame["cluster"] == cluster].sort_values("gpus", ascending=False)
            colour = _COLOURS[place % len(_COLOURS)]
            lines += axes.plot(
                own["days"], own["cost"], color=colour, linewidth=1.2, marker="o", markersize=5
            )
            labels = [
                Label(text=f"{int(row['gpus']):,}", at=(row["days"], row["cost"]), colour=colour, size=7)
                for _, row in own.iterrows()
            ]
            words = f"{printable(str(cluster), 40)}, {labels[0].text} GPUs"
            names.append(replace(labels[0], text=words, weight="bold", size=8, needed=True))
            numbers += labels[1:]
        best = frame[frame["frontier"]].sort_values("days")
        axes.scatter(best["days"], best["cost"], s=90, facecolors="none", edgecolors=style.INK, zorder=4)
        axes.set_xlabel("days of the training run")
        axes.set_ylabel("cost of the training run")
        soonest, latest = float(frame["days"].min()), float(frame["days"].max())
        if latest > _WIDE * soonest:
            axes.set_xscale("log")
            ticks.logarithmic(axes.xaxis, soonest, latest)
        else:
            ticks.linear(axes.xaxis)
        axes.yaxis.set_major_formatter(lambda value, _position: money(value))
        axes.margins(x=0.1, y=0.14)
        style.quiet_axis(axes, grid="both")
        style.put_title(figure, _finding(best), f"{subject}; ringed: nothing is both sooner and cheaper")
        marks = list(zip(frame["days"], frame["cost"], strict=True))
        put_labels(axes, names + numbers, lines=lines, marks=marks)
    return figure


def _finding(best: Frame) -> str:
    """The ends of the frontier."""
    soonest, cheapest = best.iloc[0], best.iloc[-1]

    def words(row: Frame) -> str:
        where = f"{counted(int(row['gpus']), 'GPU')} of {row['cluster']}"
        return f"{money(row['cost'])} in {row['days']:,.1f} days on {where}"

    if len(best) == 1:
        return f"One choice is cheapest and soonest: {words(cheapest)}"
    return f"{words(cheapest)}, or {words(soonest)}"
