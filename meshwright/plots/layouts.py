"""Figures of one layout: memory of each rank, parts of the step time, blocks in host memory, the timeline of a step.

`memory_by_rank` and `time_breakdown` stack parts, `window` follows blocks into host memory, `timeline` is a Gantt chart
with a row for each pipeline rank and, below it, lanes of moves to and from host memory. On a cluster of several pools
ranks are marked with the name of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cost_models.estimate import fullness
from cost_models.pipeline.seconds import HIDDEN_PARTS
from cost_models.units import counted, format_bytes, format_seconds
from meshwright.plots import style
from meshwright.plots.parts import name_pieces, part_legend, stack_bars, visible_parts
from meshwright.plots.style import Frame, brief_layout, short_layout
from meshwright.render.words import change, lines_of, part_label, percent, size_unit, time_unit


class PoolSpan(NamedTuple):
    """Neighbouring pipeline ranks of one pool."""

    name: str
    first: int
    last: int


def pool_spans(pools: Sequence[str]) -> list[PoolSpan]:
    """The pool of each rank → spans of ranks; none where there is one pool only, or none is named."""
    spans: list[PoolSpan] = []
    for name, run in groupby(pools):
        first = spans[-1].last + 1 if spans else 0
        spans.append(PoolSpan(name, first, first + len(list(run)) - 1))
    return spans if len(spans) > 1 else []


def mark_pools_along_x(axes: Axes, spans: Sequence[PoolSpan]) -> None:
    """Ranks across: names at the top, a line between pools."""
    for span in spans:
        middle = (span.first + span.last) / 2
        across = axes.get_xaxis_transform()
        axes.text(
            middle, 0.985, span.name, transform=across, ha="center", va="top", color=style.SOFT, weight="bold"
        )
        if span.first:
            axes.axvline(span.first - 0.5, color=style.GREY, linewidth=0.9)


def mark_pools_along_y(axes: Axes, spans: Sequence[PoolSpan], *, has_names: bool) -> None:
    """Ranks downwards: names right of the chart, a line between pools."""
    for span in spans:
        if has_names:
            axes.text(
                1.008,
                (span.first + span.last) / 2,
                span.name,
                transform=axes.get_yaxis_transform(),
                rotation=270,
                va="center",
                color=style.SOFT,
                weight="bold",
            )
        if span.first:
            axes.axhline(span.first - 0.5, color=style.GREY, linewidth=0.9)


_MEMORY_BAR = 0.72
_MAX_TICKS = 24
_FAR_LIMIT = 4.0
"""A limit this many times as high as the highest bar is not drawn but told."""
_LABEL_HEIGHT = 0.05
"""Height of the number above a bar, as a share of the axis."""


def memory_by_rank(
    frame: Frame,
    limit_bytes: float,
    subject: str,
    *,
    rank_limits: Sequence[float] = (),
    pools: Sequence[PoolSpan] = (),
) -> Figure:
    """One bar per pipeline rank, its parts in bytes, under the limit.

    Args:
        frame: a row per pipeline rank in order; one column of bytes per part.
        limit_bytes: what one device may hold.
        subject: which plan.
        rank_limits: with several pools, what a device of each rank may hold.
        pools: with several pools, which ranks lie in which.
    """
    parts = [part for part in style.MEMORY_COLOURS if part in frame and frame[part].max() > 0]
    totals, ranks = frame[parts].sum(axis=1), len(frame)
    limits = list(rank_limits) or [limit_bytes] * ranks
    is_near = max(limits) <= _FAR_LIMIT * totals.max()
    highest = max(totals.max(), *limits) if is_near else totals.max()
    unit, scale = size_unit(highest)
    with style.sheet(9.0 if ranks > 1 else 6.4, 5.0) as figure:
        axes = figure.add_subplot()
        numbers = ranks <= _MAX_TICKS // 2
        stack_bars(axes, frame[parts] / scale, style.MEMORY_COLOURS, _MEMORY_BAR, numbers=numbers)
        top = (1.22 if pools else 1.14) * highest / scale
        axes.set_ylim(0, top)
        axes.set_xlim(-0.6, max(ranks - 0.4, 1.0))
        step = -(-ranks // _MAX_TICKS)
        axes.set_xticks(range(0, ranks, step))
        _draw_limits(axes, limits, scale, near=is_near)
        for rank in range(0, ranks, step):
            _write_total(axes, rank, totals.iloc[rank] / scale, limits[rank] / scale if is_near else None)
        mark_pools_along_x(axes, pools)
        axes.set_xlabel("pipeline rank")
        style.measure_axis(axes, "y", f"peak memory of one device ({unit})")
        names = visible_parts(frame, style.MEMORY_COLOURS)
        named = name_pieces(axes, frame[parts] / scale, 0.42) if ranks == 1 else []
        if len(named) < len(names):
            part_legend(figure, names, style.MEMORY_COLOURS)
        style.put_title(figure, _memory_finding(frame, parts, totals, limits), subject)
    return figure


def _draw_limits(axes: Axes, limits: Sequence[float], scale: float, *, near: bool) -> None:
    """Draw the limit of each rank as a dashed line with its bytes; write a distant limit as text only."""
    words = " and ".join(format_bytes(limit) for limit in dict.fromkeys(limits))
    if not near:
        far_words = f"limit {words}, far above ↑"
        axes.text(0.995, 0.96, far_words, transform=axes.transAxes, ha="right", va="top", weight="bold")
        return
    left, right = axes.get_xlim()
    ends = np.repeat([left, *(np.arange(1, len(limits)) - 0.5), right], 2)[1:-1]
    axes.plot(ends, np.repeat(limits, 2) / scale, color=style.INK, linewidth=1.4, linestyle=(0, (5, 3)))
    top = axes.get_ylim()[1]
    line = axes.text(right, limits[-1] / scale + 0.014 * top, f"limit {words}", ha="right", weight="bold")
    line.set_bbox({"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 1.0})


def _write_total(axes: Axes, rank: int, height: float, limit: float | None) -> None:
    """The number above a bar, and above the limit where the line would run through it."""
    room = _LABEL_HEIGHT * axes.get_ylim()[1]
    text_height = height + 0.2 * room
    if limit is not None and text_height - 0.2 * room < limit < text_height + room:
        text_height = limit + 0.25 * room
    number = axes.text(rank, text_height, f"{height:.1f}", ha="center")
    number.set_bbox({"facecolor": "white", "linewidth": 0, "pad": 0.6})


def _memory_finding(frame: Frame, parts: list[str], totals: Frame, limits: Sequence[float]) -> str:
    rank = max(range(len(totals)), key=lambda one: fullness(float(totals.iloc[one]), limits[one]))
    largest = max(parts, key=lambda part: float(frame[part].iloc[rank]))
    spare = limits[rank] - float(totals.iloc[rank])
    room = f"leaves {format_bytes(spare)} free" if spare >= 0 else f"is {format_bytes(-spare)} too large"
    subject = f"Rank {rank} is the fullest and" if len(totals) > 1 else "A device"
    size = format_bytes(float(frame[largest].iloc[rank]))
    return f"{subject} {room}; its largest part is {part_label(largest)}, {size}"


_TIME_BAR, _HIDDEN_STRIP = 0.56, 0.15
"""Heights, in rows: of a bar, and of the strip under it for what is hidden."""
_HATCH = "//////"
_LONGEST_NAME = 60
"""Characters of a layout in the title; of a longer one its degrees."""
_LEAST_SHARE = 0.002
"""Smallest hidden communication that is drawn, as a share of the axis."""


def time_breakdown(frame: Frame, subject: str) -> Figure:
    """One horizontal bar per layout, its parts in seconds per step; hatched below it what runs behind compute.

    Args:
        frame: a row per layout in the order to draw; `layout`, one column of seconds per part, and `tp_hidden`,
            `cp_hidden`, `ep_hidden`, `dp_hidden` with the seconds of communication that the step does not wait for;
            where rows answer different questions, `name` says which.
        subject: what was priced.
    """
    parts = [part for part in style.TIME_COLOURS if part in frame and frame[part].max() > 0]
    totals = frame[parts].sum(axis=1)
    unit, scale = time_unit(totals.max())
    with style.sheet(9.4, 1.9 + 0.68 * len(frame)) as figure:
        axes = figure.add_subplot()
        stack_bars(axes, frame[parts] / scale, style.TIME_COLOURS, _TIME_BAR, horizontal=True)
        reach = totals.max() / scale
        axes.set_xlim(0, 1.24 * reach)
        hidden = _draw_hidden(axes, frame, scale)
        for row, total in enumerate(totals):
            slower = "" if total == totals.min() or "name" in frame else change(totals.min(), total)
            words = format_seconds(total)
            axes.text(total / scale + 0.01 * reach, row, words, va="center", weight="bold")
            at_right = axes.get_yaxis_transform()
            axes.text(1.0, row, slower, transform=at_right, ha="right", va="center", color=style.SOFT)
        axes.set_yticks(range(len(frame)), _layout_names(frame))
        axes.set_ylim(len(frame) - 0.4, -0.5)
        style.measure_axis(axes, "x", f"time of one step ({unit})")
        hatch = [Patch(facecolor="white", edgecolor=style.INK, hatch=_HATCH, label="overlapped with compute")]
        part_legend(
            figure, visible_parts(frame, style.TIME_COLOURS), style.TIME_COLOURS, *hatch[: len(hidden)]
        )
        style.put_title(figure, _time_finding(frame, parts, totals), subject)
    return figure


def _draw_hidden(axes: Axes, frame: Frame, scale: float) -> list[str]:
    """A hatched strip of what each layout hides, in the colours of the axes it is of; says which there are."""
    parts = [part for part in HIDDEN_PARTS if part in frame and frame[part].max() > 0]
    for row, (_, layout) in enumerate(frame.iterrows()):
        start = 0.0
        for part in parts:
            value = layout[part] / scale
            if value < _LEAST_SHARE * axes.get_xlim()[1]:
                continue
            axes.barh(
                row + (_TIME_BAR + _HIDDEN_STRIP) / 2,
                value,
                left=start,
                height=_HIDDEN_STRIP,
                facecolor="white",
                edgecolor=style.TIME_COLOURS[HIDDEN_PARTS[part]],
                linewidth=0.6,
                hatch=_HATCH,
            )
            start += value
    return parts


def _layout_names(frame: Frame) -> list[str]:
    names = frame["name"] if "name" in frame else [""] * len(frame)
    return [
        "\n".join([*lines_of(name, 40), short_layout(layout, 36)]) if name else short_layout(layout, 36)
        for name, layout in zip(names, frame["layout"], strict=True)
    ]


def _time_finding(frame: Frame, parts: list[str], totals: Frame) -> str:
    if "name" in frame:
        shares = frame["compute"] / totals
        return f"Compute is {percent(shares.min())} to {percent(shares.max())} of the step"
    losses = [part for part in parts if part != "compute"]
    best = totals.idxmin()
    layout = str(frame.loc[best, "layout"])
    full_name = short_layout(layout, 200)
    name = full_name if len(full_name) <= _LONGEST_NAME else brief_layout(layout, 200)
    if not losses:
        return f"{name}: all of the step is compute"
    worst = max(losses, key=lambda part: float(frame.loc[best, part]))
    share = float(frame.loc[best, worst]) / totals[best]
    return (
        f"{name} takes {format_seconds(totals[best])} and loses most to {part_label(worst)}: {percent(share)}"
    )


_RESIDENCY_COLOURS = {"states": style.BLUE, "parked": style.GREEN, "streamed": style.VERMILION}
_RESIDENCY_WIDTHS = {"states": 4.5, "parked": 1.5, "streamed": 1.8}
"""Line widths, points: `states` and `parked` coincide in both memories, so the wider is drawn below."""
_NEAR_LIMIT = 1.6
"""A limit this many times as large as everything drawn is told, not drawn."""


def window(frame: Frame, device_limit: float, host_limit: float | None, subject: str) -> Figure:
    """Step time, device memory and host memory against the blocks of a rank in host memory, a line for each residency.

    Args:
        frame: a row per point with `residency`, `blocks`, `step_seconds`, `peak_bytes`, `host_bytes`, `fits`, `chosen`.
        device_limit: what one device may hold.
        host_limit: what blocks may fill of one host; None where nobody says.
        subject: what was priced.
    """
    lines = [
        (str(name), points.sort_values("blocks")) for name, points in frame.groupby("residency", sort=True)
    ]
    unit = time_unit(float(frame["step_seconds"].max()))
    with style.sheet(10.8, 4.6) as figure:
        time, device, host = figure.subplots(1, 3)
        device_unit = size_unit(float(frame["peak_bytes"].max()))
        host_unit = size_unit(max(float(frame["host_bytes"].max()), 1.0))
        for axes, column, (word, scale), label in (
            (time, "step_seconds", unit, "step"),
            (device, "peak_bytes", device_unit, "memory of the fullest device"),
            (host, "host_bytes", host_unit, "memory of each host"),
        ):
            for name, line in lines:
                _residency_curve(axes, line, column, scale, name)
            axes.set_ylim(0, 1.2 * float(frame[column].max()) / scale or 1.0)
            axes.set_xlabel("blocks of a rank in host memory")
            axes.set_ylabel(f"{label} ({word})")
            style.linear_ticks(axes.xaxis)
            style.linear_ticks(axes.yaxis)
            style.quiet_axis(axes, grid="y")
        _draw_window_limit(device, device_limit, device_unit[1], "right")
        if host_limit is not None:
            _draw_window_limit(host, host_limit, host_unit[1], "left")
        style.name_in_corner(
            time, [(name, _RESIDENCY_COLOURS[name]) for name, _ in lines], 0.04, 0.97, step=0.07
        )
        style.put_title(figure, _window_finding(lines), f"{subject}; hollow: does not fit; star: the plan")
    return figure


def _residency_curve(axes: Axes, line: Frame, column: str, scale: float, name: str) -> None:
    """A line through all points, filled where both memories suffice."""
    x, y, fits = line["blocks"], line[column] / scale, line["fits"]
    colour, width = _RESIDENCY_COLOURS[name], _RESIDENCY_WIDTHS[name]
    zorder = 3.0 - 0.2 * width  # the wider, the lower
    axes.plot(x, y, color=colour, linewidth=width, zorder=zorder)
    hollow = axes.scatter(x[~fits], y[~fits], s=9 * width, facecolors="white", edgecolors=colour)
    hollow.set(linewidths=1.0, zorder=zorder + 0.1)
    axes.scatter(x[fits], y[fits], s=10 * width, color=colour, linewidths=0, zorder=zorder + 0.1)
    is_plan = line["chosen"]
    style.mark_plan(axes, x[is_plan], y[is_plan])


def _draw_window_limit(axes: Axes, limit: float, scale: float, side: str) -> None:
    """The limit as a line, named in the corner where curves are not; or only a word where it is far above."""
    at, top = limit / scale, axes.get_ylim()[1]
    words, is_far = f"- -  limit {format_bytes(limit)}", at > _NEAR_LIMIT * top
    if is_far:
        words = f"limit {format_bytes(limit)}, far above"
    else:
        axes.set_ylim(0, max(top, 1.2 * at))
        axes.axhline(at, color=style.INK, linewidth=1.4, linestyle=(0, (5, 3)))
    x = 0.98 if side == "right" else 0.02
    axes.text(x, 0.985, words, transform=axes.transAxes, ha=side, va="top", weight="bold")


_RESIDENCY_WORDS = {
    "states": "states of {} on the host",
    "parked": "states of {} parked on the host",
    "streamed": "{} streamed from the host",
}


def _window_finding(lines: list[tuple[str, Frame]]) -> str:
    """Title: the fastest point that fits, and the one with the lowest peak memory."""
    fitting = [(name, row) for name, line in lines for _, row in line[line["fits"]].iterrows()]
    if not fitting:
        return "However many blocks of one kind are in host memory, nothing fits"
    fastest = min(fitting, key=lambda one: float(one[1]["step_seconds"]))
    smallest = min(fitting, key=lambda one: float(one[1]["peak_bytes"]))
    first = _point_words(*fastest)
    words = first if smallest[1]["layout"] == fastest[1]["layout"] else f"{first}; {_point_words(*smallest)}"
    return words[0].upper() + words[1:]


def _point_words(name: str, row: Frame) -> str:
    """ "states of 50 blocks on the host: 4.04 s a step in 139.0 GiB"."""
    blocks = int(row["blocks"])
    mode = _RESIDENCY_WORDS[name].format(counted(blocks, "block")) if blocks else "all blocks on the device"
    return f"{mode}: {format_seconds(float(row['step_seconds']))} in {format_bytes(float(row['peak_bytes']))}"


_LANE_HEIGHT = 0.62
"""Height of a lane in rows."""
_MOVE_HEIGHT = 0.8
"""Height of a move, as a share of its lane."""
_MAX_NAMED_RANKS = 8
"""Ranks up to which every lane has its name."""
MANY_BARS = 2000
"""Number of bars above which SVG and PDF hold them as pixels."""
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
    """Vertical places of ranks and their lanes, downwards; a rank without lanes is one row high."""

    ranks: int
    lanes: Sequence[str] = ()

    @property
    def height(self) -> float:
        """Height of all ranks, rows."""
        return self.ranks * self._rank

    @property
    def _rank(self) -> float:
        return 1 + _LANE_HEIGHT * len(self.lanes)

    def of_rank(self, rank: int) -> float:
        """Vertical middle of a rank's row."""
        return rank * self._rank

    def of_lane(self, rank: int, lane: str) -> float:
        """Vertical middle of a lane of a rank."""
        return self.of_rank(rank) + 0.5 + _LANE_HEIGHT * (self.lanes.index(lane) + 0.5)

    def name(self, axes: Axes, max_ranks: int) -> None:
        """Limits and ticks of the chart: numbers of ranks, at most so many, and names of lanes where there is room."""
        axes.set_ylim(self.height - 0.4, -0.6)
        ranks = range(0, self.ranks, -(-self.ranks // max_ranks))
        axes.set_yticks([self.of_rank(rank) for rank in ranks], [str(rank) for rank in ranks])
        if self.lanes and self.ranks <= _MAX_NAMED_RANKS:
            places = [(rank, lane) for rank in range(self.ranks) for lane in self.lanes]
            axes.set_yticks(
                [self.of_lane(*place) for place in places], [lane for _, lane in places], minor=True, size=7
            )
            axes.tick_params(axis="y", which="minor", length=0)


def draw_moves(axes: Axes, moves: Frame, rows: Rows, start: float, end: float, scale: float) -> None:
    """Moves between two moments, as bars in their lanes; `scale` seconds are a unit of the axis."""
    visible_moves = moves[(moves["start_seconds"] < end) & (moves["end_seconds"] > start)]
    corners, colours = [], []
    for move in visible_moves.itertuples():
        left, right = max(move.start_seconds, start) / scale, min(move.end_seconds, end) / scale
        middle, half = rows.of_lane(move.rank, move.lane), _LANE_HEIGHT * _MOVE_HEIGHT / 2
        corners.append(
            [(left, middle - half), (right, middle - half), (right, middle + half), (left, middle + half)]
        )
        colours.append(_MOVES[move.kind][1])
    bars = PolyCollection(corners, facecolors=colours, rasterized=len(corners) > MANY_BARS)
    bars.set(edgecolor="white", linewidth=0.2)
    axes.add_collection(bars)


def move_patches(moves: Frame) -> list[Patch]:
    """Legend entries of the kinds of moves that occur."""
    kinds = set(moves["kind"])
    return [Patch(facecolor=colour, label=words) for kind, (words, colour) in _MOVES.items() if kind in kinds]


_START_ACTIONS, _STEADY_ACTIONS = 20, 12
"""Actions of the first rank that a detail shows: few enough to read their numbers."""
_WIDTH_INCHES = 12.0
_SHARES = (0.58, 0.42)
"""Shares of the width: the start, which also holds the warm-up, and the steady state."""
_MARGIN_INCHES = 0.7
_PASS_BAR = 0.82
"""Height of a bar in rows."""
_LIGHTEST = 0.62
"""Share of white in the colour of the last chunk."""
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
"""Name and colour of each kind of work after the passes."""
_ACTIONS = PASSES | _ONCE
_MAX_NUMBERED_RANKS = 20


class TimeSpan(NamedTuple):
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
    step_span = TimeSpan("the whole step", 0.0, float(frame["end_seconds"].max()))
    frame, moves = _split_moves(frame)
    rows = Rows(ranks, [] if moves is None else list(dict.fromkeys(moves["lane"])))
    details = _detail_windows(frame, step_span)
    unit = time_unit(step_span.end)
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
        step_axes = figure.add_subplot(grid[0, :])
        detail_axes = [figure.add_subplot(grid[1, place]) for place in range(len(details))]
        charts = [(step_axes, step_span, 1.0, numbers and not details)]
        charts += [
            (axes, span, share, numbers)
            for axes, span, share in zip(detail_axes, details, shares, strict=False)
        ]
        for axes, span, share, numbered in charts:
            written = draw_passes(
                axes, frame, rows, span, unit, points=chart_points(share) if numbered else 0.0
            )
            if moves is not None:
                draw_moves(axes, moves, rows, span.start, span.end, unit[1])
            _title_chart(axes, span, numbered=written, side="left" if axes in detail_axes else "right")
            mark_pools_along_y(axes, pools, has_names=axes in (step_axes, *detail_axes[-1:]))
        for axes in (step_axes, *detail_axes[:1]):
            axes.set_ylabel("pipeline rank")
        for axes in detail_axes[1:]:
            axes.tick_params(labelleft=False, which="both")
        for span in details:
            _outline_detail(step_axes, span, unit)
        patches = [] if moves is None else move_patches(moves)
        pass_legend(figure, set(frame["kind"]), int(frame["chunk"].max()) + 1, patches, idle=ranks > 1)
        finding = _timeline_finding(frame, ranks, step_span.end)
        if moves is not None:
            finding += f"; {_busiest_lane(moves, step_span.end)}"
        style.put_title(figure, finding, subject)
    return figure


def _split_moves(frame: Frame) -> tuple[Frame, Frame | None]:
    """Split actions of ranks from moves to and from host memory (None: there are no lanes)."""
    if "lane" not in frame:
        return frame, None
    return frame[frame["lane"] == ""], frame[frame["lane"] != ""]


def _detail_windows(frame: Frame, step_span: TimeSpan) -> list[TimeSpan]:
    """The start until every rank has gone backward once, and some actions in the middle; none of a short step."""
    passes = frame[frame["kind"].isin(list(PASSES))]
    first = passes[passes["rank"] == 0].sort_values("start_seconds")
    actions_end = float(first["end_seconds"].iloc[min(_START_ACTIONS, len(first)) - 1])
    first_backward_end = float(passes[passes["kind"] != "F"].groupby("rank")["end_seconds"].min().max())
    start = TimeSpan("start", 0.0, max(actions_end, first_backward_end))
    if start.end >= 0.9 * step_span.end:
        return []
    last_forward_start = float(passes[passes["kind"] == "F"].groupby("rank")["start_seconds"].max().min())
    steady = first[(first["start_seconds"] >= start.end) & (first["end_seconds"] <= last_forward_start)]
    if len(steady) < _STEADY_ACTIONS:
        return [start]
    begin = (len(steady) - _STEADY_ACTIONS) // 2
    middle_actions = steady.iloc[begin : begin + _STEADY_ACTIONS]
    ends = float(middle_actions["start_seconds"].min()), float(middle_actions["end_seconds"].max())
    return [start, TimeSpan("steady state", *ends)]


def draw_passes(
    axes: Axes, frame: Frame, rows: Rows, span: TimeSpan, unit: tuple[str, float], *, points: float
) -> bool:
    """Bars in that unit, the microbatch in those wide enough; says whether in most. `points` wide; 0: no numbers."""
    name, scale = unit
    actions = frame[(frame["start_seconds"] < span.end) & (frame["end_seconds"] > span.start)]
    chunks = int(frame["chunk"].max()) + 1
    corners, colours = [], []
    for action in actions.itertuples():
        start = max(action.start_seconds, span.start) / scale
        end = min(action.end_seconds, span.end) / scale
        middle = rows.of_rank(action.rank)
        low, high = middle - _PASS_BAR / 2, middle + _PASS_BAR / 2
        corners.append([(start, low), (end, low), (end, high), (start, high)])
        colours.append(_pass_colour(action.kind, action.chunk, chunks))
    bars = PolyCollection(corners, facecolors=colours, rasterized=len(corners) > MANY_BARS)
    bars.set(edgecolor="white" if points else "face", linewidth=0.4 if points else 0.2)
    axes.add_collection(bars)
    axes.set_xlim(span.start / scale, span.end / scale)
    rows.name(axes, _MAX_NUMBERED_RANKS)
    axes.set_xlabel(f"time ({name})")
    style.linear_ticks(axes.xaxis)
    axes.grid(False)
    return _write_microbatches(axes, actions, rows, span, chunks, scale, points) if points else False


def _write_microbatches(
    axes: Axes, actions: Frame, rows: Rows, span: TimeSpan, chunks: int, scale: float, points: float
) -> bool:
    """Write the microbatch into each whole pass wide enough for its digits; says whether most are."""
    passes = actions[actions["kind"].isin(list(PASSES))]
    per_second = points / (span.end - span.start)
    written = 0
    for action in passes.itertuples():
        text = str(action.microbatch)
        width = (action.end_seconds - action.start_seconds) * per_second
        is_whole = action.start_seconds >= span.start and action.end_seconds <= span.end
        if not is_whole or width < (len(text) + 0.5) * 0.62 * _NUMBER_POINTS:
            continue
        written += 1
        middle = (action.start_seconds + action.end_seconds) / 2 / scale
        light = _ACTIONS[action.kind][1] not in style.DARK or (chunks > 1 and action.chunk > (chunks - 1) / 2)
        ink = style.INK if light else "white"
        number = axes.text(middle, rows.of_rank(action.rank), text, size=_NUMBER_POINTS, color=ink)
        number.set(ha="center", va="center_baseline")
    return written > len(passes) / 2


def chart_points(share: float) -> float:
    """Across a chart of that share of the figure's width, without the labels at its left."""
    return style.POINTS_PER_INCH * (share * _WIDTH_INCHES - _MARGIN_INCHES)


def _title_chart(axes: Axes, span: TimeSpan, *, numbered: bool, side: Literal["left", "right"]) -> None:
    """Write the name and length of the time span above its chart."""
    words = f"{span.name}: {format_seconds(span.end - span.start)}"
    words += f" from {format_seconds(span.start)} on" if span.start else ""
    axes.set_title(words + (", microbatch in each bar" if numbered else ""), loc=side, size=9)


def _outline_detail(axes: Axes, span: TimeSpan, unit: tuple[str, float]) -> None:
    """Outline a detail in the chart of the whole step, with its name."""
    scale = unit[1]
    start, end = span.start / scale, span.end / scale
    axes.axvspan(start, end, facecolor="none", edgecolor=style.INK, linewidth=1.4, clip_on=False)
    middle = (span.start + span.end) / 2 / scale
    look = {"ha": "center", "va": "bottom", "size": 8, "weight": "bold"}
    style.write_beside(axes, span.name, (middle, 1.0), (0, 2), xycoords=axes.get_xaxis_transform(), **look)


def _pass_colour(kind: str, chunk: int, chunks: int) -> tuple[float, float, float]:
    """The colour of the kind; later chunks nearer to white."""
    white_share = _LIGHTEST * max(chunk, 0) / max(1, chunks - 1)
    red, green, blue = to_rgb(_ACTIONS[kind][1])
    return (red + (1 - red) * white_share, green + (1 - green) * white_share, blue + (1 - blue) * white_share)


def pass_legend(
    figure: Figure, kinds: set[str], chunks: int, patches: Sequence[Patch] = (), *, idle: bool
) -> None:
    """Legend of passes by chunk, work after them, idle time and moves."""

    def name(kind: str, chunk: int) -> str:
        return f"{_ACTIONS[kind][0]}{f', chunk {chunk}' if chunks > 1 else ''}"

    named_chunks = range(chunks) if chunks <= 4 else (0, chunks - 1)
    passes = [kind for kind in PASSES if kind in kinds]
    handles = [
        Patch(facecolor=_pass_colour(kind, chunk, chunks), label=name(kind, chunk))
        for kind in passes
        for chunk in named_chunks
    ]
    handles += [
        Patch(facecolor=colour, label=words) for kind, (words, colour) in _ONCE.items() if kind in kinds
    ]
    handles += [Patch(facecolor="white", edgecolor=style.PALE, label="idle")] if idle else []
    handles += patches
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 8 if len(passes) <= 2 else 6),
        handlelength=1.0,
    )


def _timeline_finding(frame: Frame, ranks: int, step_seconds: float) -> str:
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


def _busiest_lane(moves: Frame, step_seconds: float) -> str:
    """Sentence part: the busiest lane, and its share of the step."""
    busy = (moves["end_seconds"] - moves["start_seconds"]).groupby([moves["rank"], moves["lane"]]).sum()
    (_, lane), seconds = busy.idxmax(), float(busy.max())
    return f"the {lane} is busy for {percent(seconds / step_seconds)}"
