"""The Gantt chart of a step: the whole of it above, its first actions with their numbers below."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from meshwright.plots import style
from meshwright.plots.style import Frame
from meshwright.render.words import percent, time_unit

_ZOOM_ACTIONS = 26
"""Actions of the first rank that the lower chart shows: enough for the warm-up, few enough to read their numbers."""
_BAR = 0.82
"""Height of a bar in rows."""
_LIGHTEST = 0.62
"""How far the last chunk's colour is mixed with white."""
_NUMBER_POINTS = 7.0
_KINDS = {
    "F": ("forward", style.BLUE),
    "B": ("backward", style.GREEN),
    "I": ("backward to the input", style.PURPLE),
    "W": ("backward to the weights", style.ORANGE),
}
"""Name and colour of each kind of action."""
_MAX_NUMBERED_RANKS = 20


def timeline(frame: Frame, ranks: int, subject: str) -> Figure:
    """Forwards and backwards on every pipeline rank; chunks of one rank are lighter shades.

    Args:
        frame: a row per action with `rank`, `kind` (F, B, or its halves I and W), `chunk`, `microbatch`,
            `start_seconds`, `end_seconds`.
        ranks: pipeline ranks.
        subject: which plan.
    """
    step_seconds = float(frame["end_seconds"].max())
    window = _window(frame)
    zoomed, numbers = window < 0.9 * step_seconds, ranks <= _MAX_NUMBERED_RANKS
    row_inches = max(0.12, min(0.42, 5.0 / ranks))
    with style.drawing():
        heights = (
            [0.3 + 0.5 * ranks * row_inches, 0.4 + ranks * row_inches]
            if zoomed
            else [0.4 + ranks * row_inches]
        )
        figure = style.new_figure(11.0, 2.1 + sum(heights) + 0.4 * len(heights))
        charts = list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
        if zoomed:
            _draw(charts[0], frame, ranks, (0.0, step_seconds), numbers=False)
            charts[0].set_title(f"the whole step: {_length(step_seconds)}", loc="left", size=9)
            charts[0].axvline(window / time_unit(step_seconds)[1], color=style.VERMILION, linewidth=1.6)
            detail = f"its first {_length(window)}, up to the red line"
            charts[1].set_title(detail + (", microbatch in each bar" if numbers else ""), loc="left", size=9)
        shown = frame[frame["start_seconds"] < (window if zoomed else step_seconds)]
        limits = (0.0, window if zoomed else step_seconds)
        _draw(charts[-1], shown, ranks, limits, numbers=numbers)
        _legend(
            figure, [kind for kind in _KINDS if kind in set(frame["kind"])], int(frame["chunk"].max()) + 1
        )
        style.put_title(figure, _finding(frame, ranks, step_seconds), subject)
    return figure


def _length(seconds: float) -> str:
    unit, scale = time_unit(seconds)
    return f"{seconds / scale:.3g} {unit}"


def _window(frame: Frame) -> float:
    """Where the detail ends: the first rank's first actions, and every rank has begun its backward passes."""
    first = frame[frame["rank"] == 0].sort_values("start_seconds")
    enough = float(first["end_seconds"].iloc[min(_ZOOM_ACTIONS, len(first)) - 1])
    backward = frame[frame["kind"] != "F"].groupby("rank")["end_seconds"].min()
    return max(enough, float(backward.max()))


def _draw(axes: Axes, frame: Frame, ranks: int, limits: tuple[float, float], *, numbers: bool) -> None:
    """Bars, numbers where they have room, and axes; all in the unit of the limit."""
    unit, scale = time_unit(limits[1])
    chunks = int(frame["chunk"].max()) + 1
    corners, colours = [], []
    for action in frame.itertuples():
        start, end = action.start_seconds / scale, action.end_seconds / scale
        low, high = action.rank - _BAR / 2, action.rank + _BAR / 2
        corners.append([(start, low), (end, low), (end, high), (start, high)])
        colours.append(_shade(action.kind, action.chunk, chunks))
    line = 0.4 if numbers else 0.0
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=line))
    axes.set_xlim(limits[0], limits[1] / scale)
    axes.set_ylim(ranks - 0.4, -0.6)
    step = -(-ranks // _MAX_NUMBERED_RANKS)
    axes.set_yticks(range(0, ranks, step))
    axes.set_ylabel("pipeline rank")
    axes.set_xlabel(f"time ({unit})")
    axes.grid(False)
    if numbers:
        _number(axes, frame, limits[1], chunks, scale)


def _number(axes: Axes, frame: Frame, end: float, chunks: int, scale: float) -> None:
    """Write the microbatch into each bar wide enough for its digits."""
    points = 72 * 9.6  # points across the chart: its width less the labels at its left
    for action in frame.itertuples():
        width_points = (min(action.end_seconds, end) - action.start_seconds) / end * points
        text = str(action.microbatch)
        if width_points < (len(text) + 0.5) * 0.62 * _NUMBER_POINTS or action.end_seconds > end:
            continue
        middle = (action.start_seconds + action.end_seconds) / 2 / scale
        light = _KINDS[action.kind][1] not in style.DARK or (chunks > 1 and action.chunk > (chunks - 1) / 2)
        colour = style.INK if light else "white"
        axes.text(
            middle, action.rank, text, ha="center", va="center_baseline", size=_NUMBER_POINTS, color=colour
        )


def _shade(kind: str, chunk: int, chunks: int) -> tuple[float, float, float]:
    """The colour of the kind; later chunks nearer to white."""
    light = _LIGHTEST * chunk / max(1, chunks - 1)
    red, green, blue = to_rgb(_KINDS[kind][1])
    return (red + (1 - red) * light, green + (1 - green) * light, blue + (1 - blue) * light)


def _legend(figure: Figure, kinds: list[str], chunks: int) -> None:
    def name(kind: str, chunk: int) -> str:
        return f"{_KINDS[kind][0]}{f', chunk {chunk}' if chunks > 1 else ''}"

    some = range(chunks) if chunks <= 4 else (0, chunks - 1)
    handles = [
        Patch(facecolor=_shade(kind, chunk, chunks), label=name(kind, chunk))
        for kind in kinds
        for chunk in some
    ]
    handles.append(Patch(facecolor="white", edgecolor=style.PALE, label="idle"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 7 if len(kinds) <= 2 else 5),
        handlelength=1.0,
    )


def _finding(frame: Frame, ranks: int, step_seconds: float) -> str:
    busy = float((frame["end_seconds"] - frame["start_seconds"]).sum())
    idle = 1 - busy / (ranks * step_seconds)
    return f"Pipeline ranks are idle {percent(idle)} of the time between first forward and last backward"
