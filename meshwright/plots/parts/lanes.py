"""Rows of a timeline: one for each rank, and below it the lanes to host memory that its blocks move on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from meshwright.plots.parts import style
from meshwright.plots.parts.style import Frame

_LANE = 0.62
"""Height of a lane in rows."""
_FILLED = 0.8
"""Share of its lane that a move fills."""
_MOST_NAMED = 8
"""Ranks up to which every lane has its name."""
MANY_BARS = 2000
"""From which on they are pixels in SVG and PDF, too."""
_MOVES = {
    "weights": ("weights", style.SKY),
    "gradients": ("gradients", style.YELLOW),
    "activations": ("activations", style.ORANGE),
    "states": ("states of the optimizer", style.PURPLE),
    "add": ("gradients added up", style.GREY),
    "update": ("update on the CPU", style.BROWN),
}
"""Name and colour of each kind of move."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the ranks and their lanes lie, downwards; a rank without lanes is one row high."""

    ranks: int
    lanes: Sequence[str] = ()

    @property
    def height(self) -> float:
        """Of all ranks."""
        return self.ranks * self._rank

    @property
    def _rank(self) -> float:
        return 1 + _LANE * len(self.lanes)

    def of_rank(self, rank: int) -> float:
        """The middle of its own row."""
        return rank * self._rank

    def of_lane(self, rank: int, lane: str) -> float:
        """The middle of one of its lanes."""
        return self.of_rank(rank) + 0.5 + _LANE * (self.lanes.index(lane) + 0.5)

    def name(self, axes: Axes, most: int) -> None:
        """Limits and ticks of the chart: numbers of ranks, at most so many, and names of lanes where there is room."""
        axes.set_ylim(self.height - 0.4, -0.6)
        shown = range(0, self.ranks, -(-self.ranks // most))
        axes.set_yticks([self.of_rank(rank) for rank in shown], [str(rank) for rank in shown])
        if self.lanes and self.ranks <= _MOST_NAMED:
            places = [(rank, lane) for rank in range(self.ranks) for lane in self.lanes]
            axes.set_yticks(
                [self.of_lane(*place) for place in places], [lane for _, lane in places], minor=True, size=7
            )
            axes.tick_params(axis="y", which="minor", length=0)


def draw_moves(axes: Axes, moves: Frame, rows: Rows, start: float, end: float, scale: float) -> None:
    """Moves between two moments, as bars in their lanes; `scale` seconds are a unit of the axis."""
    shown = moves[(moves["start_seconds"] < end) & (moves["end_seconds"] > start)]
    corners, colours = [], []
    for move in shown.itertuples():
        left, right = max(move.start_seconds, start) / scale, min(move.end_seconds, end) / scale
        middle, half = rows.of_lane(move.rank, move.lane), _LANE * _FILLED / 2
        corners.append(
            [(left, middle - half), (right, middle - half), (right, middle + half), (left, middle + half)]
        )
        colours.append(_MOVES[move.kind][1])
    bars = PolyCollection(corners, facecolors=colours, rasterized=len(corners) > MANY_BARS)
    bars.set(edgecolor="white", linewidth=0.2)
    axes.add_collection(bars)


def entries(moves: Frame) -> list[Patch]:
    """Of the legend."""
    kinds = set(moves["kind"])
    return [Patch(facecolor=colour, label=words) for kind, (words, colour) in _MOVES.items() if kind in kinds]
