"""Building blocks of pictures: stacked bars with legend and limits, and labels that overlap nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
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
_MEMORY_BAR, _AIR_ABOVE = 0.74, 0.2
"""Share of its place that a memory bar fills, and share of the highest bar or limit that stays free above it."""
_MAX_NUMBERED_BARS, _MAX_TICKS = 16, 24


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
    enough, as a share of the longest bar or of `reach`; columns that are seen in some bar are labelled."""
    longest = values.sum(axis=1).max()
    draw, start = axes.barh if horizontal else axes.bar, np.zeros(len(values))
    for part in values:
        colour, lengths = colours[str(part)], values[part].to_numpy()
        look: style.Look = {"color": colour, "edgecolor": "white", "linewidth": 0.8}
        if lengths.max() > _VISIBLE_SHARE * longest:
            look["label"] = part_label(str(part))
        bars = draw(range(len(values)), lengths, width, start, **look)
        if numbers:
            min_length = _MIN_LABEL_SHARE * max(reach, longest)
            texts = [f"{length:.1f}" if length >= min_length else "" for length in lengths]
            ink = style.text_colour(colour)
            axes.bar_label(bars, texts, label_type="center", color=ink, size=8)
        start = start + lengths


def labelled_artists(*charts: Axes) -> dict[str, Artist]:
    """Labelled artists of the charts, by label."""
    pairs = [axes.get_legend_handles_labels() for axes in charts]
    return {label: artist for artists, labels in pairs for artist, label in zip(artists, labels, strict=True)}


def legend_below(figure: Figure, *charts: Axes) -> None:
    """Draw a legend of the charts' labelled artists below them, in as few rows as possible."""
    names = labelled_artists(*charts)
    columns = math.ceil(len(names) / math.ceil(len(names) / _IN_A_ROW))
    place: style.Look = {"loc": "outside lower center", "ncols": columns}
    figure.legend(names.values(), names, **place, handlelength=1.0, columnspacing=1.4)


def draw_memory_bars(
    axes: Axes, parts: Frame, limits: Sequence[float], colours: dict[str, str], name: str
) -> None:
    """Draw a stacked memory bar with its total for each row of `parts` (bytes), under dashed limits.

    Args:
        axes: an empty chart.
        parts: a column per part.
        limits: bytes that each bar may reach; NaN: unknown.
        colours: of the parts.
        name: of the quantity.
    """
    parts = parts[[part for part in colours if part in parts and parts[part].max() > 0]]
    totals, count = parts.sum(axis=1).to_numpy(), len(parts)
    near = max(limits) <= _FAR_LIMIT * totals.max()
    highest = max(totals.max(), *limits) if near else totals.max()
    unit, scale = size_unit(highest)
    reach, numbers = highest / scale, count <= _MAX_NUMBERED_BARS
    stack_bars(axes, parts / scale, colours, _MEMORY_BAR, numbers=numbers, reach=reach)
    axes.set(ylim=(0, (1 + _AIR_ABOVE) * reach), xlim=(-0.6, count - 0.4))
    known = [format_bytes(limit) for limit in dict.fromkeys(limits) if limit == limit]
    words = f"limit {' and '.join(known) or 'unknown'}"
    if near:
        places = np.repeat([-0.6, *(np.arange(1, count) - 0.5), count - 0.4], 2)[1:-1]
        heights = np.repeat(np.array(limits) / scale, 2)
        axes.plot(places, heights, color=style.INK, linewidth=1.4, linestyle=style.DASHES)
        look: style.Look = {"ha": "right", "weight": "bold", "bbox": style.white_box(0.85)}
        style.write_beside(axes, words, (places[-1], heights[-1]), (0, 3), **look)
    else:
        words += ", far above ↑" if known else ""
        style.write_in_chart(axes, 0.995, 0.97, words, ha="right", weight="bold")
    bars = range(0, count, -(-count // _MAX_TICKS))
    axes.set_xticks(bars)
    sizes = [f"{total / scale:.1f}" if bar in bars else "" for bar, total in enumerate(totals)]
    axes.bar_label(axes.containers[-1], sizes, padding=3, bbox=style.white_box(1.0, 0.6))  # type: ignore[arg-type]
    style.name_axes(axes, y=f"{name} ({unit})", grid="y")


_LABEL_DISTANCE = 6.0
"""Points between a mark and its label."""
_SIDES = {
    ("left", "top"): (1, -1),
    ("left", "bottom"): (1, 1),
    ("right", "bottom"): (-1, 1),
    ("right", "top"): (-1, -1),
    ("left", "center"): (1, 0),
    ("right", "center"): (-1, 0),
}
"""Corner or edge of the label beside its point, preferred first → direction from the point."""
_MARK_POINTS = 5.0
"""Diameter in points of a mark, which no label may cover."""
_AIR = 2.5
"""Points of space between a label and other text, lines and marks."""
_OUTSIDE = 1000
"""Overlaps that a place outside the chart counts as."""


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


def put_labels(
    axes: Axes,
    labels: Sequence[Label],
    *,
    lines: Iterable[Line2D] = (),
    marks: Iterable[tuple[float, float]] = (),
) -> None:
    """Write each label at the side of its point where it overlaps nothing; a label without such a side is left out
    unless it is needed.

    Args:
        axes: whose limits and place in the figure will not change any more.
        labels: the most important first.
        lines: what no label may cross.
        marks: points that no label may cover, beside those of the labels.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # lays the figure out: before, no place in it is known
    pixels = figure.dpi / style.POINTS_PER_INCH
    paths = [line.get_transform().transform_path(line.get_path()) for line in lines]
    points = axes.transData.transform([*[label.at for label in labels], *marks])
    written = [*axes.texts, *filter(None, [axes.get_legend()])]
    obstacles = [text.get_window_extent() for text in written]
    obstacles += [Bbox([point, point]).padded(_MARK_POINTS / 2 * pixels) for point in points]
    for label in labels:
        look: style.Look = {"size": label.size, "weight": label.weight, "color": label.colour}
        note = axes.annotate(
            label.text, label.at, (0, 0), textcoords="offset points", linespacing=1.15, **look
        )
        note.set(in_layout=False, bbox=style.white_box(pad=0.8))
        overlaps = {}
        for side in _SIDES:
            box = _move(note, side, _AIR * pixels)
            crossed = sum(path.intersects_bbox(box, filled=False) for path in paths)
            is_outside = axes.bbox.count_contains(box.corners()) < 4
            overlaps[side] = box.count_overlaps(obstacles) + crossed + _OUTSIDE * is_outside
        best = min(_SIDES, key=overlaps.__getitem__)
        if overlaps[best] and not label.needed:
            note.remove()
        else:
            obstacles.append(_move(note, best, _AIR * pixels))


def _move(note: Annotation, side: tuple[str, str], air: float) -> Bbox:
    """Move a label to a side of its point; return the box of its text with air around it, in pixels."""
    right, up = _SIDES[side]
    note.set(ha=side[0], va=side[1], position=(_LABEL_DISTANCE * right, _LABEL_DISTANCE * up))
    return note.get_window_extent().padded(air)
