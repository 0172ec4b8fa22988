"""The Gantt chart of a step: the whole of it above, its start and a piece of its steady state below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cost_models.units import format_seconds
from meshwright.plots.parts import lanes, style, ticks
from meshwright.plots.parts.lanes import Rows
from meshwright.plots.parts.pools import PoolSpan, mark_along_y
from meshwright.plots.parts.style import Frame
from meshwright.render.words import percent, time_unit

_START_ACTIONS, _STEADY_ACTIONS = 20, 12
"""Actions of the first rank that a detail shows: few enough to read their numbers."""
_WIDTH_INCHES = 12.0
_SHARES = (0.58, 0.42)
"""Of the width: the start, which also holds the warm-up, and the steady state."""
_MARGIN_INCHES = 0.7
_BAR = 0.82
"""Height of a bar in rows."""
_LIGHTEST = 0.62
"""How far the last chunk's colour is mixed with white."""
_NUMBER_POINTS = 7.0
PASSES = {
    "F": ("forward", style.BLUE),
    "B": ("backward", style.GREEN),
    "I": ("backward to the input", style.PURPLE),
    "W": ("backward to the weights", style.ORANGE),
}
"""Name and colour of each kind of pass."""
_ONCE = {
    "sync": ("dp comm", style.VERMILION),
    "offload": ("waits for the host", style.NAVY),
    "optimizer": ("optimizer", style.INK),
    "overhead": ("host", style.PALE),
}
"""The same of what follows the passes."""
_KINDS = PASSES | _ONCE
_MAX_NUMBERED_RANKS = 20


class Window(NamedTuple):
    """A piece of the step; seconds."""

    name: str
    start: float
    end: float


def timeline(frame: Frame, ranks: int, subject: str, *, pools: Sequence[PoolSpan] = ()) -> Figure:
    """Forwards and backwards on every pipeline rank; chunks of one rank are lighter shades.

    Args:
        frame: a row per action with `rank`, `kind` (F, B, or its halves I and W; after them sync, offload, optimizer
            and overhead), `chunk`, `microbatch`, `start_seconds`, `end_seconds`; rows with a `lane` are moves to and
            from host memory, drawn in lanes below their rank.
        ranks: pipeline ranks.
        subject: which plan.
        pools: with several pools, which ranks lie in which.
    """
    whole = Window("the whole step", 0.0, float(frame["end_seconds"].max()))
    frame, moves = _apart(frame)
    rows = Rows(ranks, [] if moves is None else list(dict.fromkeys(moves["lane"])))
    details = _details(frame, whole)
    unit = time_unit(whole.end)
    row_inches = max(0.12, min(0.42, 5.0 / rows.height))
    numbers = ranks <= _MAX_NUMBERED_RANKS
    with style.drawing():
        heights = (
            [0.5 + 0.5 * rows.height * row_inches, 0.4 + rows.height * row_inches]
            if details
            else [rows.height * row_inches]
        )
        figure = style.new_figure(_WIDTH_INCHES, 2.4 + sum(heights) + 0.5 * len(details[:1]))
        shares = _SHARES if len(details) > 1 else (1.0,)
        grid = figure.add_gridspec(len(heights), len(shares), height_ratios=heights, width_ratios=shares)
        above = figure.add_subplot(grid[0, :])
        below = [figure.add_subplot(grid[1, place]) for place in range(len(details))]
        charts = [(above, whole, 1.0, numbers and not details)]
        charts += [
            (axes, window, share, numbers)
            for axes, window, share in zip(below, details, shares, strict=False)
        ]
        for axes, window, share, numbered in charts:
            written = draw(axes, frame, rows, window, unit, points=chart_points(share) if numbered else 0.0)
            if moves is not None:
                lanes.draw_moves(axes, moves, rows, window.start, window.end, unit[1])
            _name(axes, window, numbered=written, side="left" if axes in below else "right")
            mark_along_y(axes, pools, named=axes in (above, *below[-1:]))
        for axes in (above, *below[:1]):
            axes.set_ylabel("pipeline rank")
        for axes in below[1:]:
            axes.tick_params(labelleft=False, which="both")
        for window in details:
            _outline(above, window, unit)
        moved = [] if moves is None else lanes.entries(moves)
        legend(figure, set(frame["kind"]), int(frame["chunk"].max()) + 1, moved, idle=ranks > 1)
        finding = _finding(frame, ranks, whole.end)
        if moves is not None:
            finding += f"; {_busiest(moves, whole.end)}"
        style.put_title(figure, finding, subject)
    return figure


def _apart(frame: Frame) -> tuple[Frame, Frame | None]:
    """What ranks do themselves, and the moves beside that."""
    if "lane" not in frame:
        return frame, None
    return frame[frame["lane"] == ""], frame[frame["lane"] != ""]


def _details(frame: Frame, whole: Window) -> list[Window]:
    """The start until every rank has gone backward once, and some actions in the middle; none of a short step."""
    passes = frame[frame["kind"].isin(list(PASSES))]
    first = passes[passes["rank"] == 0].sort_values("start_seconds")
    enough = float(first["end_seconds"].iloc[min(_START_ACTIONS, len(first)) - 1])
    begun = float(passes[passes["kind"] != "F"].groupby("rank")["end_seconds"].min().max())
    start = Window("start", 0.0, max(enough, begun))
    if start.end >= 0.9 * whole.end:
        return []
    ending = float(passes[passes["kind"] == "F"].groupby("rank")["start_seconds"].max().min())
    steady = first[(first["start_seconds"] >= start.end) & (first["end_seconds"] <= ending)]
    if len(steady) < _STEADY_ACTIONS:
        return [start]
    begin = (len(steady) - _STEADY_ACTIONS) // 2
    some = steady.iloc[begin : begin + _STEADY_ACTIONS]
    ends = float(some["start_seconds"].min()), float(some["end_seconds"].max())
    return [start, Window("steady state", *ends)]


def draw(
    axes: Axes, frame: Frame, rows: Rows, window: Window, unit: tuple[str, float], *, points: float
) -> bool:
    """Bars in that unit, the microbatch in those wide enough; says whether in most. `points` wide; 0: no numbers."""
    name, scale = unit
    shown = frame[(frame["start_seconds"] < window.end) & (frame["end_seconds"] > window.start)]
    chunks = int(frame["chunk"].max()) + 1
    corners, colours = [], []
    for action in shown.itertuples():
        start = max(action.start_seconds, window.start) / scale
        end = min(action.end_seconds, window.end) / scale
        middle = rows.of_rank(action.rank)
        low, high = middle - _BAR / 2, middle + _BAR / 2
        corners.append([(start, low), (end, low), (end, high), (start, high)])
        colours.append(_shade(action.kind, action.chunk, chunks))
    bars = PolyCollection(corners, facecolors=colours, rasterized=len(corners) > lanes.MANY_BARS)
    bars.set(edgecolor="white" if points else "face", linewidth=0.4 if points else 0.2)
    axes.add_collection(bars)
    axes.set_xlim(window.start / scale, window.end / scale)
    rows.name(axes, _MAX_NUMBERED_RANKS)
    axes.set_xlabel(f"time ({name})")
    ticks.linear(axes.xaxis)
    axes.grid(False)
    return _number(axes, shown, rows, window, chunks, scale, points) if points else False


def _number(
    axes: Axes, shown: Frame, rows: Rows, window: Window, chunks: int, scale: float, points: float
) -> bool:
    """Write the microbatch into each whole pass wide enough for its digits; says whether most are."""
    passes = shown[shown["kind"].isin(list(PASSES))]
    per_second = points / (window.end - window.start)
    written = 0
    for action in passes.itertuples():
        text = str(action.microbatch)
        wide = (action.end_seconds - action.start_seconds) * per_second
        whole = action.start_seconds >= window.start and action.end_seconds <= window.end
        if not whole or wide < (len(text) + 0.5) * 0.62 * _NUMBER_POINTS:
            continue
        written += 1
        middle = (action.start_seconds + action.end_seconds) / 2 / scale
        light = _KINDS[action.kind][1] not in style.DARK or (chunks > 1 and action.chunk > (chunks - 1) / 2)
        ink = style.INK if light else "white"
        axes.text(
            middle,
            rows.of_rank(action.rank),
            text,
            ha="center",
            va="center_baseline",
            size=_NUMBER_POINTS,
            color=ink,
        )
    return written > len(passes) / 2


def chart_points(share: float) -> float:
    """Across a chart of that share of the figure's width, without the labels at its left."""
    return style.POINTS_PER_INCH * (share * _WIDTH_INCHES - _MARGIN_INCHES)


def _name(axes: Axes, window: Window, *, numbered: bool, side: Literal["left", "right"]) -> None:
    """What the chart shows, above it; on the right where the names of details are."""
    words = f"{window.name}: {format_seconds(window.end - window.start)}"
    words += f" from {format_seconds(window.start)} on" if window.start else ""
    axes.set_title(words + (", microbatch in each bar" if numbered else ""), loc=side, size=9)


def _outline(axes: Axes, window: Window, unit: tuple[str, float]) -> None:
    """Where a detail lies in the whole step, by name."""
    scale = unit[1]
    axes.axvspan(
        window.start / scale,
        window.end / scale,
        facecolor="none",
        edgecolor=style.INK,
        linewidth=1.4,
        clip_on=False,
    )
    middle = (window.start + window.end) / 2 / scale
    look = {"ha": "center", "va": "bottom", "size": 8, "weight": "bold"}
    style.beside(axes, window.name, (middle, 1.0), (0, 2), xycoords=axes.get_xaxis_transform(), **look)


def _shade(kind: str, chunk: int, chunks: int) -> tuple[float, float, float]:
    """The colour of the kind; later chunks nearer to white."""
    light = _LIGHTEST * max(chunk, 0) / max(1, chunks - 1)
    red, green, blue = to_rgb(_KINDS[kind][1])
    return (red + (1 - red) * light, green + (1 - green) * light, blue + (1 - blue) * light)


def legend(figure: Figure, kinds: set[str], chunks: int, moved: Sequence[Patch] = (), *, idle: bool) -> None:
    """What the colours mean."""

    def name(kind: str, chunk: int) -> str:
        return f"{_KINDS[kind][0]}{f', chunk {chunk}' if chunks > 1 else ''}"

    some = range(chunks) if chunks <= 4 else (0, chunks - 1)
    passes = [kind for kind in PASSES if kind in kinds]
    handles = [
        Patch(facecolor=_shade(kind, chunk, chunks), label=name(kind, chunk))
        for kind in passes
        for chunk in some
    ]
    handles += [
        Patch(facecolor=colour, label=words) for kind, (words, colour) in _ONCE.items() if kind in kinds
    ]
    handles += [Patch(facecolor="white", edgecolor=style.PALE, label="idle")] if idle else []
    handles += moved
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 8 if len(passes) <= 2 else 6),
        handlelength=1.0,
    )


def _finding(frame: Frame, ranks: int, step_seconds: float) -> str:
    """How long ranks wait for one another; of a single one, what its step consists of."""
    passes = frame[frame["kind"].isin(list(PASSES))]
    seconds = passes["end_seconds"] - passes["start_seconds"]
    if ranks == 1:
        forward = float(seconds[passes["kind"] == "F"].sum()) / step_seconds
        backward = float(seconds[passes["kind"] != "F"].sum()) / step_seconds
        rest = max(0.0, 1 - forward - backward)
        return f"Forward takes {percent(forward)} of the step, backward {percent(backward)}, the rest {percent(rest)}"
    idle = 1 - float(seconds.sum()) / (ranks * float(passes["end_seconds"].max()))
    return f"Pipeline ranks are idle {percent(idle)} of the time between first forward and last backward"


def _busiest(moves: Frame, step_seconds: float) -> str:
    """Which lane is busy longest, and for how much of the step."""
    busy = (moves["end_seconds"] - moves["start_seconds"]).groupby([moves["rank"], moves["lane"]]).sum()
    (_, lane), seconds = busy.idxmax(), float(busy.max())
    return f"the {lane} is busy for {percent(seconds / step_seconds)}"
