"""The ranks of a run: how much longer each was at work than its peers, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter

from cost_models.units import format_seconds
from executor.measure.slow_ranks import SlowRank, sentence
from meshwright.plots.parts import style
from meshwright.plots.parts.style import Frame
from meshwright.render.words import time_unit

_COLOURS = "PuOr_r"
"""Orange is slower, purple quicker, white alike: told apart by most eyes (ColorBrewer)."""
_LEAST_EDGE = 0.1
_MOST_TICKS = 16


def ranks(frame: Frame, slow: Sequence[SlowRank], first_step: int, subject: str) -> Figure:
    """A row for each rank, a column for each step; colour is the time at work beyond the median of its peers.

    Args:
        frame: a row per rank and step with `rank`, `step`, `excess` (a share; NaN without peers).
        slow: those that are slow, by index of the step since when.
        first_step: number of the first step.
        subject: what ran.
    """
    table = frame.pivot(index="rank", columns="step", values="excess")
    edge = max(_LEAST_EDGE, float(table.abs().quantile(0.98).max()))
    with style.drawing():
        ends = (table.columns[0] - 0.5, table.columns[-1] + 0.5)
        colours = mpl.colormaps[_COLOURS].with_extremes(bad="white")
        figure, axes, image = _chart(table, ends, cmap=colours, vmin=-edge, vmax=edge)
        for one in slow:
            row = table.index.get_loc(one.rank)
            axes.plot(
                [first_step + one.since], [row], marker="|", markersize=14, markeredgewidth=2, color=style.INK
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("step")
        bar = figure.colorbar(image, ax=axes, format=PercentFormatter(1.0, decimals=0))
        bar.set_label("time at work beyond its peers")
        style.put_title(figure, _finding(slow, len(table), first_step), subject)
    return figure


def late_ranks(frame: Frame, subject: str) -> Figure:
    """A row for each rank, a column for each piece of a step; colour is for how long others waited for the rank there.

    Args:
        frame: a row per rank and piece with `rank`, `share` (of the step, when the piece begins), `late_seconds`.
        subject: what ran.
    """
    table = frame.pivot(index="rank", columns="share", values="late_seconds")
    name, scale = time_unit(max(1e-9, float(table.max().max())))
    with style.drawing():
        figure, axes, image = _chart(table / scale, (0.0, 1.0), cmap="Oranges")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("of the step")
        figure.colorbar(image, ax=axes).set_label(f"others wait for it ({name})")
        total = table.sum(axis=1)
        worst = total.idxmax()
        finding = (
            f"Others wait longest for rank {worst}: {format_seconds(float(total[worst]))} of a step in all"
        )
        style.put_title(figure, finding, subject)
    return figure


def _chart(table: Frame, ends: tuple[float, float], **colours: Any) -> tuple[Figure, Axes, AxesImage]:
    """A row of coloured cells for each rank, between two ends of the x axis."""
    figure = style.new_figure(8.0, min(12.0, 2.2 + 0.28 * len(table)))
    axes = figure.subplots()
    extent = (*ends, len(table) - 0.5, -0.5)
    image = axes.imshow(table.to_numpy(), aspect="auto", extent=extent, interpolation="nearest", **colours)
    every = -(-len(table) // _MOST_TICKS)
    axes.set_yticks(range(0, len(table), every), [str(one) for one in table.index[::every]])
    axes.set_ylabel("rank")
    axes.grid(False)
    return figure, axes, image


def _finding(slow: Sequence[SlowRank], count: int, first_step: int) -> str:
    if not slow:
        return f"None of {count} ranks is slower than its peers"
    words = sentence(slow[0], first_step)
    more = f"; {len(slow) - 1} more" if len(slow) > 1 else ""
    return words[0].upper() + words[1:] + more
