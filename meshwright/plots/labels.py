"""Labels beside points: each at the nearest place where it touches no other label, no line and no edge, or left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

_DISTANCES = (5.0, 13.0, 24.0, 38.0)
"""Points between a mark and its label, nearest first; from the second on a line leads to it."""
_SIDES = (
    ("left", "top"),
    ("left", "bottom"),
    ("right", "bottom"),
    ("right", "top"),
    ("left", "center"),
    ("right", "center"),
)
"""Which corner or edge of the label is next to its point, the best first."""
_MARK_POINTS = 5.0
"""Across a mark, that no label covers."""
_AIR = 1.5
"""Points between a label and what it must not touch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is written beside one point of a chart."""

    text: str
    at: tuple[float, float]
    """The point, in the units of the axes."""
    colour: str
    size: float = 7.5
    weight: str = "normal"
    needed: bool = False
    """It is written even where it touches something."""


def put_labels(
    axes: Axes,
    labels: Sequence[Label],
    *,
    lines: Iterable[Line2D] = (),
    marks: Iterable[tuple[float, float]] = (),
    texts: Iterable[Artist] = (),
    sides: Sequence[tuple[str, str]] = _SIDES,
) -> list[Annotation]:
    """Write the labels in their order, the first with the widest choice; for the finished figure only.

    Args:
        axes: whose limits and place in the figure will not change any more.
        labels: the most important first; one without a free place is left out.
        lines: what no label may cross.
        marks: points no label may cover, beside those of the labels.
        texts: what is already written there.
        sides: the places to try, as the corner of the label that is next to the point.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # lays the figure out: before, no place in it is known
    scale = figure.dpi / 72.0
    paths = [line.get_transform().transform_path(line.get_path()) for line in lines]
    taken = [text.get_window_extent() for text in texts]
    half = _MARK_POINTS / 2 * scale
    points = [label.at for label in labels] + list(marks)
    places = axes.transData.transform(np.reshape(points, (-1, 2)))
    dots = [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in places]
    written = []
    for number, label in enumerate(labels):
        note = _note(axes, label)
        others = taken + dots[:number] + dots[number + 1 :]
        if _settle(note, axes, others, paths, sides, scale) or label.needed:
            taken.append(_box(note, scale))
            written.append(note)
        else:
            note.remove()
    return written


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


def _settle(
    note: Annotation,
    axes: Axes,
    others: Sequence[Bbox],
    paths: Sequence[Path],
    sides: Sequence[tuple[str, str]],
    scale: float,
) -> bool:
    """Move it to the first free place; without one to the first that is inside the axes, and say so."""
    inside = None
    for distance, side in product(_DISTANCES, sides):
        _move(note, distance, side)
        box = _box(note, scale)
        if not _within(box, axes.bbox):
            continue
        inside = inside or (distance, side)
        if not any(box.overlaps(other) for other in others) and not any(
            path.intersects_bbox(box, filled=False) for path in paths
        ):
            return True
    _move(note, *(inside or (_DISTANCES[0], sides[0])))
    return False


def _move(note: Annotation, distance: float, side: tuple[str, str]) -> None:
    horizontal, vertical = side
    x = distance if horizontal == "left" else -distance
    y = {"top": -distance, "bottom": distance, "center": 0.0}[vertical]
    note.set(ha=horizontal, va=vertical, position=(x, y))
    assert note.arrow_patch is not None
    note.arrow_patch.set_visible(distance > _DISTANCES[0])


def _box(note: Annotation, scale: float) -> Bbox:
    """Of its words, without the line that leads to them."""
    note.get_window_extent()  # puts the words where they now belong
    return Text.get_window_extent(note).padded(_AIR * scale)


def _within(box: Bbox, frame: Bbox) -> bool:
    return bool(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)
