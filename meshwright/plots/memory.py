"""What fills each pipeline rank, part by part, under what a device may hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.estimate import fullness
from cost_models.units import format_bytes
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.pools import PoolSpan, mark_along_x
from meshwright.plots.parts.stacks import legend, name_pieces, stack, visible
from meshwright.plots.parts.style import Frame
from meshwright.render.words import part_label, size_unit

_BAR = 0.72
_MAX_TICKS = 24
_FAR = 4.0
"""A limit this many times as high as the highest bar is not drawn but told."""
_LABEL_HEIGHT = 0.05
"""Of the number above a bar, as a share of the axis."""


def memory_by_rank(
    frame: Frame,
    limit_bytes: float,
    subject: str,
    *,
    rank_limits: Sequence[float] = (),
    pools: Sequence[PoolSpan] = (),
) -> Figure:
    """One bar per pipeline rank, its parts in bytes, under the limit.

    Args:
        frame: a row per pipeline rank in order; one column of bytes per part.
        limit_bytes: what one device may hold.
        subject: which plan.
        rank_limits: with several pools, what a device of each rank may hold.
        pools: with several pools, which ranks lie in which.
    """
    parts = [part for part in style.MEMORY_COLOURS if part in frame and frame[part].max() > 0]
    totals, ranks = frame[parts].sum(axis=1), len(frame)
    limits = list(rank_limits) or [limit_bytes] * ranks
    near = max(limits) <= _FAR * totals.max()
    highest = max(totals.max(), *limits) if near else totals.max()
    unit, scale = size_unit(highest)
    with style.sheet(9.0 if ranks > 1 else 6.4, 5.0) as figure:
        axes = figure.add_subplot()
        numbers = ranks <= _MAX_TICKS // 2
        stack(axes, frame[parts] / scale, style.MEMORY_COLOURS, horizontal=False, width=_BAR, numbers=numbers)
        top = (1.22 if pools else 1.14) * highest / scale
        axes.set_ylim(0, top)
        axes.set_xlim(-0.6, max(ranks - 0.4, 1.0))
        step = -(-ranks // _MAX_TICKS)
        axes.set_xticks(range(0, ranks, step))
        _limits(axes, limits, scale, near=near)
        for rank in range(0, ranks, step):
            _total(axes, rank, totals.iloc[rank] / scale, limits[rank] / scale if near else None)
        mark_along_x(axes, pools)
        axes.set_xlabel("pipeline rank")
        ticks.measure(axes, "y", f"peak memory of one device ({unit})")
        shown = visible(frame, style.MEMORY_COLOURS)
        named = name_pieces(axes, frame[parts] / scale, 0.42) if ranks == 1 else []
        if len(named) < len(shown):
            legend(figure, shown, style.MEMORY_COLOURS)
        style.put_title(figure, _finding(frame, parts, totals, limits), subject)
    return figure


def _limits(axes: Axes, limits: Sequence[float], scale: float, *, near: bool) -> None:
    """A dashed line over each rank, and in words what it is; of a limit far above only the words."""
    words = " and ".join(format_bytes(limit) for limit in dict.fromkeys(limits))
    if not near:
        said = f"limit {words}, far above ↑"
        axes.text(0.995, 0.96, said, transform=axes.transAxes, ha="right", va="top", weight="bold")
        return
    left, right = axes.get_xlim()
    ends = np.repeat([left, *(np.arange(1, len(limits)) - 0.5), right], 2)[1:-1]
    axes.plot(ends, np.repeat(limits, 2) / scale, color=style.INK, linewidth=1.4, linestyle=(0, (5, 3)))
    top = axes.get_ylim()[1]
    line = axes.text(right, limits[-1] / scale + 0.014 * top, f"limit {words}", ha="right", weight="bold")
    line.set_bbox({"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 1.0})


def _total(axes: Axes, rank: int, height: float, limit: float | None) -> None:
    """The number above a bar, and above the limit where the line would run through it."""
    room = _LABEL_HEIGHT * axes.get_ylim()[1]
    above = height + 0.2 * room
    if limit is not None and above - 0.2 * room < limit < above + room:
        above = limit + 0.25 * room
    number = axes.text(rank, above, f"{height:.1f}", ha="center")
    number.set_bbox({"facecolor": "white", "linewidth": 0, "pad": 0.6})


def _finding(frame: Frame, parts: list[str], totals: Frame, limits: Sequence[float]) -> str:
    rank = max(range(len(totals)), key=lambda one: fullness(float(totals.iloc[one]), limits[one]))
    largest = max(parts, key=lambda part: float(frame[part].iloc[rank]))
    spare = limits[rank] - float(totals.iloc[rank])
    room = f"leaves {format_bytes(spare)} free" if spare >= 0 else f"is {format_bytes(-spare)} too large"
    who = f"Rank {rank} is the fullest and" if len(totals) > 1 else "A device"
    size = format_bytes(float(frame[largest].iloc[rank]))
    return f"{who} {room}; its largest part is {part_label(largest)}, {size}"
