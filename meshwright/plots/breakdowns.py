"""Stacked bars: where the time of a step goes, layout by layout, and the memory of a plan, rank by rank."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cost_models.units import format_seconds
from meshwright.plots import style
from meshwright.plots.style import Frame
from meshwright.plots.text import short_layout
from meshwright.render.words import part_label, percent, size_unit, time_unit

_MIN_LABEL_SHARE = 0.045
"""A bar's piece narrower than this share of the axis carries no number."""
_MAX_TICKS = 24


def time_breakdown(frame: Frame, subject: str) -> Figure:
    """One horizontal bar per layout, its parts in seconds per step.

    Args:
        frame: a row per layout in the order to draw; `layout`, and one column of seconds per part.
        subject: what was priced.
    """
    parts = [part for part in style.TIME_COLOURS if part in frame and frame[part].max() > 0]
    totals = frame[parts].sum(axis=1)
    unit, scale = time_unit(totals.max())
    with style.drawing():
        figure = style.new_figure(9.0, 1.9 + 0.62 * len(frame))
        axes = figure.add_subplot()
        _stack(axes, frame[parts] / scale, style.TIME_COLOURS, horizontal=True)
        reach = totals.max() / scale
        for row, total in enumerate(totals):
            axes.text(total / scale + 0.01 * reach, row, format_seconds(total), va="center", weight="bold")
        axes.set_yticks(range(len(frame)), [short_layout(text, 38) for text in frame["layout"]])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.12 * reach)
        axes.set_xlabel(f"time of one step ({unit})")
        style.quiet_axis(axes, grid="x")
        _legend(figure, parts, style.TIME_COLOURS)
        style.put_title(figure, _time_finding(frame, parts, totals), subject)
    return figure


def memory_by_rank(frame: Frame, limit_bytes: float, subject: str) -> Figure:
    """One bar per pipeline rank, its parts in bytes, under the limit.

    Args:
        frame: a row per pipeline rank in order; one column of bytes per part.
        limit_bytes: what one device may hold.
        subject: which plan.
    """
    parts = [part for part in style.MEMORY_COLOURS if part in frame and frame[part].max() > 0]
    totals = frame[parts].sum(axis=1)
    unit, scale = size_unit(limit_bytes)
    with style.drawing():
        figure = style.new_figure(9.0, 4.8)
        axes = figure.add_subplot()
        _stack(axes, frame[parts] / scale, style.MEMORY_COLOURS, horizontal=False)
        axes.axhline(limit_bytes / scale, color=style.INK, linewidth=1.4, linestyle=(0, (5, 3)))
        top = 1.14 * max(limit_bytes, totals.max()) / scale
        axes.text(
            1.0,
            (limit_bytes / scale) / top + 0.012,
            f"limit {limit_bytes / scale:.1f} {unit}",
            transform=axes.transAxes,
            ha="right",
            weight="bold",
        )
        ranks = len(frame)
        step = -(-ranks // _MAX_TICKS)
        axes.set_xticks(range(0, ranks, step))
        for rank in range(0, ranks, step):
            height = totals.iloc[rank] / scale
            above = axes.text(rank, height + 0.01 * top, f"{height:.1f}", ha="center")
            above.set_bbox({"facecolor": "white", "linewidth": 0, "pad": 1.0})
        axes.set_ylim(0, top)
        axes.set_xlim(-0.6, max(ranks - 0.4, 3.4))
        axes.set_xlabel("pipeline rank")
        axes.set_ylabel(f"peak memory of one device ({unit})")
        style.quiet_axis(axes, grid="y")
        _legend(figure, parts, style.MEMORY_COLOURS)
        style.put_title(figure, _memory_finding(frame, parts, totals, limit_bytes), subject)
    return figure


def _stack(axes: Axes, values: Frame, colours: dict[str, str], *, horizontal: bool) -> None:
    """Bars of all parts on one another, with the number in each piece that has room for it."""
    positions = list(range(len(values)))
    start = pd.Series(0.0, index=values.index)
    reach = values.sum(axis=1).max()
    for part in values:
        colour = colours[str(part)]
        look: dict[str, Any] = {"color": colour, "edgecolor": "white", "linewidth": 0.8}
        if horizontal:
            axes.barh(positions, values[part], left=start, height=0.62, **look)
        else:
            axes.bar(positions, values[part], bottom=start, width=0.72, **look)
        crowded = not horizontal and len(values) > _MAX_TICKS // 2
        for place, (value, offset) in enumerate(zip(values[part], start, strict=True)):
            if value >= _MIN_LABEL_SHARE * reach and not crowded:
                middle = offset + value / 2
                x, y = (middle, place) if horizontal else (place, middle)
                axes.text(
                    x, y, f"{value:.1f}", ha="center", va="center", color=style.text_colour(colour), size=8
                )
        start = start + values[part]


def _legend(figure: Figure, parts: list[str], colours: dict[str, str]) -> None:
    handles = [Patch(facecolor=colours[part], label=part_label(part)) for part in parts]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(parts), handlelength=1.0, columnspacing=1.4
    )


def _time_finding(frame: Frame, parts: list[str], totals: Frame) -> str:
    losses = [part for part in parts if part != "compute"]
    best = totals.idxmin()
    name = short_layout(str(frame.loc[best, "layout"]), 200)
    if not losses:
        return f"{name}: all of the step is compute"
    worst = max(losses, key=lambda part: float(frame.loc[best, part]))
    share = float(frame.loc[best, worst]) / totals[best]
    return (
        f"{name} takes {format_seconds(totals[best])} and loses most to {part_label(worst)}: {percent(share)}"
    )


def _memory_finding(frame: Frame, parts: list[str], totals: Frame, limit_bytes: float) -> str:
    rank = int(totals.to_numpy().argmax())
    largest = max(parts, key=lambda part: float(frame[part].iloc[rank]))
    unit, scale = size_unit(limit_bytes)
    spare = (limit_bytes - totals.iloc[rank]) / scale
    room = f"leaves {spare:.1f} {unit} free" if spare >= 0 else f"is {-spare:.1f} {unit} too large"
    return f"Rank {rank} is the fullest and {room}; {part_label(largest)} are its largest part"
