"""Figure of a cluster's network levels: GPUs and switches, bandwidths, and how busy a plan keeps the links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from cost_models.communication.topology import Level, used_levels
from cost_models.pipeline.pricing import LinkUse
from cost_models.specs.cluster import ClusterSpec
from cost_models.units import format_bandwidth, format_seconds, grouped
from meshwright.plots import style
from meshwright.render.links import share_text

_WIDTH, _ROW = 11.4, 0.86
"""Inches: width of the picture, and height of a level."""
_MAX_GPUS, _MAX_MEMBERS, _LEAVES = 8, 4, 16
"""GPUs of one domain, other members of one, and GPUs in all that are drawn one by one."""
_LEAST_PLACES = 16
"""Smallest width of the tree, in GPUs."""
_THICKER = (2e9, 10e9, 40e9, 150e9, 400e9)
"""Bandwidths in bytes/s from which a link is drawn thicker."""


@dataclass(kw_only=True)
class _Tree:
    """Tree of a cluster's GPUs and switches, drawn from the left; a GPU takes one place, a level one row."""

    axes: Axes
    cluster: ClusterSpec
    levels: Sequence[Level]
    colours: Sequence[str]
    ink: str | None
    """Colour of the names of switches; None: one that is legible."""
    right: float = 0.0
    """Right end of the drawn part, in GPUs."""

    @cached_property
    def rows(self) -> list[int]:
        """Row of the GPUs, then of each level; levels of the first medium lie below the GPUs where another follows
        inside the node."""
        openings = [at for at, level in enumerate(self.levels) if level.opens and not level.network]
        rows = list(range(len(self.levels) + 1))
        return [rows.pop(openings[1] if len(openings) > 1 else 0), *rows]

    def size(self, at: int) -> int:
        """Number of GPUs that a switch of level `at` joins; 1 for a GPU itself (level -1)."""
        return 1 if at < 0 else min(self.levels[at].gpus or self.cluster.num_gpus, self.cluster.num_gpus)

    @cached_property
    def members_drawn(self) -> list[int]:
        """Number of members (GPUs, or switches of the level below) drawn under a switch of each level: all for which
        there is room."""
        count = len(self.levels)
        sizes = [1] * count
        for at in dict.fromkeys([0, count - 1, *range(1, count - 1)]):  # GPUs first, then the widest level
            members, room = -(-self.size(at) // self.size(at - 1)), _LEAVES // math.prod(sizes)
            sizes[at] = max(1, min(members, room, _MAX_MEMBERS if at else _MAX_GPUS))
        return sizes

    def draw(self, at: int, first: int = 0) -> list[float]:
        """Draw the switch of level `at` whose first GPU is `first`, with its links and everything below it; return
        the places of its GPUs."""
        axes, (gpu_row, *rows) = self.axes, self.rows
        if at < 0:
            self.right += 1.0
            few = math.prod(self.members_drawn) <= _MAX_GPUS
            square: style.Look = {"s": 170 if few else 90, "marker": "s", "color": style.BLUE, "zorder": 4}
            axes.scatter(self.right, gpu_row, linewidths=0, **square)
            number: style.Look = {"size": 7, "color": "white", "zorder": 5, **style.MIDDLE}
            axes.text(self.right, gpu_row, str(first) if few else "", **number)
            return [self.right]
        level, colour, inner = self.levels[at], self.colours[at], self.size(at - 1)
        members = -(-min(self.size(at), self.cluster.num_gpus - first) // inner)
        drawn, left, places = min(self.members_drawn[at], members), self.right + 0.5, list[list[float]]()
        for member in range(drawn):
            self.right += (0.5 * at + 0.7 * level.network) * bool(member)
            places.append(self.draw(at - 1, first + member * inner))
        if members > drawn:
            look: style.Look = {"size": 10, "color": style.SOFT, **style.MIDDLE}
            axes.text(self.right + 2.0, self.rows[at], f"× {grouped(members - drawn)}", **look)
            self.right += 3.0
        gpus = [gpu for member in places for gpu in member]
        plugs, foot, width = list(map(mean, places)), rows[at - 1], self.right + 0.5 - left
        inside = [gpu_row, *(row for row, one in zip(rows, self.levels, strict=True) if not one.network)]
        if level.opens:
            sharers, foot = level.sharers or 1, gpu_row
            plugs = [mean(gpus[place : place + sharers]) for place in range(0, len(gpus), sharers)]
            if level.network or sharers > 1:
                adapter: style.Look = {"s": 40, "marker": "s", "color": "white", "edgecolors": style.INK}
                axes.scatter(plugs, [max(inside) + 0.35] * len(plugs), linewidths=0.8, zorder=3, **adapter)
        if [one.network for one in self.levels[at : at + 2]] == [False, True]:  # the level is the node
            corner, height = (left - 0.3, min(inside) - 0.3), max(inside) - min(inside) + 0.65
            look = {"facecolor": "#F5F5F5", "edgecolor": style.PALE, "zorder": 0}
            axes.add_patch(Rectangle(corner, width + 0.6, height, **look))
        thick = 0.6 + 0.6 * sum(level.bandwidth >= least for least in _THICKER)
        axes.vlines(plugs, foot, rows[at], linewidth=thick, color=colour, zorder=1 - 0.01 * at)
        axes.barh(rows[at], width, left=left, height=0.22, color=colour, zorder=2)
        if len(gpus) > 1:
            ink = self.ink or style.text_colour(colour)
            axes.text(left + width / 2, rows[at], level.name, size=8, color=ink, **style.MIDDLE)
        return gpus


@style.drawing()
def topology(
    cluster: ClusterSpec, finding: str, subject: str, use: Sequence[LinkUse] | None = None
) -> Figure:
    """Tree of a cluster from GPUs up to the widest network; beside each level its links and, with a plan, how busy
    they are."""
    levels = used_levels(cluster)
    uses = [None if use is None else [one for one in use if one.level.name == level.name] for level in levels]
    figure = style.new_figure(_WIDTH, 1.5 + _ROW * len(levels), finding, subject)
    tree_axes, words_axes = figure.subplots(1, 2, sharey=True)
    colours, ink = [_colour(level_use) for level_use in uses], "white" if use is None else None
    tree = _Tree(axes=tree_axes, cluster=cluster, levels=levels, colours=colours, ink=ink)
    tree.draw(len(levels) - 1)
    for axes in (tree_axes, words_axes):
        axes.axis("off")
    tree_axes.set(xlim=(0, max(tree.right + 1, _LEAST_PLACES)), ylim=(-0.45, len(levels) + 0.45))
    for at, level_use in enumerate(uses):
        _describe(words_axes, tree, at, level_use)
    return figure


def _describe(axes: Axes, tree: _Tree, at: int, use: Sequence[LinkUse] | None) -> None:
    """Write a level's name and links beside it; with a plan, draw bars of the share of the step that they are
    busy."""
    level, size, inner = tree.levels[at], tree.size(at), tree.size(at - 1)
    row = tree.rows[at + 1] + (0.1 if use is None else 0.25)
    count = -(-tree.cluster.num_gpus // size)
    words = f"joins {grouped(-(-size // inner))} × {tree.levels[at - 1].name if at else 'GPU'}"
    words += f", {grouped(count)} times" if count > 1 else ""
    words += f"; {format_bandwidth(inner * level.bandwidth)} out of each" if at else ""
    name = axes.text(0, row, level.name, weight="bold", va="center")
    rate = f"{level.kind}, {format_bandwidth(level.bandwidth)} a GPU, {format_seconds(level.latency)}"
    _write_after(axes, name, rate)
    axes.text(0, row - 0.22, words, va="center", size=8, color=style.SOFT)
    axes.set_xlim(0, 2.2)
    if use is None:
        return
    axes.barh(row - 0.5, 1.0, height=0.16, color=style.FAINT)
    left, text = 0.0, axes.text(1.0, row - 0.5, "" if use else "  idle", va="center", color=style.SOFT)
    for link in use:
        colour, share = _colour([link]), min(link.share, 1 - left)
        axes.barh(row - 0.5, share, left=left, height=0.16, color=colour)
        text = _write_after(axes, text, f"{link.axis} {share_text(link.share)}", weight="bold", color=colour)
        left += share


def _write_after(axes: Axes, text: Text, words: str, **look: Any) -> Text:
    """Write words right of a text, at its height."""
    place: style.Look = {"xycoords": text, "textcoords": "offset points", "va": "center"}
    return axes.annotate(words, (1, 0.5), (6, 0), **place, **look)


def _colour(use: Sequence[LinkUse] | None) -> str:
    """Colour of a level: grey without a plan or traffic, else the colour of the axis that uses its links most."""
    if not use:
        return style.SOFT if use is None else style.PALE
    return style.TIME_COLOURS[f"{max(use, key=lambda link: link.share).axis}_comm"]
