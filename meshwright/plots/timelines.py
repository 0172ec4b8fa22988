"""Figures of a step over time: a row for each pipeline rank, and measured passes above planned ones.

Below a rank lie lanes of its moves to and from host memory. On a cluster of several pools each rank has the name of its
pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cost_models.arrays import Array
from cost_models.units import format_seconds
from meshwright.plots import style
from meshwright.plots.layouts import PoolSpan
from meshwright.plots.style import Frame
from meshwright.render.words import percent, time_unit

_LANE_HEIGHT = 0.62
"""Height of a lane of moves, in rows."""
_MOVE_HEIGHT = 0.8
"""Height of a move's bar, as a share of its lane."""
_MAX_NAMED_RANKS = 8
"""Largest number of ranks with names at their lanes."""
_MANY_BARS = 2000
"""Number of bars above which SVG and PDF hold them as pixels."""
_MOVES = {
    "weights": ("weights", style.SKY),
    "gradients": ("gradients", style.YELLOW),
    "activations": ("activations", style.ORANGE),
    "states": ("states of the optimizer", style.PURPLE),
    "add": ("gradients added up", style.GREY),
    "update": ("update on the CPU", style.BROWN),
}
"""Kind of move between device, host and drive → name and colour."""
_START_ACTIONS, _STEADY_ACTIONS = 20, 12
"""Actions of the first rank that a detail shows: few enough to read their numbers."""
_HARDLY_SEEN = 0.03
"""Share of the step below which work after the passes gets an enlarged view."""
_WIDTH_INCHES = 12.0
_SHARES = (0.58, 0.42)
"""Shares of the width for the views of the start (with warm-up) and of the steady state."""
_MARGIN_INCHES = 0.7
_PASS_BAR = 0.82
"""Height of a pass's bar, in rows."""
_LIGHTEST = 0.62
"""Share of white in the colour of a rank's last chunk."""
_NUMBER_POINTS = 7.0
_PASSES = {
    "F": ("forward", style.BLUE),
    "B": ("backward", style.GREEN),
    "I": ("backward to the input", style.PURPLE),
    "W": ("backward to the weights", style.ORANGE),
}
"""Kind of pass → name and colour."""
_ONCE = {
    "sync": ("dp comm", style.VERMILION),
    "offload": ("waits for the host", style.NAVY),
    "optimizer": ("optimizer", style.INK),
    "overhead": ("host", style.PALE),
}
"""Kind of work after the passes, done once a step → name and colour."""
_ACTIONS = _PASSES | _ONCE
_MAX_NUMBERED_RANKS = 20


class TimeSpan(NamedTuple):
    """Named part of a step, from `start` to `end` in seconds."""

    name: str
    start: float
    end: float


@style.drawing()
def timeline(frame: Frame, ranks: int, subject: str, *, pools: Sequence[PoolSpan] = ()) -> Figure:
    """Gantt chart of a step: a row per pipeline rank, bars for forward and backward passes; later chunks (model
    pieces on a rank) are lighter.

    Args:
        frame: a row per action with `rank`, `kind` (F, B, or its halves I and W; after them sync, offload, optimizer
            and overhead), `chunk`, `microbatch`, `start_seconds`, `end_seconds`; rows with a `lane` are moves to and
            from host memory, drawn in lanes below their rank.
        ranks: pipeline ranks.
        subject: which plan.
        pools: with several pools, which ranks lie in which.
    """
    step = TimeSpan("the whole step", 0.0, float(frame["end_seconds"].max()))
    moves = frame[frame["lane"] != ""] if "lane" in frame else frame[:0]
    frame = frame.drop(moves.index)
    finding = _timeline_finding(frame, ranks, step.end)
    if len(moves):
        finding += f"; {_busiest_lane(moves, step.end)}"
    lanes = list(dict.fromkeys(moves["lane"])) if len(moves) else []
    details = _detail_windows(frame, step)
    rows = ranks * (1 + _LANE_HEIGHT * len(lanes))
    heights = [rows * max(0.12, min(0.42, 5.0 / rows))]
    if details:
        heights = [0.5 + 0.5 * heights[0], 0.4 + heights[0]]
    figure = style.new_figure(_WIDTH_INCHES, 2.4 + sum(heights) + 0.5 * len(details[:1]), finding, subject)
    shares = _SHARES if len(details) > 1 else (1.0,)
    places: Any = [[step.name] * len(shares), *[[span.name for span in details]] * bool(details)]
    charts = figure.subplot_mosaic(places, height_ratios=heights, width_ratios=shares)
    step_axes, *detail_axes = charts.values()
    unit = time_unit(step.end)
    for axes, span, share in zip([step_axes, *detail_axes], [step, *details], (1.0, *shares), strict=False):
        is_detail = axes is not step_axes
        numbered = ranks <= _MAX_NUMBERED_RANKS and (is_detail == bool(details) or ranks == 1)
        part = 1 / (1 + _LANE_HEIGHT * len(lanes))
        _name_rows(axes, ranks, lanes, part)
        written = _draw_passes(axes, frame, span, unit, part, share if numbered else 0.0)
        places = moves["rank"] + _lane_places(
            np.array([lanes.index(lane) for lane in moves.get("lane", ())]), part
        )
        colours = np.array([to_rgb(_MOVES[kind][1]) for kind in moves["kind"]])
        _draw_bars(axes, moves, places, part * _LANE_HEIGHT * _MOVE_HEIGHT, colours, unit[1], 0.2)
        words = f"{span.name}: {format_seconds(span.end - span.start)}"
        words += f" from {format_seconds(span.start)} on" if span.start else ""
        side: Literal["left", "right"] = "left" if is_detail or ranks == 1 else "right"
        axes.set_title(words + (", microbatch in each bar" if written else ""), loc=side, size=9)
        _mark_pools(axes, pools, has_names=axes is [step_axes, *detail_axes][-1])
    for axes in (step_axes, *detail_axes[:1]):
        axes.set_ylabel("pipeline rank" if ranks > 1 else "")
    for axes in detail_axes[1:]:
        axes.tick_params(labelleft=False, which="both")
    for span in details:
        start, end = span.start / unit[1], span.end / unit[1]
        step_axes.axvspan(start, end, facecolor="none", edgecolor=style.INK, linewidth=1.4, clip_on=False)
        look: style.Look = {"ha": "center", "va": "bottom", "size": 8, "weight": "bold"}
        across = step_axes.get_xaxis_transform()
        style.write_beside(step_axes, span.name, ((start + end) / 2, 1.0), (0, 2), xycoords=across, **look)
    looks = [_MOVES[kind] for kind in _MOVES if kind in set(moves["kind"])]
    _pass_legend(figure, frame, ranks, [Patch(facecolor=colour, label=name) for name, colour in looks])
    return figure


def _detail_windows(frame: Frame, step: TimeSpan) -> list[TimeSpan]:
    """Parts of a step to enlarge: the start (until every rank went backward once) and some actions of the steady
    state; empty for a short step.

    Of a single rank, which never waits, the end of the step where what follows the passes is hardly seen.
    """
    passes = _passes_of(frame)
    if frame["rank"].max() == 0:
        tail = step.end - float(passes["end_seconds"].max())
        is_hidden = 0 < tail < _HARDLY_SEEN * step.end
        return [TimeSpan("end", step.end - 1.5 * tail, step.end)] if is_hidden else []
    forwards = passes["kind"] == "F"
    first = passes[passes["rank"] == 0].sort_values("start_seconds")
    actions_end = float(first["end_seconds"].iloc[:_START_ACTIONS].iloc[-1])
    first_backward_end = float(passes[~forwards].groupby("rank")["end_seconds"].min().max())
    start = TimeSpan("start", 0.0, max(actions_end, first_backward_end))
    if start.end >= 0.9 * step.end:
        return []
    last_forward_start = float(passes[forwards].groupby("rank")["start_seconds"].max().min())
    steady = first[(first["start_seconds"] >= start.end) & (first["end_seconds"] <= last_forward_start)]
    begin = (len(steady) - _STEADY_ACTIONS) // 2
    if begin < 0:
        return [start]
    middle = steady.iloc[begin : begin + _STEADY_ACTIONS]
    ends = float(middle["start_seconds"].min()), float(middle["end_seconds"].max())
    return [start, TimeSpan("steady state", *ends)]


def _passes_of(frame: Frame) -> Frame:
    """Rows of forward and backward passes, without other work."""
    return frame[frame["kind"].isin(list(_PASSES))]


def _lane_places(lanes: Array, part: float) -> Array:
    """Places of lanes below the middle of their rank, whose passes take `part` of its row."""
    return part * (0.5 + _LANE_HEIGHT * (lanes + 0.5))


def _name_rows(axes: Axes, ranks: int, lanes: Sequence[str], part: float) -> None:
    """Set limits and ticks of rows: numbers of ranks, and names of lanes if there is room; passes take `part` of a
    rank's row, above its lanes."""
    axes.set_ylim(ranks - 0.4 * part, -0.6 * part)
    axes.set_yticks(range(0, ranks, -(-ranks // _MAX_NUMBERED_RANKS)))
    if lanes and ranks <= _MAX_NAMED_RANKS:
        places = np.add.outer(
            np.arange(ranks), _lane_places(np.arange(len(lanes), dtype=np.float64), part)
        ).ravel()
        axes.set_yticks(places, [*lanes] * ranks, minor=True, size=7)
        axes.tick_params(axis="y", which="minor", length=0)


def _mark_pools(axes: Axes, spans: Sequence[PoolSpan], *, has_names: bool) -> None:
    """Write the names of GPU pools right of their ranks, with lines between pools."""
    look: style.Look = {"rotation": 270, "va": "center", "color": style.SOFT, "weight": "bold"}
    for span in spans:
        middle = (span.first + span.last) / 2
        if has_names:
            axes.text(1.008, middle, span.name, transform=axes.get_yaxis_transform(), **look)
        if span.first:
            axes.axhline(span.first - 0.5, color=style.GREY, linewidth=0.9)


def _draw_passes(
    axes: Axes, frame: Frame, span: TimeSpan, unit: tuple[str, float], part: float, share: float
) -> bool:
    """Draw bars of passes within `span`, with microbatch numbers in bars wide enough; return whether most bars have
    numbers.

    `part`: of a rank's row that passes take; `share`: of the figure's width that the chart has; 0: no numbers.
    """
    name, scale = unit
    actions = frame[(frame["start_seconds"] < span.end) & (frame["end_seconds"] > span.start)]
    chunks = int(frame["chunk"].max()) + 1
    passes = zip(actions["kind"], actions["chunk"], strict=True)
    colours = np.array([_pass_colour(*action, chunks) for action in passes])
    _draw_bars(axes, actions, actions["rank"], part * _PASS_BAR, colours, scale, 0.4 if share else 0.0)
    axes.set(xlim=(span.start / scale, span.end / scale), xlabel=f"time ({name})")
    axes.xaxis.set_major_formatter(style.NUMBERS)
    axes.grid(False)
    passes = _passes_of(actions)
    points = style.POINTS_PER_INCH * (share * _WIDTH_INCHES - _MARGIN_INCHES) / (span.end - span.start)
    written = 0
    for action in passes.itertuples() if share else ():
        text, length = str(action.microbatch), action.end_seconds - action.start_seconds
        is_whole = action.start_seconds >= span.start and action.end_seconds <= span.end
        if not is_whole or length * points < (len(text) + 0.5) * 0.62 * _NUMBER_POINTS:
            continue
        written += 1
        is_light = chunks > 1 and action.chunk > (chunks - 1) / 2
        ink = style.INK if is_light else style.text_colour(_PASSES[action.kind][1])
        middle = (action.start_seconds + action.end_seconds) / 2 / scale
        axes.text(
            middle, action.rank, text, size=_NUMBER_POINTS, color=ink, ha="center", va="center_baseline"
        )
    return written > len(passes) / 2


def _draw_bars(
    axes: Axes, frame: Frame, places: Frame, height: float, colours: Frame, scale: float, edge: float
) -> None:
    """Draw a white-edged bar for each row at its place; `scale` is the seconds in a unit of the axis, `edge` the
    edge's width in points."""
    left, right = (frame[f"{side}_seconds"].to_numpy(float) / scale for side in ("start", "end"))
    low, high = (places.to_numpy(float) + side * height / 2 for side in (-1, 1))
    corners = np.array([[left, low], [right, low], [right, high], [left, high]]).transpose(2, 0, 1)
    bars = PolyCollection(list(corners), facecolors=colours, rasterized=len(corners) > _MANY_BARS)
    bars.set(edgecolor="white" if edge else "face", linewidth=edge or 0.2)
    axes.add_collection(bars)


def _pass_colour(kind: str, chunk: int, chunks: int) -> tuple[float, float, float]:
    """RGB colour of an action by kind, lighter for later chunks."""
    white_share = _LIGHTEST * max(chunk, 0) / max(1, chunks - 1)
    red, green, blue = (part + (1 - part) * white_share for part in to_rgb(_ACTIONS[kind][1]))
    return red, green, blue


def _pass_legend(figure: Figure, frame: Frame, ranks: int, patches: Sequence[Patch] = ()) -> None:
    """Draw the legend: passes by chunk, work after the passes, idle time, and moves (`patches`)."""
    kinds, chunks = set(frame["kind"]), int(frame["chunk"].max()) + 1
    named_chunks = range(chunks) if chunks <= 4 else (0, chunks - 1)
    passes = [kind for kind in _PASSES if kind in kinds]
    handles = []
    for kind, chunk in product(passes, named_chunks):
        label = _PASSES[kind][0] + (f", chunk {chunk}" if chunks > 1 else "")
        handles.append(Patch(facecolor=_pass_colour(kind, chunk, chunks), label=label))
    handles += [Patch(facecolor=_ONCE[kind][1], label=_ONCE[kind][0]) for kind in _ONCE if kind in kinds]
    handles += [Patch(facecolor="white", edgecolor=style.PALE, label="idle")] if ranks > 1 else []
    handles += patches
    columns = min(len(handles), 8 if len(passes) <= 2 else 6)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=1.0)


def _timeline_finding(frame: Frame, ranks: int, step_seconds: float) -> str:
    """Title of the timeline: share of time that pipeline ranks are idle; for a single rank, shares of forward and
    backward."""
    passes = _passes_of(frame)
    seconds = passes["end_seconds"] - passes["start_seconds"]
    if ranks == 1:
        forward = float(seconds[passes["kind"] == "F"].sum()) / step_seconds
        backward = float(seconds[passes["kind"] != "F"].sum()) / step_seconds
        rest = max(0.0, 1 - forward - backward)
        return f"Forward takes {percent(forward)} of the step, backward {percent(backward)}, the rest {percent(rest)}"
    idle = 1 - float(seconds.sum()) / (ranks * float(passes["end_seconds"].max()))
    return f"Pipeline ranks are idle {percent(idle)} of the time between first forward and last backward"


def _busiest_lane(moves: Frame, step_seconds: float) -> str:
    """Words on the busiest channel for host copies or CPU updates, with its share of the step: "the drive is busy for
    31.2 %"."""
    busy = (moves["end_seconds"] - moves["start_seconds"]).groupby([moves["rank"], moves["lane"]]).sum()
    (_, lane), seconds = busy.idxmax(), float(busy.max())
    return f"the {lane} is busy for {percent(seconds / step_seconds)}"


_NEGLIGIBLE_DELAY = 0.02
"""Smallest relative delay of a pipeline rank's passes that the title mentions."""


@style.drawing()
def timelines(measured: Frame, planned: Frame, ranks: int, subject: str) -> Figure:
    """Two Gantt charts, measured passes above planned ones, a row per pipeline rank.

    Args:
        measured: a row per pass with `rank` (its place in the pipeline), `kind`, `chunk`, `microbatch`,
            `start_seconds`, `end_seconds`.
        planned: the same of the plan, and what follows the passes.
        ranks: places of the pipeline.
        subject: which plan and which run.
    """
    end = max(float(frame["end_seconds"].max()) for frame in (measured, planned))
    unit, share = time_unit(end), 1.0 if ranks <= 16 else 0.0
    height = max(0.6, min(3.5, 0.42 * ranks))
    finding = _timelines_finding(measured, planned, ranks)
    figure = style.new_figure(_WIDTH_INCHES, 2.8 + 2 * height, finding, subject)
    charts = figure.subplots(2, 1, sharex=True)
    for axes, frame, words in zip(
        charts, (measured, planned), ("measured, until the last pass", "planned, the step"), strict=True
    ):
        _name_rows(axes, ranks, (), 1.0)
        _draw_passes(axes, frame, TimeSpan("", 0.0, end), unit, 1.0, share)
        seconds = float(frame["end_seconds"].max())
        axes.set_title(f"{words}: {format_seconds(seconds)}", loc="left", size=9)
        axes.set_ylabel("pipeline rank")
        axes.axvline(seconds / unit[1], color=style.INK, linewidth=0.8)
    charts[0].set_xlabel("")
    _pass_legend(figure, planned, ranks)
    return figure


def _timelines_finding(measured: Frame, planned: Frame, ranks: int) -> str:
    """Title on passes: measured and planned seconds, and the rank that computes longest beside its plan."""
    busy, spans = [], []
    for frame in (measured, planned):
        passes = _passes_of(frame)
        busy.append((passes["end_seconds"] - passes["start_seconds"]).groupby(passes["rank"]).sum())
        spans.append(format_seconds(float(passes["end_seconds"].max() - passes["start_seconds"].min())))
    words = f"Passes take {spans[0]}, {spans[1]} were planned"
    delay_ratio = busy[0] / busy[1]
    worst = delay_ratio.idxmax()
    excess = float(delay_ratio[worst] / delay_ratio.drop(worst).median() - 1) if ranks > 1 else 0.0
    if excess > _NEGLIGIBLE_DELAY:
        words += f"; beside the others pipeline rank {worst} computes {percent(excess)} longer than planned"
    return words
