"""The frontier: what more memory buys in throughput, over every legal layout."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from cost_models.units import counted, format_bytes, grouped
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.labels import Label, ends_first, put_labels
from meshwright.plots.parts.style import Frame
from meshwright.plots.parts.text import brief_layout, recompute_of
from meshwright.render.words import percent, size_unit

_REACH = 2.0
"""The memory axis ends at this many limits: beyond it lie layouts nobody would run."""
_FAR = 4.0
"""A limit this many times as large as everything drawn is not drawn but told."""
_MAX_LABELS = 6


def frontier(frame: Frame, limit_bytes: float, subject: str) -> Figure:
    """Peak memory against throughput: all layouts grey, the Pareto line, the chosen plan, the limit.

    Args:
        frame: a row per layout with `layout`, `peak_bytes`, `tokens_per_second`, `mfu`, `fits`, `pareto`, `proven`,
            `chosen`.
        limit_bytes: what one device may hold.
        subject: what was priced.
    """
    reach = max(_REACH * limit_bytes, 1.05 * float(frame.loc[frame["chosen"], "peak_bytes"].max() or 0.0))
    shown = frame[~(frame["peak_bytes"] > reach)]
    line = shown[shown["pareto"]].sort_values("peak_bytes")
    largest = float(shown["peak_bytes"].max()) if len(shown) else limit_bytes
    near = limit_bytes <= _FAR * largest
    right = 1.06 * max(largest, limit_bytes) if near else 1.25 * largest
    unit, scale = size_unit(right)
    word, per_tick = ticks.unit_of(float(shown["tokens_per_second"].max()) if len(shown) else 1.0)
    x, y = shown["peak_bytes"] / scale, shown["tokens_per_second"] / per_tick
    with style.sheet(9.0, 5.8) as figure:
        axes = figure.add_subplot()
        for fits, colour in ((False, style.FAINT), (True, style.PALE)):
            some = shown["fits"] == fits
            axes.scatter(x[some], y[some], s=9, color=colour, linewidths=0, rasterized=True)
        axes.set_xlim(0, right / scale)
        axes.set_ylim(0, 1.16 * float(y.max()) if len(shown) else 1.0)
        steps = _draw_line(axes, line, scale, per_tick)
        bounds, words = _draw_limit(axes, limit_bytes, scale, near=near)
        chosen = shown[shown["chosen"]]
        for row in chosen.index:
            axes.scatter(x[row], y[row], s=150, marker="*", color=style.VERMILION, zorder=5)
        axes.set_xlabel(f"peak memory of the fullest device ({unit})")
        axes.set_ylabel(f"throughput ({word}tokens/s, all GPUs)")
        ticks.linear(axes.xaxis)
        ticks.linear(axes.yaxis)
        style.quiet_axis(axes, grid="both")
        style.put_title(figure, _finding(frame, limit_bytes), _subject(subject, frame))
        named = [_label(row, "chosen, ", style.VERMILION, scale, per_tick) for _, row in chosen.iterrows()]
        others = line[~line["chosen"]]
        proven = others[others["proven"]]
        rows = [row for _, row in (proven if len(proven) >= _MAX_LABELS else others).iterrows()]
        named += [_label(row, "", style.BLUE, scale, per_tick) for row in ends_first(rows, _MAX_LABELS)]
        marks = list(zip(line["peak_bytes"] / scale, line["tokens_per_second"] / per_tick, strict=True))
        put_labels(axes, named, lines=[*steps, *bounds], marks=marks, texts=words)
    return figure


def _draw_line(axes: Axes, line: Frame, scale: float, per_tick: float) -> list[Line2D]:
    """Steps through the best layouts known; those that are proven to be the best there are have a large mark."""
    if line.empty:
        return []
    x, y = (line["peak_bytes"] / scale).to_numpy(), (line["tokens_per_second"] / per_tick).to_numpy()
    corners = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
    steps = axes.plot(*corners, color=style.BLUE, linewidth=1.6, zorder=3)
    for proven, area in ((False, 9), (True, 30)):
        some = (line["proven"] == proven).to_numpy()
        axes.scatter(x[some], y[some], s=area, color=style.BLUE, linewidths=0, zorder=4)
    return steps


def _draw_limit(
    axes: Axes, limit_bytes: float, scale: float, *, near: bool
) -> tuple[list[Line2D], list[Text]]:
    """The limit with what is on either side of it, or where it is far away a word that it is."""
    words = f"limit {format_bytes(limit_bytes)}"
    if not near:
        said = f"{words}, far to the right →"
        return [], [axes.text(0.99, 0.02, said, transform=axes.transAxes, ha="right", weight="bold")]
    at, across = limit_bytes / scale, axes.get_xaxis_transform()
    beside = 0.008 * axes.get_xlim()[1]
    drawn = axes.axvline(at, color=style.INK, linewidth=1.4, linestyle=(0, (5, 3)))
    here = axes.text(at + beside, 0.015, words, transform=across, weight="bold")
    here.set_bbox({"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1.0})
    fits = axes.text(at - beside, 0.985, "fits", transform=across, ha="right", va="top", color=style.SOFT)
    not_so = axes.text(at + beside, 0.985, "does not fit", transform=across, va="top", color=style.SOFT)
    return [drawn], [here, fits, not_so]


def _label(row: Frame, before: str, colour: str, scale: float, per_tick: float) -> Label:
    recompute = recompute_of(row["layout"])
    return Label(
        text=f"{before}{percent(row['mfu'])} MFU{recompute and ', '}{recompute}\n{brief_layout(row['layout'], 36)}",
        at=(row["peak_bytes"] / scale, row["tokens_per_second"] / per_tick),
        colour=colour,
        size=8 if before else 7.5,
        weight="bold" if before else "normal",
        needed=bool(before),
    )


def _finding(frame: Frame, limit_bytes: float) -> str:
    fitting = frame[frame["fits"]]
    if fitting.empty:
        least = format_bytes(float(frame["peak_bytes"].min()))
        return f"Nothing fits in {format_bytes(limit_bytes)}; the smallest layout needs {least}"
    line = fitting[fitting["pareto"]].sort_values("peak_bytes")  # priced in full, unlike the grey points
    best = line.iloc[-1] if len(line) else fitting.loc[fitting["tokens_per_second"].idxmax()]
    almost = line[line["tokens_per_second"] >= 0.95 * best["tokens_per_second"]]
    cheap = almost.iloc[0] if len(almost) else best
    if cheap["peak_bytes"] > 0.95 * best["peak_bytes"]:
        needs = f"{percent(best['mfu'])} MFU needs {format_bytes(best['peak_bytes'])}"
        smaller = line[line["peak_bytes"] < cheap["peak_bytes"]]
        if smaller.empty:
            return f"{needs}; nothing fits in less"
        less = smaller.iloc[-1]
        return f"{needs}; {format_bytes(less['peak_bytes'])} are enough for {percent(less['mfu'])}"
    return (
        f"{percent(best['mfu'])} MFU needs {format_bytes(best['peak_bytes'])}; "
        f"95 % of that speed fits in {format_bytes(cheap['peak_bytes'])}"
    )


def _subject(subject: str, frame: Frame) -> str:
    """What the dots are: all layouts, and those that are known to be the best."""
    proven = int((frame["pareto"] & frame["proven"]).sum())
    dots = (
        f"large dots: {counted(proven, 'plan')} proven the best for so much memory, small ones: the best known"
        if proven
        else "dots: the best known for so much memory, with even stages"
    )
    even = frame[~frame["proven"]]
    cloud = f"{counted(len(even), 'layout')} with even stages, each recompute policy apart"
    return f"{subject}; {cloud}, {grouped(int(even['fits'].sum()))} fit; {dots}"
