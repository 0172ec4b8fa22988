"""Building blocks of pictures: stacked bars with legend and limits, and labels that overlap nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from cost_models.units import format_bytes
from meshwright.plots import style
from meshwright.plots.style import Frame
from meshwright.render.words import part_label, size_unit

_MIN_LABEL_SHARE = 0.045
"""Smallest piece of a bar that carries a number, as a share of the longest bar."""
_VISIBLE_SHARE = 0.004
"""Smallest piece that is in the legend, as a share of the longest bar."""
_IN_A_ROW = 9
"""Largest number of entries in a row of a legend."""
_FAR_LIMIT = 4.0
"""Ratio of the memory limit to the highest bar above which the limit is written, not drawn."""
_MEMORY_BAR = 0.74
_MAX_NUMBERED_BARS, _MAX_TICKS = 16, 24
_LABEL_HEIGHT = 0.05
"""Height of the number above a bar, as a share of the axis."""


def stack_bars(
    axes: Axes,
    values: Frame,
    colours: dict[str, str],
    width: float,
    *,
    horizontal: bool = False,
    numbers: bool = True,
    reach: float = 0.0,
) -> None:
    """Draw stacked bars: a bar per row of `values`, a piece per column, and its number in each piece that is long
    enough, as a share of the longest bar or of `reach`."""
    min_length = _MIN_LABEL_SHARE * max(reach, values.sum(axis=1).max())
    start = np.zeros(len(values))
    for part in values:
        colour, lengths = colours[str(part)], values[part].to_numpy()
        look: style.Look = {"color": colour, "edgecolor": "white", "linewidth": 0.8}
        if horizontal:
            axes.barh(range(len(values)), lengths, left=start, height=width, **look)
        else:
            axes.bar(range(len(values)), lengths, bottom=start, width=width, **look)
        for row in np.flatnonzero(lengths >= min_length).tolist() if numbers else ():
            x, y = (start[row] + lengths[row] / 2, row)[:: 1 if horizontal else -1]
            ink = style.text_colour(colour)
            axes.text(x, y, f"{lengths[row]:.1f}", color=ink, size=8, **style.MIDDLE)
        start = start + lengths


def visible_parts(frame: Frame, colours: dict[str, str]) -> dict[str, str]:
    """Colours of the parts (columns) large enough to be seen in some bar."""
    colours = {part: colour for part, colour in colours.items() if part in frame}
    reach = float(frame[[*colours]].sum(axis=1).max())
    return {part: colours[part] for part in colours if float(frame[part].max()) > _VISIBLE_SHARE * reach}


def part_legend(figure: Figure, colours: dict[str, str], *other_handles: Artist) -> None:
    """Draw a legend of the parts' colours below the chart, in as few rows as possible."""
    parts = [Patch(facecolor=colour, label=part_label(part)) for part, colour in colours.items()]
    handles = [*parts, *other_handles]
    columns = math.ceil(len(handles) / math.ceil(len(handles) / _IN_A_ROW))
    place: style.Look = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles=handles, **place, handlelength=1.0, columnspacing=1.4)


def draw_memory_bars(
    axes: Axes,
    parts: Frame,
    limits: Sequence[float],
    colours: dict[str, str],
    name: str,
    *,
    air: float = 0.14,
) -> list[str]:
    """Draw a stacked memory bar with its total for each row of `parts` (bytes), under dashed limits; return the parts
    labelled beside a single bar.

    Args:
        axes: an empty chart.
        parts: a column per part.
        limits: bytes that each bar may reach; NaN: unknown.
        colours: of the parts.
        name: of the quantity.
        air: above the highest bar or limit, as a share of it.
    """
    parts = parts[[part for part in colours if part in parts and parts[part].max() > 0]]
    totals, count = parts.sum(axis=1).to_numpy(), len(parts)
    near = max(limits) <= _FAR_LIMIT * totals.max()
    highest = max(totals.max(), *limits) if near else totals.max()
    unit, scale = size_unit(highest)
    reach, top = highest / scale, (1 + air) * highest / scale
    numbers = count <= _MAX_NUMBERED_BARS
    stack_bars(axes, parts / scale, colours, _MEMORY_BAR, numbers=numbers, reach=reach)
    axes.set(ylim=(0, top), xlim=(-0.6, max(count - 0.4, 1.0)))
    known = [format_bytes(limit) for limit in dict.fromkeys(limits) if limit == limit]
    words = f"limit {' and '.join(known) or 'unknown'}"
    if near:
        _draw_limits(axes, np.array(limits) / scale, words)
    else:
        words += ", far above ↑" if known else ""
        style.write_in_chart(axes, 0.995, 0.97, words, ha="right", weight="bold")
    step = -(-count // _MAX_TICKS)
    axes.set_xticks(range(0, count, step))
    for bar in range(0, count, step):
        height, room, limit = totals[bar] / scale, _LABEL_HEIGHT * top, limits[bar] / scale
        # the line would run through the number
        if near and height - 0.2 * room < limit < height + 1.2 * room:
            height = limit + 0.05 * room
        number = axes.text(bar, height + 0.2 * room, f"{totals[bar] / scale:.1f}", ha="center")
        number.set_bbox(style.white_box(1.0, 0.6))
    style.name_axes(axes, y=f"{name} ({unit})", grid="y", linear="y")
    if count > 1:
        return []
    ends = parts.iloc[0].cumsum() / scale
    named_parts = [part for part in parts if parts[part].iloc[0] >= _MIN_LABEL_SHARE * totals[0]]
    for part in named_parts:
        axes.text(0.42, ends[part] - parts[part].iloc[0] / scale / 2, part_label(part), va="center")
    return named_parts


def _draw_limits(axes: Axes, limits: Any, words: str) -> None:
    """Draw a dashed line at the limit of each upright bar."""
    left, right = axes.get_xlim()
    ends = np.repeat([left, *(np.arange(1, len(limits)) - 0.5), right], 2)[1:-1]
    axes.plot(ends, np.repeat(limits, 2), color=style.INK, linewidth=1.4, linestyle=style.DASHES)
    line = axes.text(right, limits[-1] + 0.014 * axes.get_ylim()[1], words, ha="right", weight="bold")
    line.set_bbox(style.white_box(0.85))


_T = TypeVar("_T")
_DISTANCES = (5.0, 13.0, 24.0)
"""Distances in points between a mark and its label, nearest first; from the second on, a line joins them."""
_SIDES = {
    ("left", "top"): (1, -1),
    ("left", "bottom"): (1, 1),
    ("right", "bottom"): (-1, 1),
    ("right", "top"): (-1, -1),
    ("left", "center"): (1, 0),
    ("right", "center"): (-1, 0),
}
"""Corner or edge of the label beside its point, preferred first → direction from the point."""
_AWAY = 0.2
"""Share of the way from point to label at which the joining line starts."""
_MARK_POINTS = 5.0
"""Diameter in points of a mark, which no label may cover."""
_AIR = 2.5
"""Points of space between a label and other text, lines and marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Text beside one point of a chart."""

    text: str
    at: tuple[float, float]
    """Point that the label names, in data coordinates."""
    colour: str
    size: float = 7.5
    weight: str = "normal"
    needed: bool = False
    """Whether the label is written even if it overlaps something."""


def ends_first(labels: Sequence[_T], count: int) -> list[_T]:
    """At most `count` evenly spaced labels: the last and first, then those between."""
    places = np.unique(np.linspace(0, len(labels) - 1, min(count, len(labels))).round().astype(int)).tolist()
    inner = places[1:-1]
    return [labels[place] for place in dict.fromkeys([*places[-1:], *places[:1], *inner[::2], *inner[1::2]])]


def put_labels(
    axes: Axes,
    labels: Sequence[Label],
    *,
    lines: Iterable[Line2D] = (),
    marks: Iterable[tuple[float, float]] = (),
    texts: Iterable[Artist] = (),
) -> list[Annotation]:
    """Write labels beside their points where they overlap nothing; a label without a free place is left out unless it
    is needed.

    Args:
        axes: whose limits and place in the figure will not change any more.
        labels: the most important first; one without a free place is left out.
        lines: what no label may cross.
        marks: points no label may cover, beside those of the labels.
        texts: what is already written there.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # lays the figure out: before, no place in it is known
    scale = figure.dpi / 72.0
    paths = [line.get_transform().transform_path(line.get_path()) for line in lines]
    boxes = [text.get_window_extent() for text in texts]
    places = [axes.transData.transform(point) for point in [*[label.at for label in labels], *marks]]
    dots = [Bbox([place, place]).padded(_MARK_POINTS / 2 * scale) for place in places]
    written = []
    for place, label in zip(places, labels, strict=False):
        note, inside = _note(axes, label), []
        obstacles = [*boxes, *(dot for dot in dots if not dot.contains(*place))]
        for distance, side in product(_DISTANCES, _SIDES):
            box, leader = _move(note, place, distance, side, _AIR * scale)
            if not (axes.bbox.contains(*box.min) and axes.bbox.contains(*box.max)):
                continue
            inside.append((distance, side))
            touches = any(box.overlaps(obstacle) or _crosses(leader, obstacle) for obstacle in obstacles)
            crosses = any(_crosses(path, box) or path.intersects_path(leader, filled=False) for path in paths)
            if not touches and not crosses:
                break
        else:
            if not label.needed:
                note.remove()
                continue
            first = inside[0] if inside else next(product(_DISTANCES, _SIDES))
            box, leader = _move(note, place, *first, _AIR * scale)
        boxes.append(box)
        paths.append(leader)
        written.append(note)
    return written


def _crosses(path: Path, box: Bbox) -> bool:
    """Whether a path's line crosses a box."""
    return len(path) > 0 and path.intersects_bbox(box, filled=False)


def _move(
    note: Annotation, point: Any, distance: float, side: tuple[str, str], air: float
) -> tuple[Bbox, Path]:
    """Place a label beside its point; return the box of its text and the line from the point to it, in pixels."""
    right, up = _SIDES[side]
    note.set(ha=side[0], va=side[1], position=(distance * right, distance * up))
    assert note.arrow_patch is not None
    is_led = distance > _DISTANCES[0]
    note.arrow_patch.set_visible(is_led)
    note.get_window_extent()  # puts the words where they now belong
    box = Text.get_window_extent(note).padded(air)
    end = np.clip(point, box.min, box.max)
    ends = [point + _AWAY * (end - point), end]
    return box, Path(np.array(ends if is_led else ends[:0]).reshape(-1, 2))


def _note(axes: Axes, label: Label) -> Annotation:
    """Create a label's text and its joining line, not yet placed."""
    line: style.Look = {"linewidth": 0.6, "color": label.colour, "shrinkA": 0.5, "shrinkB": 2.5}
    look: style.Look = {"size": label.size, "weight": label.weight, "color": label.colour}
    look |= {"linespacing": 1.15, "bbox": style.white_box(pad=0.8), "annotation_clip": False}
    arrow = {"arrowstyle": "-", **line}
    note = axes.annotate(label.text, label.at, (0, 0), textcoords="offset points", arrowprops=arrow, **look)
    note.set_in_layout(False)
    return note
