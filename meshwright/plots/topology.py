"""Figure of a cluster's network levels: GPUs and switches, bandwidths, and how busy a plan keeps the links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from cost_models.communication.topology import Level, link_graph, used_levels
from cost_models.pipeline.pricing import LinkUse
from cost_models.specs.cluster import ClusterSpec
from cost_models.units import format_bandwidth, format_seconds, grouped
from meshwright.plots import style
from meshwright.render.links import share_text

_WIDTH, _TREE, _TITLE = 11.4, 6.0, 0.75
"""Inches: widths of the picture and of the tree, and height of the title."""
_ROW, _LOW = 0.86, 0.42
"""Inches between rows, and below the lowest."""
_FULL = 2.3
"""Inches of a bar that is fully busy."""
_MAX_GPUS, _MAX_MEMBERS, _LEAVES = 8, 4, 16
"""GPUs of one domain, other members of one, and GPUs in all that are drawn one by one."""


@dataclass(slots=True)
class _Tree:
    """Places of a cluster's GPUs and switches in the picture, in inches."""

    cluster: ClusterSpec
    levels: Sequence[Level]
    y: list[float] = field(default_factory=list)
    """Height of each level's switches."""
    gpu_y: float = 0.0
    gpu_x: dict[int, float] = field(default_factory=dict)
    spans: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    """Level and domain (GPUs that one switch of the level joins) → left and right end of its switch."""
    omissions: list[tuple[int, float, int]] = field(default_factory=list)
    """Members of domains not drawn: level, x, count."""
    right: float = 0.0
    side: float = 0.2
    """Side of a GPU's square."""

    def size(self, at: int) -> int:
        """Number of GPUs that a switch of level `at` joins; 1 for a GPU itself (level -1)."""
        return 1 if at < 0 else min(self.levels[at].gpus or self.cluster.num_gpus, self.cluster.num_gpus)

    def members_drawn(self) -> list[int]:
        """Number of members (GPUs, or switches of the level below) drawn under a switch of each level: all if there
        is room, else the first few."""
        count = len(self.levels)
        sizes = [1] * count
        for at in dict.fromkeys([0, count - 1, *range(1, count - 1)]):  # GPUs first, then the widest level
            members = -(-self.size(at) // self.size(at - 1))
            room = max(1, _LEAVES // math.prod(sizes))
            few = (1 if count > 3 else 2) if at else 4
            limit = min(_MAX_MEMBERS if at else _MAX_GPUS, room)
            sizes[at] = members if members <= limit else min(few, room)
        return sizes

    def place(self) -> None:
        """Compute all places: GPUs from the left, with wider gaps between switches of higher levels, scaled to the
        tree's width.

        Levels of the first medium lie below the GPUs where another follows inside the node.
        """
        openings = [at for at, level in enumerate(self.levels) if level.opens and not level.network]
        self.y = [_LOW + _ROW * at for at in range(len(self.levels) + 1)]
        self.gpu_y = self.y.pop(openings[1] if len(openings) > 1 else 0)
        self._place_domain(self.members_drawn(), len(self.levels) - 1, 0)
        room, width = _TREE - 0.9, max(self.right, 1.0)
        scale = min(1.0, room / width)
        shift = 0.45 + (room - width * scale) / 2
        self.side = min(self.side, 0.24 * scale)
        self.gpu_x = {gpu: shift + x * scale for gpu, x in self.gpu_x.items()}
        self.spans = {key: (shift + a * scale, shift + b * scale) for key, (a, b) in self.spans.items()}
        self.omissions = [(at, shift + x * scale, count) for at, x, count in self.omissions]

    def _place_domain(self, sizes: list[int], at: int, first: int) -> None:
        """Place a switch of level `at` with everything below it; `first` is the index of its first GPU."""
        if at < 0:
            self.gpu_x[first] = self.right
            self.right += 0.3
            return
        inner, begin = self.size(at - 1), self.right
        members = -(-min(self.size(at), self.cluster.num_gpus - first) // inner)
        for member in range(min(sizes[at], members)):
            self.right += (0.16 * at + 0.2 * self.levels[at].network) * bool(member)
            self._place_domain(sizes, at - 1, first + member * inner)
        if members > sizes[at]:
            self.omissions.append((at, self.right + 0.36, members - sizes[at]))
            self.right += 1.0
        self.spans[at, first // self.size(at)] = (begin - 0.15, self.right - 0.15)

    def vertex(self, graph: networkx.Graph[str], vertex: str, top: float) -> tuple[float, float]:
        """Place of a GPU, switch or adapter of the link graph; vertices of levels not drawn lie at height `top`."""
        data = graph.nodes[vertex]
        if data["kind"] == "gpu":
            return self.gpu_x[data["index"]], self.gpu_y
        if data["kind"] == "switch":
            left, right = self.spans.get((data["level"], data["index"]), (0.0, 0.0))
            return (left + right) / 2, self.y[data["level"]] if data["level"] < len(self.y) else top
        neighbours = [graph.nodes[other] for other in graph[vertex]]
        xs = [self.gpu_x[other["index"]] for other in neighbours if other["kind"] == "gpu"]
        return sum(xs) / len(xs), top


@style.drawing()
def topology(
    cluster: ClusterSpec, finding: str, subject: str, use: Sequence[LinkUse] | None = None
) -> Figure:
    """Tree of a cluster from GPUs up to the widest network; beside each level its links and, with a plan, how busy
    they are."""
    levels = used_levels(cluster)
    tree = _Tree(cluster, levels)
    tree.place()
    height = _LOW + _ROW * len(levels) + 0.45 + _TITLE
    figure = style.new_figure(_WIDTH, height, finding, subject)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, _WIDTH), ylim=(0, height))
    axes.axis("off")
    uses = [None if use is None else [one for one in use if one.level.name == level.name] for level in levels]
    _draw_tree(axes, tree, [_colour(level_use) for level_use in uses], "white" if use is None else None)
    for at, level_use in enumerate(uses):
        _describe(axes, tree, at, level_use)
    return figure


def _draw_tree(axes: Axes, tree: _Tree, colours: list[str], ink: str | None) -> None:
    """Draw links, switches, adapters and GPUs; `ink` colours the names of switches, None picks a legible colour."""
    levels, spans = tree.levels, tree.spans
    graph = link_graph(tree.cluster, sorted(tree.gpu_x))
    node = sum(not level.network for level in levels) - 1
    inside = [tree.gpu_y, *tree.y[: node + 1]]
    bottom, top = min(inside) - 0.27, max(inside) + 0.3
    if node < len(levels) - 1:
        for left, right in (span for (at, _), span in spans.items() if at == node):
            box = _rounded_box(left - 0.06, bottom, right - left + 0.12, top - bottom, 0.1)
            box.set(facecolor="#F5F5F5", edgecolor=style.PALE, linewidth=0.8, zorder=0)
            axes.add_patch(box)
    for first, second, edge in graph.edges(data=True):
        at, kinds = edge["level"], {graph.nodes[vertex]["kind"] for vertex in (first, second)}
        if at >= len(levels) or (kinds == {"gpu", "adapter"} and levels[at].network):
            continue  # inside the box, which says it
        places = [tree.vertex(graph, vertex, top) for vertex in (first, second)]
        (x0, y0), (x1, y1) = sorted(places, key=lambda place: place[1])
        if {"switch"} != kinds:  # a bar is right above whoever is plugged into it
            x0 = x1 = x0 if y0 < tree.y[at] else x1
        faster = sum(levels[at].bandwidth >= limit for limit in (2e9, 10e9, 40e9, 150e9, 400e9))
        look: style.Look = {"linewidth": 0.6 + 0.6 * faster, "zorder": 1, "solid_capstyle": "butt"}
        axes.plot([x0, x1], [y0, y1], color=colours[at], **look)
    middle: style.Look = {"ha": "center", "va": "center"}
    for (at, _), (left, right) in spans.items():
        bar = _rounded_box(left, tree.y[at] - 0.1, right - left, 0.2, 0.06)
        bar.set(facecolor=colours[at], linewidth=0, zorder=2)
        axes.add_patch(bar)
        if right - left > 0.55:
            colour = ink or style.text_colour(colours[at])
            axes.text((left + right) / 2, tree.y[at], levels[at].name, size=8, color=colour, **middle)
    for vertex, data in graph.nodes(data=True):
        if data["kind"] == "adapter" and data["level"] < len(levels):
            x, y = tree.vertex(graph, vertex, top)
            adapter = Rectangle((x - 0.055, y - 0.04), 0.11, 0.08, fc="white", ec=style.INK, lw=0.8, zorder=3)
            axes.add_patch(adapter)
    side = tree.side
    for gpu, x in tree.gpu_x.items():
        corner = (x - side / 2, tree.gpu_y - side / 2)
        axes.add_patch(Rectangle(corner, side, side, facecolor=style.BLUE, linewidth=0, zorder=3))
        if len(tree.gpu_x) <= 8:
            axes.text(x, tree.gpu_y, str(gpu), size=7, color="white", zorder=4, **middle)
    for at, x, count in tree.omissions:
        y = tree.gpu_y if at == 0 else tree.y[at - 1]
        axes.text(x, y, f"× {grouped(count)}", size=10, color=style.SOFT, **middle)


def _rounded_box(x: float, y: float, width: float, height: float, radius: float) -> FancyBboxPatch:
    """Rectangle with rounded corners."""
    return FancyBboxPatch((x, y), width, height, boxstyle=f"round,pad=0,rounding_size={radius}")


def _describe(axes: Axes, tree: _Tree, at: int, use: Sequence[LinkUse] | None) -> None:
    """Write a level's name and links beside it; with a plan, draw bars of the share of the step that they are
    busy."""
    level, x = tree.levels[at], _TREE + 0.25
    size, inner = tree.size(at), tree.size(at - 1)
    y = tree.y[at] + (0.2 if use is not None else 0.09)
    rate = f"{level.kind}, {format_bandwidth(level.bandwidth)} a GPU, {format_seconds(level.latency)}"
    axes.text(x, y, level.name, weight="bold", va="center")
    axes.text(x + _text_inches(level.name) + 0.1, y, rate, va="center")
    count = -(-tree.cluster.num_gpus // size)
    words = f"joins {grouped(-(-size // inner))} × {tree.levels[at - 1].name if at else 'GPU'}"
    words += f", {grouped(count)} times" if count > 1 else ""
    words += f"; {format_bandwidth(inner * level.bandwidth)} out of each" if at else ""
    axes.text(x, y - 0.18, words, va="center", size=8, color=style.SOFT)
    if use is None:
        return
    y, left, right = y - 0.4, x, x + _FULL + 0.08
    axes.add_patch(Rectangle((x, y - 0.07), _FULL, 0.14, facecolor=style.FAINT, linewidth=0))
    for link in use:
        width, words = min(_FULL * link.share, x + _FULL - left), f"{link.axis} {share_text(link.share)}"
        axes.add_patch(Rectangle((left, y - 0.07), width, 0.14, facecolor=_colour([link]), linewidth=0))
        axes.text(right, y, words, va="center", weight="bold", color=_colour([link]))
        left, right = left + width, right + _text_inches(words) + 0.1
    if not use:
        axes.text(right, y, "idle", va="center", size=9, color=style.SOFT)


def _text_inches(name: str) -> float:
    """Width of a name in bold, in inches."""
    return style.text_points(name, 9, "bold") / style.POINTS_PER_INCH


def _colour(use: Sequence[LinkUse] | None) -> str:
    """Colour of a level: grey without a plan or traffic, else the colour of the axis that uses its links most."""
    if not use:
        return style.SOFT if use is None else style.PALE
    return style.TIME_COLOURS[f"{max(use, key=lambda link: link.share).axis}_comm"]
