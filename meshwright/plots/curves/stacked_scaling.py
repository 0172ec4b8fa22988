"""Strong scaling in parts: what GPU time of a step more GPUs waste, and on what, with the best layout at each point."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import format_seconds, grouped
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.stacks import legend, stack, visible
from meshwright.plots.parts.style import Frame
from meshwright.plots.parts.text import short_layout
from meshwright.render.words import part_label, percent

_BAR = 0.66
_LAYOUT_SIZE = 7.0
_LAYOUT_COLUMNS = 15
_WIDE = 1.25
"""Inches of a bar with the air beside it."""


def stacked_scaling(frame: Frame, subject: str) -> Figure:
    """A bar for each number of GPUs: the GPU time of one step by part; a line is that of the first, which ideal scaling
    keeps.

    Args:
        frame: a row per point with `gpus`, `layout`, `step_seconds`, `mfu`, `gap` and seconds of the step by part, the
            global batch the same in all.
        subject: what was priced.
    """
    points = frame.sort_values("gpus").reset_index(drop=True)
    known = [part for part in style.TIME_COLOURS if part in points]
    spent = points[known].mul(points["gpus"], axis=0)
    parts = visible(spent, style.TIME_COLOURS)
    totals = points["step_seconds"] * points["gpus"]
    word, scale = _unit(float(totals.max()))
    with style.sheet(max(7.6, 1.6 + _WIDE * len(points)), 5.8) as figure:
        axes = figure.subplots()
        stack(axes, spent[parts] / scale, style.TIME_COLOURS, horizontal=False, width=_BAR)
        first = float(totals.iloc[0]) / scale
        axes.axhline(first, color=style.SOFT, linewidth=1.2, linestyle=(0, (2, 2)))
        _names(axes, points, totals / scale)
        axes.set_ylim(0, 1.16 * float(totals.max()) / scale)
        ticks.measure(axes, "y", f"{word} of one step, all GPUs")
        legend(figure, parts, style.TIME_COLOURS)
        line = f"line: what {grouped(int(points['gpus'].iloc[0]))} GPUs spend"
        open_ones = "; *: not proven the best in time" if (points["gap"] > 0).any() else ""
        style.put_title(figure, finding(points), f"{subject}; {line}{open_ones}")
    return figure


def finding(frame: Frame) -> str:
    """ "512 to 4,096 GPUs: the step costs 18.2 % more GPU time; bubble grows most"."""
    first, last = frame.iloc[0], frame.iloc[-1]
    if len(frame) < 2:
        own = format_seconds(float(first["step_seconds"]))
        return f"{grouped(int(first['gpus']))} GPUs, the only number with an answer: {own} a step"
    before, after = (float(one["step_seconds"] * one["gpus"]) for one in (first, last))
    span = f"{grouped(int(first['gpus']))} to {grouped(int(last['gpus']))} GPUs"
    gained = after / before - 1
    if gained < 0:
        return f"{span}: a step costs {percent(-gained)} less GPU time"
    parts = [part for part in style.TIME_COLOURS if part in frame]
    most = max(parts, key=lambda part: float(last[part] * last["gpus"] - first[part] * first["gpus"]))
    return f"{span}: a step costs {percent(gained)} more GPU time; {part_label(most)} grows most"


def _names(axes: Axes, points: Frame, totals: Frame) -> None:
    """Above each bar the step and its MFU, below it the GPUs and the layout."""
    labels = []
    for at, row in enumerate(points.to_dict(orient="records")):
        star = "*" if float(row["gap"]) > 0 else ""
        told = f"{format_seconds(float(row['step_seconds']))}{star}\n{percent(float(row['mfu']))} MFU"
        style.beside(axes, told, (at, float(totals[at])), (0, 3), ha="center", va="bottom", size=8)
        layout = short_layout(str(row["layout"]), _LAYOUT_COLUMNS)
        look = {"xycoords": axes.get_xaxis_transform(), "annotation_clip": False, "color": style.SOFT}
        style.beside(axes, layout, (at, 0), (0, -32), ha="center", va="top", size=_LAYOUT_SIZE, **look)
        labels.append(grouped(int(row["gpus"])))
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlabel("GPUs, and the best layout on so many", labelpad=2)


def _unit(gpu_seconds: float) -> tuple[str, float]:
    """GPU-hours where there are some."""
    return ("GPU-hours", 3600.0) if gpu_seconds >= 7200 else ("GPU-seconds", 1.0)
