"""Figures of single layouts: memory by rank, step time by part, and blocks moved into host memory.

`memory_by_rank` and `time_breakdown` stack parts, `window` follows blocks into host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.estimate import fullness
from cost_models.pipeline.seconds import HIDDEN_PARTS
from cost_models.units import counted, format_bytes, format_seconds
from meshwright.plots import style
from meshwright.plots.parts import draw_memory_bars, legend_below, stack_bars
from meshwright.plots.style import Frame, brief_layout, short_layout
from meshwright.render.words import change, lines_of, part_label, percent, sentence_list, size_unit, time_unit


class PoolSpan(NamedTuple):
    """Consecutive pipeline ranks on one GPU pool."""

    name: str
    first: int
    last: int


def pool_spans(pools: Sequence[str]) -> list[PoolSpan]:
    """Spans of consecutive ranks on one pool, from the pool of each rank; empty if there are not several pools."""
    spans: list[PoolSpan] = []
    for name, run in groupby(pools):
        first = spans[-1].last + 1 if spans else 0
        spans.append(PoolSpan(name, first, first + len(list(run)) - 1))
    return spans if len(spans) > 1 else []


@style.drawing()
def memory_by_rank(
    frame: Frame, limits: Sequence[float], subject: str, *, pools: Sequence[PoolSpan] = ()
) -> Figure:
    """Stacked bars of memory by part, a bar per pipeline rank, under the memory limit.

    Args:
        frame: a row per pipeline rank in order; one column of bytes per part.
        limits: what a device of each rank may hold.
        subject: which plan.
        pools: with several pools, which ranks lie in which.
    """
    width = 9.0 if len(frame) > 1 else 6.4
    figure, axes = style.new_chart(width, 5.0, _memory_finding(frame, limits), subject)
    draw_memory_bars(axes, frame, limits, style.MEMORY_COLOURS, "peak memory of one device")
    axes.set_xlabel("pipeline rank")
    for span in pools:
        place, across = ((span.first + span.last) / 2, 0.985), axes.get_xaxis_transform()
        axes.text(*place, span.name, transform=across, ha="center", va="top", color=style.SOFT, weight="bold")
        if span.first:
            axes.axvline(span.first - 0.5, color=style.GREY, linewidth=0.9)
    legend_below(figure, axes)
    return figure


def _memory_finding(frame: Frame, limits: Sequence[float]) -> str:
    """Title of the memory picture: spare bytes on the fullest rank, and its largest part."""
    parts = frame[[part for part in style.MEMORY_COLOURS if part in frame]]
    totals = parts.sum(axis=1)
    rank = max(range(len(totals)), key=lambda place: fullness(float(totals.iloc[place]), limits[place]))
    spare = limits[rank] - float(totals.iloc[rank])
    room = f"leaves {format_bytes(spare)} free" if spare >= 0 else f"is {format_bytes(-spare)} too large"
    subject = f"Rank {rank} is the fullest and" if len(totals) > 1 else "A device"
    largest, size = parts.iloc[rank].idxmax(), format_bytes(float(parts.iloc[rank].max()))
    return f"{subject} {room}; its largest part is {part_label(largest)}, {size}"


_TIME_BAR, _HIDDEN_STRIP = 0.56, 0.15
"""Heights, in rows: of a bar, and of the strip under it for what is hidden."""
_HATCH, _HIDDEN = "//////", "overlapped with compute"
_LONGEST_NAME = 60
"""Largest number of characters of a full layout in a title; of a longer one, only degrees are named."""
_LEAST_SHARE = 0.002
"""Smallest hidden communication that is drawn, as a share of the axis."""


@style.drawing()
def time_breakdown(frame: Frame, subject: str) -> Figure:
    """Stacked horizontal bars of step time by part, a bar per layout; hatched below: communication hidden behind
    compute.

    Args:
        frame: a row per layout in the order to draw; `layout`, one column of seconds per part, and `tp_hidden`,
            `cp_hidden`, `ep_hidden`, `dp_hidden` with the seconds of communication that the step does not wait for;
            where rows answer different questions, `name` says which.
        subject: what was priced.
    """
    colours = style.TIME_COLOURS
    parts = [part for part in colours if part in frame and frame[part].max() > 0]
    totals = frame[parts].sum(axis=1)
    unit, scale = time_unit(totals.max())
    figure, axes = style.new_chart(9.4, 1.9 + 0.68 * len(frame), _time_finding(frame, parts, totals), subject)
    stack_bars(axes, frame[parts] / scale, colours, _TIME_BAR, horizontal=True)
    reach = totals.max() / scale
    axes.set_xlim(0, 1.24 * reach)
    for row, total in enumerate(totals):
        axes.text(total / scale + 0.01 * reach, row, format_seconds(total), va="center", weight="bold")
        if total > totals.min() and "name" not in frame:
            slower, at_right = change(totals.min(), total), axes.get_yaxis_transform()
            axes.text(1.0, row, slower, transform=at_right, ha="right", va="center", color=style.SOFT)
    axes.set_yticks(range(len(frame)), _layout_names(frame))
    axes.set_ylim(len(frame) - 0.4, -0.5)
    style.name_axes(axes, f"time of one step ({unit})", grid="x")
    _draw_hidden(axes, frame, scale)
    legend_below(figure, axes)
    return figure


def _draw_hidden(axes: Axes, frame: Frame, scale: float) -> None:
    """Draw a hatched strip of hidden communication under each layout's bar."""
    parts = [part for part in HIDDEN_PARTS if part in frame and frame[part].max() > 0]
    for row, (_, layout) in enumerate(frame.iterrows()):
        start = 0.0
        for part in parts:
            value = layout[part] / scale
            if value < _LEAST_SHARE * axes.get_xlim()[1]:
                continue
            middle, colour = row + (_TIME_BAR + _HIDDEN_STRIP) / 2, style.TIME_COLOURS[HIDDEN_PARTS[part]]
            look: style.Look = {"edgecolor": colour, "linewidth": 0.6, "hatch": _HATCH, "label": _HIDDEN}
            axes.barh(middle, value, left=start, height=_HIDDEN_STRIP, facecolor="white", **look)
            start += value


def _layout_names(frame: Frame) -> list[str]:
    """Labels of the layouts at the bars, below the names of their questions if these differ."""
    names = frame["name"] if "name" in frame else [""] * len(frame)
    return [
        "\n".join([*(lines_of(name, 40) if name else []), short_layout(layout, 36)])
        for name, layout in zip(names, frame["layout"], strict=True)
    ]


def _time_finding(frame: Frame, parts: list[str], totals: Frame) -> str:
    """Title of the picture of step times: for one layout its largest loss, for several the lead of the fastest, for
    several questions shares of compute."""
    losses = frame[[part for part in parts if part != "compute"]]
    worst = [part_label(part) for part in losses.idxmax(axis=1)] if len(losses.columns) else []
    if "name" in frame:
        shares = frame["compute"] / totals
        rest = f"; most of the rest is {sentence_list(list(dict.fromkeys(worst)))}" if worst else ""
        return f"Compute is {percent(shares.min())} to {percent(shares.max())} of the step{rest}"
    best = int(totals.to_numpy().argmin())
    layout, seconds = str(frame["layout"].iloc[best]), totals.iloc[best]
    full_name = short_layout(layout, 200)
    name = full_name if len(full_name) <= _LONGEST_NAME else brief_layout(layout, 200)
    lead = ""
    if len(totals) > 1:
        second = totals.drop(totals.index[best]).min()
        ahead = percent(1 - seconds / second)
        lead = f", {ahead} less than the next" if seconds < second else ", as long as another"
    if not worst:
        return f"{name} takes {format_seconds(seconds)}{lead}, all of it compute"
    share = percent(float(losses.iloc[best].max()) / seconds)
    return f"{name} takes {format_seconds(seconds)}{lead}, and loses most to {worst[best]}: {share}"


_RESIDENCIES = {
    "states": (style.BLUE, 7.0, "states of {} on the host"),
    "parked": (style.GREEN, 3.5, "states of {} parked on the host"),
    "streamed": (style.VERMILION, 3.5, "{} streamed from the host"),
}
"""Colour, size of marks in points, and words; `states` and `parked` coincide in both memories, the larger below."""
_NEAR_LIMIT = 2.0
"""Ratio of the memory limit to the highest point above which the limit is written, not drawn."""


@style.drawing()
def window(frame: Frame, device_limit: float, host_limit: float | None, subject: str) -> Figure:
    """Three line plots over the blocks of a rank kept in host memory (x): step time, device memory, host memory; a
    line for each residency (how blocks use host memory).

    Args:
        frame: a row per point with `residency`, `blocks`, `step_seconds`, `peak_bytes`, `host_bytes`, `fits`, `chosen`.
        device_limit: what one device may hold.
        host_limit: what blocks may fill of one host; None where nobody says.
        subject: what was priced.
    """
    kinds = [name for name in _RESIDENCIES if name in set(frame["residency"])]
    lines = {name: frame[frame["residency"] == name].sort_values("blocks") for name in kinds}
    subject += "; hollow: does not fit; star: the plan"
    figure = style.new_figure(10.8, 4.6, _window_finding(lines), subject)
    charts = figure.subplots(1, 3)
    for axes, column, unit_of, label, limit in (
        (charts[0], "step_seconds", time_unit, "step", None),
        (charts[1], "peak_bytes", size_unit, "memory of the fullest device", device_limit),
        (charts[2], "host_bytes", size_unit, "memory of each host", host_limit),
    ):
        unit, scale = unit_of(max(float(frame[column].max()), 1e-9))
        for name, line in lines.items():
            x, y, (colour, size, _) = line["blocks"], line[column] / scale, _RESIDENCIES[name]
            style.draw_curve(axes, x, y, colour, "o", ~line["fits"], name, size)
            style.mark_plan(axes, x[line["chosen"]], y[line["chosen"]])
        highest = float(frame[column].max())
        if limit is not None:
            is_near = limit <= _NEAR_LIMIT * highest
            words = f"- - limit {format_bytes(limit)}{'' if is_near else ', far above'}"
            axes.axhline(limit / scale, color=style.INK, linewidth=1.4, linestyle=style.DASHES, label=words)
            highest = max(highest, is_near * limit)
        axes.set_ylim(0, 1.2 * highest / scale or 1.0)
        style.name_axes(axes, "blocks of a rank in host memory", f"{label} ({unit})", grid="y")
        style.name_lines(axes)
    return figure


def _window_finding(lines: dict[str, Frame]) -> str:
    """Title of the window picture: the fastest point that fits, and the fitting point with the lowest peak memory."""
    points: Frame = pd.concat(lines.values(), ignore_index=True)
    fitting = points[points["fits"]]
    if fitting.empty:
        return "However many blocks of one kind are in host memory, nothing fits"
    best_points = fitting.loc[[fitting["step_seconds"].idxmin(), fitting["peak_bytes"].idxmin()]]
    sentences = []
    for _, row in best_points.drop_duplicates("layout").iterrows():
        words = _RESIDENCIES[row["residency"]][2].format(counted(int(row["blocks"]), "block"))
        mode = words if row["blocks"] else "all blocks on the device"
        step, peak = format_seconds(float(row["step_seconds"])), format_bytes(float(row["peak_bytes"]))
        sentences.append(f"{mode}: {step} in {peak}")
    finding = "; ".join(sentences)
    return finding[0].upper() + finding[1:]
