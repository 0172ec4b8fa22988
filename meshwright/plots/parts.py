"""Parts of several pictures: bars of stacked parts with their legend, and labels beside points that overlap nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox, BboxBase

from cost_models.arrays import Array
from meshwright.plots import style
from meshwright.plots.style import Frame
from meshwright.render.words import part_label

_MIN_LABEL_SHARE = 0.045
"""A bar's piece narrower than this share of the longest bar carries no number."""
_VISIBLE_SHARE = 0.004
"""Smallest piece that is in the legend, as a share of the longest bar."""
_IN_A_ROW = 9
"""Entries of a legend's row."""


def stack_bars(
    axes: Axes,
    values: Frame,
    colours: dict[str, str],
    width: float,
    *,
    horizontal: bool = False,
    numbers: bool = True,
) -> None:
    """A bar per row of `values`, a piece per column, with the number in each piece that has room for it."""
    positions = list(range(len(values)))
    start = pd.Series(0.0, index=values.index)
    reach = values.sum(axis=1).max()
    for part in values:
        colour = colours[str(part)]
        look: dict[str, Any] = {"color": colour, "edgecolor": "white", "linewidth": 0.8}
        if horizontal:
            axes.barh(positions, values[part], left=start, height=width, **look)
        else:
            axes.bar(positions, values[part], bottom=start, width=width, **look)
        for place, (value, offset) in enumerate(zip(values[part], start, strict=True)):
            if numbers and value >= _MIN_LABEL_SHARE * reach:
                middle = offset + value / 2
                x, y = (middle, place) if horizontal else (place, middle)
                ink = style.text_colour(colour)
                axes.text(x, y, f"{value:.1f}", ha="center", va="center", color=ink, size=8)
        start = start + values[part]


def name_pieces(axes: Axes, values: Frame, at: float) -> list[str]:
    """Right of a single upright bar the names of the pieces that have room for one; says which."""
    start, named_parts = 0.0, []
    for part, value in values.iloc[0].items():
        if value >= _MIN_LABEL_SHARE * values.iloc[0].sum():
            axes.text(at, start + value / 2, part_label(str(part)), va="center")
            named_parts.append(str(part))
        start += value
    return named_parts


def visible_parts(frame: Frame, colours: dict[str, str]) -> list[str]:
    """Parts that can be seen somewhere, in the order of the colours."""
    parts = [part for part in colours if part in frame]
    reach = float(frame[parts].sum(axis=1).max())
    return [part for part in parts if float(frame[part].max()) > _VISIBLE_SHARE * reach]


def part_legend(figure: Figure, parts: list[str], colours: dict[str, str], *other_handles: Artist) -> None:
    """The colour of each part below the chart, on as few lines as have room."""
    handles = [*(Patch(facecolor=colours[part], label=part_label(part)) for part in parts), *other_handles]
    rows = math.ceil(len(handles) / _IN_A_ROW)
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=math.ceil(len(handles) / rows),
        handlelength=1.0,
        columnspacing=1.4,
    )


_T = TypeVar("_T")
Place = Array
"""Pixels across and up."""
_DISTANCES = (5.0, 13.0, 24.0)
"""Points between a mark and its label, nearest first; from the second on a line leads to it."""
_SIDES = (
    ("left", "top"),
    ("left", "bottom"),
    ("right", "bottom"),
    ("right", "top"),
    ("left", "center"),
    ("right", "center"),
)
"""Corner or edge of the label beside its point, preferred first."""
_MARK_POINTS = 5.0
"""Across a mark, that no label covers."""
_AIR = 2.5
"""Points between a label and other text, lines and marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Text beside one point of a chart."""

    text: str
    at: tuple[float, float]
    """The point, in the units of the axes."""
    colour: str
    size: float = 7.5
    weight: str = "normal"
    needed: bool = False
    """Write it even where it overlaps something."""


def ends_first(labels: Sequence[_T], most: int) -> list[_T]:
    """Choose at most `most` labels in even steps: the last and the first, then those between."""
    places = np.unique(np.linspace(0, len(labels) - 1, min(most, len(labels))).round().astype(int)).tolist()
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
    """Write the labels in their order, the first with the widest choice; for the finished figure only.

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
    half = _MARK_POINTS / 2 * scale
    places = [axes.transData.transform(point) for point in [*[label.at for label in labels], *marks]]
    occupied = _Taken(
        air=_AIR * scale,
        frame=axes.bbox,
        paths=[line.get_transform().transform_path(line.get_path()) for line in lines],
        boxes=[text.get_window_extent() for text in texts],
        dots=[Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in places],
    )
    written = []
    for place, label in zip(places, labels, strict=False):
        note = _note(axes, label)
        if _settle(note, occupied, place) or label.needed:
            occupied.add(note, place)
            written.append(note)
        else:
            note.remove()
    return written


@dataclass(slots=True, kw_only=True)
class _Taken:
    """Occupied places of a chart, in pixels."""

    air: float
    frame: BboxBase
    paths: list[Path]
    """Lines, and those that lead to labels."""
    boxes: list[Bbox]
    """Text."""
    dots: list[Bbox]

    def box(self, note: Annotation) -> Bbox:
        """Box of a note's words, without the leader line."""
        note.get_window_extent()  # puts the words where they now belong
        return Text.get_window_extent(note).padded(self.air)

    def leader(self, note: Annotation, place: Place) -> Path | None:
        """Leader line from a point to its words, or None."""
        assert note.arrow_patch is not None
        box = self.box(note)
        nearest = np.clip(place, box.min, box.max)
        return Path(np.stack([place, nearest])) if note.arrow_patch.get_visible() else None

    def has_inside(self, note: Annotation) -> bool:
        """Whether the words lie within the axes."""
        box, frame = self.box(note), self.frame
        return bool(np.all(frame.min <= box.min) and np.all(box.max <= frame.max))

    def is_free(self, note: Annotation, place: Place) -> bool:
        """Whether neither the words nor the line that leads to them touch anything but their own point."""
        box, leader = self.box(note), self.leader(note, place)
        others = self.boxes + [dot for dot in self.dots if not dot.contains(*place)]
        touched = any(box.overlaps(other) for other in others)
        crossed = any(path.intersects_bbox(box, filled=False) for path in self.paths)
        led_across = leader is not None and any(
            leader.intersects_bbox(other, filled=False) for other in others
        )
        return not (touched or crossed or led_across)

    def add(self, note: Annotation, place: Place) -> None:
        """Mark the place of a note as occupied."""
        self.boxes.append(self.box(note))
        leader = self.leader(note, place)
        self.paths += [leader] if leader is not None else []


def _note(axes: Axes, label: Label) -> Annotation:
    note = axes.annotate(
        label.text,
        label.at,
        textcoords="offset points",
        xytext=(0, 0),
        size=label.size,
        weight=label.weight,
        color=label.colour,
        linespacing=1.15,
        annotation_clip=False,
        bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.8},
        arrowprops={
            "arrowstyle": "-",
            "linewidth": 0.6,
            "color": label.colour,
            "shrinkA": 0.5,
            "shrinkB": 2.5,
        },
    )
    note.set_in_layout(False)
    return note


def _settle(note: Annotation, occupied: _Taken, place: Place) -> bool:
    """Move a note to the first free place. False: there is none, and it is at the first place inside the axes."""
    inside = None
    for distance, side in product(_DISTANCES, _SIDES):
        _move(note, distance, side)
        if occupied.has_inside(note):
            inside = inside or (distance, side)
            if occupied.is_free(note, place):
                return True
    _move(note, *(inside or (_DISTANCES[0], _SIDES[0])))
    return False


def _move(note: Annotation, distance: float, side: tuple[str, str]) -> None:
    horizontal, vertical = side
    x = distance if horizontal == "left" else -distance
    y = {"top": -distance, "bottom": distance, "center": 0.0}[vertical]
    note.set(ha=horizontal, va=vertical, position=(x, y))
    assert note.arrow_patch is not None
    note.arrow_patch.set_visible(distance > _DISTANCES[0])
