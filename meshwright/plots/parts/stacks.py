"""Bars of parts on one another: what plots of time and of memory share."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from meshwright.plots.parts import style
from meshwright.plots.parts.style import Frame
from meshwright.render.words import part_label

_MIN_LABEL_SHARE = 0.045
"""A bar's piece narrower than this share of the longest bar carries no number."""
_VISIBLE_SHARE = 0.004
"""Of the longest bar: what is narrower everywhere is not in the legend."""
_IN_A_ROW = 9
"""Entries of a legend's row."""


def stack(
    axes: Axes,
    values: Frame,
    colours: dict[str, str],
    *,
    horizontal: bool,
    width: float,
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
    start, named = 0.0, []
    for part, value in values.iloc[0].items():
        if value >= _MIN_LABEL_SHARE * values.iloc[0].sum():
            axes.text(at, start + value / 2, part_label(str(part)), va="center")
            named.append(str(part))
        start += value
    return named


def visible(frame: Frame, colours: dict[str, str]) -> list[str]:
    """Parts that can be seen somewhere, in the order of the colours."""
    parts = [part for part in colours if part in frame]
    reach = float(frame[parts].sum(axis=1).max())
    return [part for part in parts if float(frame[part].max()) > _VISIBLE_SHARE * reach]


def legend(figure: Figure, parts: list[str], colours: dict[str, str], *more: Artist) -> None:
    """The colour of each part below the chart, on as few lines as have room."""
    handles = [*(Patch(facecolor=colours[part], label=part_label(part)) for part in parts), *more]
    rows = math.ceil(len(handles) / _IN_A_ROW)
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=math.ceil(len(handles) / rows),
        handlelength=1.0,
        columnspacing=1.4,
    )
