"""Figure of a cluster's links by level: the GPUs and switches they join, their bandwidth, their share of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.textpath import TextToPath

from cost_models.communication.topology import Level, link_graph, used_levels
from cost_models.pipeline.pricing import LinkUse
from cost_models.specs.cluster import ClusterSpec
from cost_models.units import format_bandwidth, format_seconds, grouped
from meshwright.plots import style
from meshwright.render.links import share_text

TREE = 6.0
"""Inches of the tree's width."""
ROW, LOW = 0.86, 0.42
"""Inches between rows, and below the lowest."""
_MOST_GPUS, _MOST_OTHERS, _LEAVES = 8, 4, 16
"""GPUs of one domain, other members of one, and GPUs in all that are drawn one by one."""


@dataclass(slots=True)
class Places:
    """Places of GPUs and switches, inches."""

    y: list[float]
    """Height of the switches of each level."""
    gpus: float
    gpu_x: dict[int, float] = field(default_factory=dict)
    spans: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    """(level, domain) → left and right end."""
    more: list[tuple[int, float, int]] = field(default_factory=list)
    """Members left out: level, x, how many."""
    right: float = 0.0
    side: float = 0.2
    """Side of a GPU's square."""


def levels_below(levels: Sequence[Level]) -> int:
    """Levels drawn below the GPUs: those of the first medium, where another follows inside the node."""
    openings = [at for at, level in enumerate(levels) if level.opens and not level.network]
    return openings[1] if len(openings) > 1 else 0


def domain_size(cluster: ClusterSpec, levels: Sequence[Level], at: int) -> int:
    """GPUs of one domain of a level; below the first, one."""
    if at < 0:
        return 1
    return min(levels[at].gpus or cluster.num_gpus, cluster.num_gpus)


def _members_drawn(cluster: ClusterSpec, levels: Sequence[Level]) -> list[int]:
    """Members of each level's domains that are drawn: all where there is room, else the first and how many more."""
    members = [
        -(-domain_size(cluster, levels, at) // domain_size(cluster, levels, at - 1))
        for at in range(len(levels))
    ]
    sizes = [1] * len(levels)
    order = [0, len(levels) - 1, *range(1, len(levels) - 1)]  # GPUs first, then the widest level
    for at in dict.fromkeys(order):
        max_members = _MOST_GPUS if at == 0 else _MOST_OTHERS
        gpus = 1
        for size in sizes:
            gpus *= size
        room = max(1, _LEAVES // gpus)
        few = (1 if len(levels) > 3 else 2) if at else 4
        sizes[at] = members[at] if members[at] <= min(max_members, room) else min(few, room)
    return sizes


def place_cluster(cluster: ClusterSpec, levels: Sequence[Level], levels_below_gpus: int) -> Places:
    """GPUs from the left, a gap wider for every level between them, scaled to the width of the tree."""
    rows = [LOW + ROW * at for at in range(len(levels) + 1)]
    gpus = rows.pop(levels_below_gpus)
    places = Places(y=rows, gpus=gpus)
    sizes = _members_drawn(cluster, levels)
    _place_domain(cluster, levels, sizes, len(levels) - 1, 0, places)
    left, width = 0.45, max(places.right, 1.0)
    scale = min(1.0, (TREE - 0.9) / width)
    shift = left + (TREE - 0.9 - width * scale) / 2
    places.side = min(places.side, 0.24 * scale)
    places.gpu_x = {gpu: shift + x * scale for gpu, x in places.gpu_x.items()}
    places.spans = {key: (shift + a * scale, shift + b * scale) for key, (a, b) in places.spans.items()}
    places.more = [(at, shift + x * scale, count) for at, x, count in places.more]
    return places


def _place_domain(
    cluster: ClusterSpec, levels: Sequence[Level], sizes: list[int], at: int, first: int, places: Places
) -> None:
    """One domain of a level, whose first GPU is `first`."""
    if at < 0:
        places.gpu_x[first] = places.right
        places.right += 0.3
        return
    size, inner = domain_size(cluster, levels, at), domain_size(cluster, levels, at - 1)
    members = -(-min(size, cluster.num_gpus - first) // inner)
    begin = places.right
    for member in range(min(sizes[at], members)):
        if member:
            places.right += 0.16 * at + 0.2 * levels[at].network
        _place_domain(cluster, levels, sizes, at - 1, first + member * inner, places)
    end = places.right
    if members > sizes[at]:
        places.more.append((at, places.right + 0.36, members - sizes[at]))
        places.right += 1.0
        end = places.right
    places.spans[at, first // size] = (begin - 0.15, end - 0.15)


_WIDTH, _TITLE = 11.4, 0.75
"""Inches: the picture, and what the title takes."""
_FULL = 2.3
"""Inches of a bar that is full."""


def topology(
    cluster: ClusterSpec, finding: str, subject: str, use: Sequence[LinkUse] | None = None
) -> Figure:
    """A tree from the GPUs up; beside each level its links and, with a plan, the share of the step they are busy."""
    levels = used_levels(cluster)
    with style.drawing():
        below = levels_below(levels)
        height = LOW + ROW * len(levels) + 0.45 + _TITLE
        figure = style.new_figure(_WIDTH, height)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_xlim(0, _WIDTH)
        axes.set_ylim(0, height)
        axes.axis("off")
        places = place_cluster(cluster, levels, below)
        _draw_tree(axes, cluster, levels, places, use)
        for at, level in enumerate(levels):
            level_use = None if use is None else [link for link in use if link.level.name == level.name]
            _describe(axes, cluster, levels, at, places.y[at], level_use)
        figure.set_layout_engine("constrained")
        style.put_title(figure, finding, subject)
        figure.set_layout_engine("none")
    return figure


def _draw_tree(
    axes: Axes, cluster: ClusterSpec, levels: Sequence[Level], places: Places, use: Sequence[LinkUse] | None
) -> None:
    graph = link_graph(cluster, sorted(places.gpu_x))
    node = sum(not level.network for level in levels) - 1
    half = 0.1
    top = max([places.gpus, *places.y[: node + 1]]) + 0.3
    if node < len(levels) - 1:
        bottom = min([places.gpus, *places.y[: node + 1]]) - 0.27
        for (at, _), (left, right) in places.spans.items():
            if at == node:
                axes.add_patch(_node_box(left - 0.06, bottom, right - left + 0.12, top - bottom))
    for vertex_a, vertex_b, edge in graph.edges(data=True):
        at = edge["level"]
        if at >= len(levels):
            continue
        ends = [_vertex_place(graph, vertex, places, top) for vertex in (vertex_a, vertex_b)]
        kinds = {graph.nodes[vertex]["kind"] for vertex in (vertex_a, vertex_b)}
        if kinds == {"gpu", "adapter"} and levels[at].network:
            continue  # inside the box, which says it
        colour = _colour(levels[at], use)
        (x0, y0), (x1, y1) = sorted(ends, key=lambda end: end[1])
        if {"switch"} != kinds:  # a bar is right above whoever is plugged into it
            x1 = x0 if y0 < places.y[at] else x1
            x0 = x1 if y0 >= places.y[at] else x0
        width = _line_width(levels[at])
        axes.plot([x0, x1], [y0, y1], color=colour, linewidth=width, zorder=1, solid_capstyle="butt")
    for (at, _), (left, right) in places.spans.items():
        colour, shape = _colour(levels[at], use), "round,pad=0,rounding_size=0.06"
        corner, size = (left, places.y[at] - half), (right - left, 2 * half)
        axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=shape, facecolor=colour, linewidth=0, zorder=2))
        if right - left > 0.55:
            name = levels[at].name
            ink = "white" if use is None else style.text_colour(colour)
            axes.text((left + right) / 2, places.y[at], name, ha="center", va="center", size=8, color=ink)
    for vertex, data in graph.nodes(data=True):
        if data["kind"] == "adapter" and data["level"] < len(levels):
            x, y = _vertex_place(graph, vertex, places, top)
            corner = (x - 0.055, y - 0.04)
            axes.add_patch(Rectangle(corner, 0.11, 0.08, fc="white", ec=style.INK, lw=0.8, zorder=3))
    side = places.side
    for gpu, x in places.gpu_x.items():
        corner = (x - side / 2, places.gpus - side / 2)
        axes.add_patch(Rectangle(corner, side, side, facecolor=style.BLUE, linewidth=0, zorder=3))
        if len(places.gpu_x) <= 8:
            axes.text(x, places.gpus, str(gpu), ha="center", va="center", size=7, color="white", zorder=4)
    for at, x, count in places.more:
        y = places.gpus if at == 0 else places.y[at - 1]
        axes.text(x, y, f"× {grouped(count)}", ha="center", va="center", size=10, color=style.SOFT)


def _vertex_place(graph: networkx.Graph[str], vertex: str, places: Places, top: float) -> tuple[float, float]:
    data = graph.nodes[vertex]
    if data["kind"] == "gpu":
        return places.gpu_x[data["index"]], places.gpus
    if data["kind"] == "switch":
        left, right = places.spans.get((data["level"], data["index"]), (0.0, 0.0))
        return (left + right) / 2, places.y[data["level"]] if data["level"] < len(places.y) else top
    of = [
        places.gpu_x[graph.nodes[one]["index"]] for one in graph[vertex] if graph.nodes[one]["kind"] == "gpu"
    ]
    return sum(of) / len(of), top


def _describe(
    axes: Axes,
    cluster: ClusterSpec,
    levels: Sequence[Level],
    at: int,
    y: float,
    use: Sequence[LinkUse] | None,
) -> None:
    """Write the name and links of a level beside it, and for a plan a bar of the share of the step they are busy."""
    level, x = levels[at], TREE + 0.25
    size, inner = domain_size(cluster, levels, at), domain_size(cluster, levels, at - 1)
    lift = 0.2 if use is not None else 0.09
    rate = f"{level.kind}, {format_bandwidth(level.bandwidth)} a GPU, {format_seconds(level.latency)}"
    axes.text(x, y + lift, level.name, weight="bold", va="center")
    axes.text(x + _text_inches(level.name) + 0.1, y + lift, rate, va="center")
    count = -(-cluster.num_gpus // size)
    members_words = f"joins {grouped(-(-size // inner))} × {levels[at - 1].name if at else 'GPU'}"
    members_words += f", {grouped(count)} times" if count > 1 else ""
    if at:
        members_words += f"; {format_bandwidth(inner * level.bandwidth)} out of each"
    axes.text(x, y + lift - 0.18, members_words, va="center", size=8, color=style.SOFT)
    if use is not None:
        _draw_busy(axes, x, y + lift - 0.4, use)


def _text_inches(name: str) -> float:
    """Inches of a name in bold."""
    font = FontProperties(family="sans-serif", size=9, weight="bold")
    return TextToPath().get_text_width_height_descent(name, font, ismath=False)[0] / style.POINTS_PER_INCH


def _draw_busy(axes: Axes, x: float, y: float, use: Sequence[LinkUse]) -> None:
    """A bar of the whole step, filled axis by axis."""
    axes.add_patch(Rectangle((x, y - 0.07), _FULL, 0.14, facecolor=style.FAINT, linewidth=0))
    left = x
    for link in use:
        width = min(_FULL * link.share, x + _FULL - left)
        colour = style.TIME_COLOURS[f"{link.axis}_comm"]
        axes.add_patch(Rectangle((left, y - 0.07), width, 0.14, facecolor=colour, linewidth=0))
        left += width
    if not use:
        axes.text(x + _FULL + 0.08, y, "idle", va="center", size=9, color=style.SOFT)
    right = x + _FULL + 0.08
    for link in use:
        words = f"{link.axis} {share_text(link.share)}"
        axes.text(right, y, words, va="center", weight="bold", color=style.TIME_COLOURS[f"{link.axis}_comm"])
        right += _text_inches(words) + 0.1


def _colour(level: Level, use: Sequence[LinkUse] | None) -> str:
    """Grey, and with a plan the colour of the axis that uses the links of a level most."""
    if use is None:
        return style.SOFT
    level_use = [link for link in use if link.level.name == level.name]
    if not level_use:
        return style.PALE
    return style.TIME_COLOURS[f"{max(level_use, key=lambda link: link.share).axis}_comm"]


def _line_width(level: Level) -> float:
    """Points: wider the faster, by the logarithm."""
    width = 0.6
    for limit in (2e9, 10e9, 40e9, 150e9, 400e9):
        width += 0.6 * (level.bandwidth >= limit)
    return width


def _node_box(x: float, y: float, width: float, height: float) -> FancyBboxPatch:
    rounded = "round,pad=0,rounding_size=0.1"
    return FancyBboxPatch(
        (x, y), width, height, boxstyle=rounded, fc="#F5F5F5", ec=style.PALE, lw=0.8, zorder=0
    )
