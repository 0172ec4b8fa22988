"""Figures of measured runs beside predictions: step times, errors by quantity and group, slow ranks.

`accuracy` compares a few runs (of one, all quantities), `predicted_against_measured` and `errors_by_axis` the many
published ones. `ranks` and `late_ranks` show what each rank did. The band of ±10 % is common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from cost_models.measured.runs.cases import source_title
from cost_models.units import counted, format_seconds
from executor.measure.slow_ranks import SlowRank, sentence
from meshwright.plots import style
from meshwright.plots.parts import Label, put_labels
from meshwright.plots.style import Frame, short_layout
from meshwright.records.runs import ComparedQuantity
from meshwright.render.measured import SHARES, error_text, quantity_label, quantity_text
from meshwright.render.words import lines_of, part_label, percent, size_unit, time_unit

BAND = 0.10
"""Half-width of the error band that is drawn, as a share: ±10 %."""


def _draw_diagonal(axes: Axes, measured: Frame, predicted: Frame) -> None:
    """Set up equal logarithmic axes for measured and predicted step times (s), with diagonal and ±10 % band."""
    low = 0.7 * min(float(measured.min()), float(predicted.min()))
    high = 1.45 * max(float(measured.max()), float(predicted.max()))
    ends = [low, high]
    lower, upper = ([(1 + side * BAND) * value for value in ends] for side in (-1, 1))
    axes.fill_between(ends, lower, upper, color=style.FAINT, linewidth=0)
    axes.plot(ends, ends, color=style.GREY, linewidth=1.0)
    for along in "xy":
        style.log_axis(axes, along, np.array(ends))
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    style.name_axes(axes, "measured step time (s)", "predicted step time (s)")
    style.write_in_chart(axes, 0.98, 0.02, f"band: ±{100 * BAND:.0f} %", ha="right", color=style.GREY, size=8)


def _draw_band(axes: Axes) -> None:
    """Shade the band from -10 % to +10 % on a horizontal axis of errors in percent."""
    axes.axvspan(-100 * BAND, 100 * BAND, color=style.FAINT, linewidth=0)
    axes.axvline(0, color=style.GREY, linewidth=1.0)
    style.quiet_axis(axes, grid="x")


def _step_time_finding(measured: Frame, predicted: Frame) -> str:
    """Title on step times: median error, and the number of runs within the ±10 % band."""
    if measured.empty:
        return "No step time was compared"
    error = (predicted / measured - 1).abs()
    inside = f"{int((error <= BAND).sum())} of {counted(len(error), 'run')} within {100 * BAND:.0f} %"
    return f"Step time: median error {percent(float(error.median()))}; {inside}"


_MAX_QUANTITIES = 24
_MAX_LABELS = 12
_MAX_COLOURS = 5
"""Largest number of runs that each get a colour of their own."""
_MAX_ERROR = 100.0
"""Percent of error beyond which a dot is drawn as an arrow at the chart's edge; computed figures use the true
error."""


@style.drawing()
def accuracy(frame: Frame, subject: str) -> Figure:
    """Scatter plot of predicted against measured step times, and a dot plot of each quantity's error; for a single
    run, bars of all its quantities.

    Args:
        frame: a row per run and quantity with `label`, `quantity`, `predicted`, `measured` (base units); step time is
            the quantity `step_seconds`.
        subject: where the runs come from.
    """
    steps = frame[frame["quantity"] == "step_seconds"]
    if len(steps) == 1:
        return _one_run(frame, subject)
    compared = frame[frame["measured"] > 0]
    rows = list(dict.fromkeys(sorted(compared["quantity"], key=_quantity_order)))[:_MAX_QUANTITIES]
    runs = list(dict.fromkeys(frame["label"]))
    has_colours = len(runs) <= _MAX_COLOURS
    colours = {
        run: style.SERIES_COLOURS[number] if has_colours else style.BLUE for number, run in enumerate(runs)
    }
    size = (10.0 if len(rows) > 1 else 6.6, max(5.4, 1.6 + 0.34 * len(rows)))
    figure = style.new_figure(*size, _step_time_finding(steps["measured"], steps["predicted"]), subject)
    charts = figure.subplots(1, 2 if len(rows) > 1 else 1, squeeze=False)[0]
    _draw_diagonal(charts[0], steps["measured"], steps["predicted"])
    charts[0].set_anchor("N")
    points = steps["measured"], steps["predicted"]
    charts[0].scatter(*points, s=34, color=list(steps["label"].map(colours)), edgecolors="white", zorder=3)
    if len(rows) > 1:
        _draw_errors(charts[1], compared, rows, colours)
    if len(steps) <= _MAX_LABELS:  # those further off first
        order = (steps["predicted"] / steps["measured"] - 1).abs().sort_values(ascending=False).index
        labels = []
        for run in steps.loc[order].itertuples():
            text, at = short_layout(str(run.label), 24), (run.measured, run.predicted)
            labels.append(Label(text=text, at=at, colour=style.INK))
        put_labels(charts[0], labels, lines=charts[0].lines)
    return figure


def _quantity_order(quantity: str) -> int:
    """Sort key of a quantity: times first, then rates and shares, then memory."""
    kinds = ("step_seconds", "_seconds", "per_second", "mfu", "hfu", "peak_bytes", "_bytes", "")
    return next(number for number, kind in enumerate(kinds) if kind in quantity)


def _draw_errors(axes: Axes, frame: Frame, rows: list[str], colours: dict[str, str]) -> None:
    """Draw each quantity's errors: a dot per run and a bar at the median, in percent of the measured value; for
    shares in points."""
    scale = frame["measured"].where(~frame["quantity"].isin(SHARES), 1.0)
    frame = frame.assign(error=100 * (frame["predicted"] - frame["measured"]) / scale)
    edge = min(max(float(frame["error"].abs().max()), 150 * BAND), _MAX_ERROR)
    _draw_band(axes)
    few = len(colours) <= _MAX_COLOURS  # then dots of runs at one place do not overlap
    shift = {run: few * 0.2 * (number - (len(colours) - 1) / 2) for number, run in enumerate(colours)}
    for row, quantity in enumerate(rows):
        runs = frame[frame["quantity"] == quantity]
        places = runs["error"].clip(-edge, edge)
        for run, value, place in zip(runs["label"], runs["error"], places, strict=True):
            area, mark = (26, "o") if value == place else (32, "<" if value < 0 else ">")
            look: style.Look = {"color": colours[run], "alpha": 0.8, "linewidths": 0}
            axes.scatter(place, row + shift[run], s=area, marker=mark, **look)
        middle = float(runs["error"].median())
        place = min(max(middle, -edge), edge)
        axes.scatter(place, row, s=200, marker="|", color=style.INK, linewidths=2)
        words = f"{middle:+,.1f} {'pt' if quantity in SHARES else '%'}"
        axes.text(1.01, row, words, transform=axes.get_yaxis_transform(), va="center", size=8)
    names = [quantity_label(name) + (" memory" if "_bytes" in name else "") for name in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.set_xlim(-1.18 * edge, 1.18 * edge)
    axes.set_xlabel("error of the prediction (%; of MFU in points); bar and number: median")


_STEP_SECONDS = "step_seconds"
_TOTALS = (
    *(_STEP_SECONDS, "thread_cpu_seconds", "peak_bytes", "allocated_bytes", "reserved_bytes"),
    *("host_memory_bytes", "host_link_seconds", "host_update_seconds"),
    *("drive_bytes", "drive_read_bytes", "drive_written_bytes", "drive_transfer_seconds"),
)
"""Quantities that are totals, not parts of another quantity."""
_MAX_ROWS = 20
"""Largest number of quantities in a chart; of more, those with the largest errors are drawn."""
_SIDES = (("predicted", style.BLUE, -0.19), ("measured", style.ORANGE, 0.19))
"""Column, colour, and vertical offset of its bar in a row."""
_LEAST_SHARE = 0.002
"""Smallest bar that is drawn, as a share of the largest bar of the chart."""


def _one_run(frame: Frame, subject: str) -> Figure:
    """Paired bars of predicted and measured quantities of one run: times left, memory right, each with its error."""
    table = frame[["quantity", "predicted", "measured"]].astype({"quantity": str})
    lines = [ComparedQuantity(*row) for row in table.itertuples(index=False)]
    units = {"time of one step": "_seconds", "memory of the fullest device": "_bytes"}
    quantities = {name: [line for line in lines if unit in line.quantity] for name, unit in units.items()}
    panels = {name: bars for name, rows in quantities.items() if (bars := _visible_quantities(rows))}
    number_of_rows = max(map(len, panels.values()))
    subject = f"{frame['label'].iloc[0]} in {subject}"
    for line in lines:
        if line.quantity in (SHARES[0], "tokens_per_second"):  # which have no bar
            predicted, measured = _both_texts(line)
            words = f"{predicted} predicted, {measured} measured ({error_text(line)})"
            subject += f"; {quantity_label(line.quantity)} {words}"
    width = 5.2 * len(panels) if len(panels) > 1 else 6.6
    figure = style.new_figure(width, 1.9 + 0.42 * number_of_rows, _one_run_finding(lines), subject)
    charts = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, bars) in zip(charts, panels.items(), strict=True):
        _draw_pairs(axes, name, bars, number_of_rows)
    return figure


def _both_texts(line: ComparedQuantity) -> tuple[str, str]:
    """Predicted and measured value of a quantity, as text."""
    return quantity_text(line.quantity, line.predicted), quantity_text(line.quantity, line.measured)


def _visible_quantities(lines: list[ComparedQuantity]) -> list[ComparedQuantity]:
    """Quantities whose bars are long enough to see; if too many, those with the largest errors."""
    min_bar = _LEAST_SHARE * max((max(line.predicted, line.measured) for line in lines), default=0.0)
    visible = [line for line in lines if max(line.predicted, line.measured) > min_bar]
    by_miss = sorted(visible, key=lambda line: (line.quantity not in _TOTALS, -_miss(line)))[:_MAX_ROWS]
    return [line for line in visible if line in by_miss]


def _draw_pairs(axes: Axes, name: str, lines: list[ComparedQuantity], rows: int) -> None:
    """Draw a pair of bars, predicted and measured, for each quantity, with its error at the right."""
    largest = max(max(line.predicted, line.measured) for line in lines)
    unit, scale = (size_unit if "_bytes" in lines[0].quantity else time_unit)(largest)
    for side, colour, shift in _SIDES:
        values = [getattr(line, side) for line in lines]
        bars = axes.barh(np.arange(len(lines)) + shift, np.array(values) / scale, height=0.34, color=colour)
        texts = [quantity_text(line.quantity, value) for line, value in zip(lines, values, strict=True)]
        axes.bar_label(bars, [f"{texts[0]} {side}", *texts[1:]], padding=4, size=7.5)
    for row, line in enumerate(lines):
        is_off = line.measured <= 0 or _miss(line) > BAND * line.measured
        look: style.Look = {"weight": "bold", "color": style.VERMILION} if is_off else {"color": style.SOFT}
        across = axes.get_yaxis_transform()
        axes.text(1.0, row, error_text(line), transform=across, ha="right", va="center", **look)
    axes.set_yticks(range(len(lines)), [quantity_label(line.quantity) for line in lines])
    axes.set(ylim=(rows - 0.4, -0.6), xlim=(0, 1.62 * largest / scale))
    style.name_axes(axes, f"{name} ({unit})", grid="x")


def _miss(line: ComparedQuantity) -> float:
    """Absolute difference between predicted and measured value."""
    return abs(line.predicted - line.measured)


def _one_run_finding(lines: list[ComparedQuantity]) -> str:
    """Title on one run: error of the step time, and the part with the largest error."""
    step = next(line for line in lines if line.quantity == _STEP_SECONDS)
    predicted, measured = _both_texts(step)
    words = f"Step predicted {predicted}, measured {measured}: {error_text(step)}"
    parts = [line for line in lines if "_seconds" in line.quantity and line.quantity not in _TOTALS]
    if not parts:
        return words
    worst = max(parts, key=_miss)
    predicted, measured = _both_texts(worst)
    return f"{words}; furthest off is {quantity_label(worst.quantity)}, {predicted} against {measured}"


_EXCESS_COLOURS = "PuOr_r"
"""Colour map: orange is slower, purple faster, white alike; distinguishable for most eyes (ColorBrewer)."""
_MIN_COLOUR_RANGE = 0.1
_MAX_RANK_TICKS = 16


@style.drawing()
def ranks(frame: Frame, slow: Sequence[SlowRank], first_step: int, subject: str) -> Figure:
    """Heat map of a run: steps (x) by ranks (y), coloured by the rank's time at work beyond the median of its peers,
    as a share.

    Args:
        frame: a row per rank and step with `rank`, `step`, `excess` (a share; NaN without peers).
        slow: those that are slow, by index of the step since when.
        first_step: number of the first step.
        subject: what ran.
    """
    table = frame.pivot(index="rank", columns="step", values="excess")
    finding = f"None of {len(table)} ranks is slower than its peers"
    if slow:
        words = sentence(slow[0], first_step)
        finding = words[0].upper() + words[1:] + (f"; {len(slow) - 1} more" if len(slow) > 1 else "")
    edge = max(_MIN_COLOUR_RANGE, float(table.abs().quantile(0.98).max()))
    look: style.Look = {"cmap": _EXCESS_COLOURS, "vmin": -edge, "vmax": edge}
    figure, axes, image = _rank_cells(table, finding, subject, **look)
    mark: style.Look = {"marker": "|", "markersize": 14, "markeredgewidth": 2, "color": style.INK}
    for slow_rank in slow:
        axes.plot([first_step + slow_rank.since], [table.index.get_loc(slow_rank.rank)], **mark)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    bar = figure.colorbar(image, ax=axes, format=PercentFormatter(1.0, decimals=0))
    bar.set_label("time at work beyond its peers")
    return figure


@style.drawing()
def late_ranks(frame: Frame, subject: str) -> Figure:
    """Heat map of a run: pieces of a step (x) by ranks (y), coloured by seconds that other ranks waited for the rank.

    Args:
        frame: a row per rank and piece with `rank`, `share` (of the step, when the piece begins), `late_seconds`.
        subject: what ran.
    """
    table = frame.pivot(index="rank", columns="share", values="late_seconds")
    name, scale = time_unit(max(1e-9, float(table.max().max())))
    total = table.sum(axis=1)
    lost = format_seconds(float(total.max()))
    finding = f"Others wait longest for rank {total.idxmax()}: {lost} of a step in all"
    figure, axes, image = _rank_cells(table / scale, finding, subject, cmap="Oranges")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("of the step")
    figure.colorbar(image, ax=axes).set_label(f"others wait for it ({name})")
    return figure


def _rank_cells(table: Frame, finding: str, subject: str, **colours: Any) -> tuple[Figure, Axes, QuadMesh]:
    """Heat map with a row of cells for each rank."""
    figure, axes = style.new_chart(8.0, min(12.0, 2.2 + 0.28 * len(table)), finding, subject)
    image = axes.pcolormesh(table.columns, range(len(table)), np.ma.masked_invalid(table), **colours)
    axes.invert_yaxis()
    tick_step = -(-len(table) // _MAX_RANK_TICKS)
    axes.set_yticks(range(0, len(table), tick_step), [str(rank) for rank in table.index[::tick_step]])
    axes.set_ylabel("rank")
    axes.grid(False)
    return figure, axes, image


_GROUPS = {
    "bound_by": ("largest part beside compute", "bound by {}"),
    "tp": ("tensor-parallel ranks", "with tp{}"),
    "pp": ("pipeline ranks", "with pp{}"),
    "mbs": ("sequences a microbatch", "with mbs{}"),
    "gpus": ("GPUs", "on {} GPUs"),
    "source": ("source", "of {}"),
}
"""Column that groups runs, one per panel → title of the panel, and words on the runs of a group."""
_MAX_GROUPS = 9
_MIN_RUNS = 3
"""Fewest runs of a group that gets a box."""
_MARKERS = ("o", "s", "^", "D", "v")
_BOXES = "boxes: the middle half, whiskers: 10th to 90th percentile, in brackets: runs"
_MAX_REACH = 60.0
"""Largest end of an error axis, in percent; whiskers beyond it are labelled with their value."""


@style.drawing()
def predicted_against_measured(frame: Frame, subject: str) -> Figure:
    """Scatter plot of predicted against measured step times with diagonal and ±10 % band, a colour and mark for each
    source.

    Args:
        frame: a row per run with `source`, `measured_seconds`, `predicted_seconds`.
        subject: where the runs come from.
    """
    colours = style.SERIES_COLOURS
    has_many_sources = frame["source"].nunique() > len(colours)
    measured, predicted = frame["measured_seconds"], frame["predicted_seconds"]
    height, finding = 8.6 if has_many_sources else 6.8, _step_time_finding(measured, predicted)
    figure, axes = style.new_chart(6.8, height, finding, subject)
    _draw_diagonal(axes, measured, predicted)
    for number, (source, runs) in enumerate(frame.groupby("source", sort=False)):
        error = (runs["predicted_seconds"] / runs["measured_seconds"] - 1).abs().median()
        round_number, place = divmod(number, len(colours))
        look: style.Look = {"s": 16, "alpha": 0.65, "linewidths": 0, "color": colours[place]}
        look["marker"] = _MARKERS[round_number % len(_MARKERS)]
        points = axes.scatter(runs["measured_seconds"], runs["predicted_seconds"], **look)
        label = f"{source_title(str(source))}, {counted(len(runs), 'run')}: {percent(float(error))}"
        points.set(label=label, zorder=3 + 1 / len(runs))  # the few above the many
    names: style.Look = {"title": "source and its median error", "title_fontsize": 8, "fontsize": 8}
    names |= {"alignment": "left", "handletextpad": 0.2, "markerscale": 1.6}
    if has_many_sources:  # more than leave the diagonal free
        figure.legend(loc="outside lower left", ncols=2, **names)
    else:
        axes.legend(loc="upper left", **names)
    return figure


@style.drawing()
def errors_by_axis(frame: Frame, subject: str) -> Figure:
    """Box plots of the signed step-time error, a panel for each way to group runs: bottleneck, tp, pp, microbatch,
    GPUs, source.

    Args:
        frame: a row per run with the columns of `_GROUPS`, `measured_seconds`, `predicted_seconds`.
        subject: where the runs come from.
    """
    error = 100 * (frame["predicted_seconds"] / frame["measured_seconds"] - 1)
    reach = min(max(150 * BAND, 1.15 * float(error.abs().quantile(0.98))), _MAX_REACH)
    subject = f"{subject}; band: ±{100 * BAND:.0f} %; {_BOXES}"
    figure = style.new_figure(11.4, 7.8, _worst_group(frame, error), subject)
    for axes, column in zip(figure.subplots(2, 3).flat, _GROUPS, strict=True):
        _draw_panel(axes, column, frame[column], error, reach)
    return figure


def _draw_panel(axes: Axes, column: str, values: Frame, error: Frame, reach: float) -> None:
    """Draw a box plot of errors for each group: box from quartile to quartile, whiskers to the 10th and 90th
    percentile."""
    groups = _frequent_groups(column, values)
    _draw_band(axes)
    blue: style.Look = {"whiskerprops": {"color": style.BLUE}, "capprops": {"color": style.BLUE}}
    blue["boxprops"] = {"facecolor": style.SKY, "edgecolor": style.BLUE, "alpha": 0.6}
    shape: style.Look = {"orientation": "horizontal", "widths": 0.55, "whis": (10, 90), "showfliers": False}
    median = {"color": style.VERMILION, "linewidth": 2}
    samples = [error[values == group] for group in groups]
    boxes = axes.boxplot(samples, patch_artist=True, medianprops=median, **shape, **blue)
    for number, whisker in enumerate(boxes["whiskers"]):
        end = float(whisker.get_xdata()[1])
        if abs(end) > reach:  # it leaves the chart
            place, side = (math.copysign(reach, end), 1 + number // 2), "left" if end < 0 else "right"
            look: style.Look = {"ha": side, "va": "bottom", "size": 7, "color": style.BLUE}
            style.write_beside(axes, f"to {end:+.0f} %", place, (3 if end < 0 else -3, 3), **look)
    names = [_group_name(column, group) for group in groups]
    if column == "source":
        names = ["\n".join(lines_of(name, 20)) for name in names]
    labels = [f"{name}  ({int((values == group).sum())})" for name, group in zip(names, groups, strict=True)]
    axes.set_yticks(range(1, len(groups) + 1), labels, size=8)
    axes.invert_yaxis()
    axes.set_xlim(-reach, reach)
    rare_groups = values.nunique() - len(groups)
    rare_words = f", without {counted(rare_groups, 'rare one')}" if rare_groups else ""
    axes.set_title(f"by {_GROUPS[column][0]}{rare_words}", loc="left", size=9)
    axes.set_xlabel("error of step time (%)", size=8)


def _frequent_groups(column: str, values: Frame) -> list[object]:
    """Groups with enough runs to draw: numbers in ascending order, names by number of runs."""
    sizes = values.value_counts()
    frequent = sizes[sizes >= min(_MIN_RUNS, sizes.iloc[0])].index[:_MAX_GROUPS]
    return list(frequent) if column in ("bound_by", "source") else sorted(frequent)


def _group_name(column: str, group: object) -> str:
    """Name of a group of runs, as a label."""
    names = {"bound_by": part_label, "source": source_title}
    return names[column](str(group)) if column in names else str(group)


def _worst_group(frame: Frame, error: Frame) -> str:
    """Title of the box plots: the group with the largest median error."""
    groups = [(column, group) for column in _GROUPS for group in _frequent_groups(column, frame[column])]
    medians = {place: float(error[frame[place[0]] == place[1]].median()) for place in groups}
    column, group = max(groups, key=lambda place: abs(medians[place]))
    name = _GROUPS[column][1].format(_group_name(column, group))
    runs = counted(int((frame[column] == group).sum()), "run")
    return f"Runs {name} are furthest off: median error {medians[column, group]:+.1f} % ({runs})"
