"""Figures of measured runs beside predictions: step times, errors by quantity and group, timelines, slow ranks.

`accuracy` compares a few runs (`one_run`: all quantities of one), `predicted_against_measured` and `errors_by_axis` the
many published ones. `ranks`, `late_ranks` and `timelines` show what each rank did. The band of ±10 % is common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from cost_models.measured.runs.cases import source_title
from cost_models.units import counted, format_seconds
from executor.measure.slow_ranks import SlowRank, sentence
from meshwright.plots import style
from meshwright.plots.layouts import PASSES, Rows, TimeSpan, chart_points, draw_passes, pass_legend
from meshwright.plots.parts import Label, put_labels
from meshwright.plots.style import Frame, short_layout
from meshwright.records.runs import ComparedQuantity
from meshwright.render.measured import SHARES, error_text, quantity_label, quantity_text
from meshwright.render.words import lines_of, part_label, percent, size_unit, time_unit

BAND = 0.10
"""Half-width of the drawn band: the error people call good."""


def draw_diagonal(axes: Axes, measured: Frame, predicted: Frame) -> None:
    """Both axes logarithmic and alike, wide enough for these step times (s), with the band behind them."""
    low = 0.7 * min(float(measured.min()), float(predicted.min()))
    high = 1.45 * max(float(measured.max()), float(predicted.max()))
    ends = [low, high]
    lower, upper = ([(1 + side * BAND) * value for value in ends] for side in (-1, 1))
    axes.fill_between(ends, lower, upper, color=style.FAINT, linewidth=0)
    axes.plot(ends, ends, color=style.GREY, linewidth=1.0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        style.log_ticks(axis, low, high)
    axes.set_xlabel("measured step time (s)")
    axes.set_ylabel("predicted step time (s)")
    style.quiet_axis(axes, grid="both")
    words = f"band: ±{100 * BAND:.0f} %"
    axes.text(0.98, 0.02, words, transform=axes.transAxes, ha="right", color=style.GREY, size=8)


def draw_band(axes: Axes) -> None:
    """Draw the band behind errors in percent along x."""
    axes.axvspan(-100 * BAND, 100 * BAND, color=style.FAINT, linewidth=0)
    axes.axvline(0, color=style.GREY, linewidth=1.0)


def step_time_finding(measured: Frame, predicted: Frame) -> str:
    """The median error and how many runs are inside the band."""
    if measured.empty:
        return "No step time was compared"
    error = (predicted / measured - 1).abs()
    runs_in_band = int((error <= BAND).sum())
    return (
        f"Step time: median error {percent(float(error.median()))}; "
        f"{runs_in_band} of {counted(len(error), 'run')} within {100 * BAND:.0f} %"
    )


_MAX_QUANTITIES = 24
_MAX_LABELS = 12
_MAX_COLOURS = 5
"""Runs that have a colour each, so that they are found again beside the diagonal."""
_RUN_COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY)
_MAX_ERROR = 100.0
"""Percent: dots beyond it lie at the edge of the chart, as arrows. What is computed from errors knows no edge."""


def accuracy(frame: Frame, subject: str) -> Figure:
    """Step times on a diagonal with a ±10 % band; beside it the error of every quantity. Of one run, all its parts.

    Args:
        frame: a row per run and quantity with `label`, `quantity`, `predicted`, `measured` (base units); step time is
            the quantity `step_seconds`.
        subject: where the runs come from.
    """
    steps = frame[frame["quantity"] == "step_seconds"]
    if len(steps) == 1:
        return one_run(frame, subject)
    compared = frame[frame["measured"] > 0]
    rows = list(dict.fromkeys(sorted(compared["quantity"], key=_quantity_order)))[:_MAX_QUANTITIES]
    colours = _run_colours(frame)
    with style.sheet(10.0 if len(rows) > 1 else 6.6, max(5.4, 1.6 + 0.34 * len(rows))) as figure:
        charts = list(figure.subplots(1, 2 if len(rows) > 1 else 1, squeeze=False)[0])
        draw_diagonal(charts[0], steps["measured"], steps["predicted"])
        charts[0].set_anchor("N")
        charts[0].scatter(
            steps["measured"],
            steps["predicted"],
            s=34,
            color=[colours[label] for label in steps["label"]],
            edgecolors="white",
            zorder=3,
        )
        if len(rows) > 1:
            _draw_errors(charts[1], compared, rows, colours)
        style.put_title(figure, step_time_finding(steps["measured"], steps["predicted"]), subject)
        _label_runs(charts[0], steps, colours)
    return figure


def _quantity_order(quantity: str) -> int:
    """Times first, then rates and shares, then memory."""
    kinds = ("step_seconds", "_seconds", "per_second", "mfu", "hfu", "peak_bytes", "_bytes", "")
    return next(number for number, kind in enumerate(kinds) if kind in quantity)


def _run_colours(frame: Frame) -> dict[str, str]:
    """A colour for each run where there are few."""
    labels = list(dict.fromkeys(frame["label"]))
    has_colours = len(labels) <= _MAX_COLOURS
    return {label: _RUN_COLOURS[number] if has_colours else style.BLUE for number, label in enumerate(labels)}


def _label_runs(axes: Axes, steps: Frame, colours: dict[str, str]) -> None:
    """Name the runs where there are few: those further off first."""
    if len(steps) > _MAX_LABELS:
        return
    order = (steps["predicted"] / steps["measured"] - 1).abs().sort_values(ascending=False).index
    labels = [
        Label(
            text=short_layout(str(run["label"]), 24), at=(run["measured"], run["predicted"]), colour=style.INK
        )
        for _, run in steps.loc[order].iterrows()
    ]
    put_labels(axes, labels, texts=axes.texts)


def _draw_errors(axes: Axes, frame: Frame, rows: list[str], colours: dict[str, str]) -> None:
    """A dot per run and a bar at the median for each quantity; shares differ in points."""
    errors = [_errors_of(frame[frame["quantity"] == quantity], quantity) for quantity in rows]
    largest = max(float(error.abs().max()) for error in errors)
    edge = min(max(largest, 150 * BAND), _MAX_ERROR)
    draw_band(axes)
    shift = {label: _dot_shift(number, len(colours)) for number, label in enumerate(colours)}
    for row, (quantity, error) in enumerate(zip(rows, errors, strict=True)):
        labels = frame.loc[error.index, "label"]
        for label, value in zip(labels, error, strict=True):
            is_beyond = abs(value) > edge
            axes.scatter(
                min(max(value, -edge), edge),
                row + shift[label],
                s=32 if is_beyond else 26,
                marker=("<" if value < 0 else ">") if is_beyond else "o",
                color=colours[label],
                alpha=0.8,
                linewidths=0,
            )
        middle = float(error.median())
        bar_place = min(max(middle, -edge), edge)
        axes.scatter([bar_place], [row], s=200, marker="|", color=style.INK, linewidths=2)
        box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.3}
        style.write_beside(
            axes, _error_words(quantity, middle), (bar_place, row), (0, 9), ha="center", size=7.5, bbox=box
        )
    axes.set_yticks(range(len(rows)), [_quantity_name(name) for name in rows])
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.set_xlim(-1.18 * edge, 1.18 * edge)
    axes.set_xlabel("error of the prediction (%; of MFU in points); bar: median")
    style.quiet_axis(axes, grid="x")


def _errors_of(runs: Frame, quantity: str) -> Frame:
    """In percent of what was measured; of a share, the difference in points."""
    if quantity in SHARES:
        return 100 * (runs["predicted"] - runs["measured"])
    return 100 * (runs["predicted"] / runs["measured"] - 1)


def _error_words(quantity: str, error: float) -> str:
    return f"{error:+,.1f} {'pt' if quantity in SHARES else '%'}"


def _dot_shift(number: int, runs: int) -> float:
    """Offset of a run's dot from the middle of the row, where runs are few, so that dots at the edge do not overlap."""
    return 0.2 * (number - (runs - 1) / 2) if runs <= _MAX_COLOURS else 0.0


def _quantity_name(quantity: str) -> str:
    return f"{quantity_label(quantity)} memory" if "_bytes" in quantity else quantity_label(quantity)


_STEP_SECONDS = "step_seconds"
_TOTALS = (
    _STEP_SECONDS,
    "thread_cpu_seconds",
    "peak_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "host_memory_bytes",
    "host_link_seconds",
    "host_update_seconds",
    "drive_bytes",
    "drive_read_bytes",
    "drive_written_bytes",
    "drive_transfer_seconds",
)
"""Quantities that are totals, not parts of another quantity."""
_MAX_ROWS = 20
"""Maximum rows of a chart; of more, those with the largest errors are shown, in the original order."""
_SIDES = (("predicted", style.BLUE, -0.19), ("measured", style.ORANGE, 0.19))
"""Column, colour, and offset of its bar from the middle of the row."""
_BAR_HEIGHT = 0.34
_LEAST_SHARE = 0.002
"""Smallest bar that is drawn, as a share of the largest bar of the chart."""


def one_run(frame: Frame, subject: str) -> Figure:
    """Times on the left, memory on the right, a pair of bars for each quantity and the error behind it.

    Args:
        frame: a row per quantity with `label`, `quantity`, `predicted`, `measured` (base units).
        subject: where the run comes from.
    """
    lines = [
        ComparedQuantity(str(row["quantity"]), float(row["predicted"]), float(row["measured"]))
        for _, row in frame.iterrows()
    ]
    charts = {
        "time of one step": _visible_quantities([line for line in lines if "_seconds" in line.quantity]),
        "memory of the fullest device": _visible_quantities(
            [line for line in lines if "_bytes" in line.quantity]
        ),
    }
    panels = {name: bars for name, bars in charts.items() if bars}
    rows = max(len(bars) for bars in panels.values())
    with style.sheet(5.2 * len(panels) if len(panels) > 1 else 6.6, 1.9 + 0.42 * rows) as figure:
        for axes, (name, bars) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            _draw_pairs(axes, name, bars, rows)
        label = str(frame["label"].iloc[0])
        style.put_title(
            figure, _one_run_finding(lines), "; ".join([f"{label} in {subject}", *_rate_words(lines)])
        )
    return figure


def _visible_quantities(lines: list[ComparedQuantity]) -> list[ComparedQuantity]:
    """Quantities large enough to see; of too many rows, those with the largest errors."""
    min_bar = _LEAST_SHARE * max((max(line.predicted, line.measured) for line in lines), default=0.0)
    visible_lines = [line for line in lines if max(line.predicted, line.measured) > min_bar]
    by_miss = sorted(visible_lines, key=lambda line: (line.quantity not in _TOTALS, -abs(_miss(line))))
    shown_lines = by_miss[:_MAX_ROWS]
    return [line for line in visible_lines if line in shown_lines]


def _draw_pairs(axes: Axes, name: str, lines: list[ComparedQuantity], rows: int) -> None:
    largest = max(max(line.predicted, line.measured) for line in lines)
    unit, scale = (size_unit if "_bytes" in lines[0].quantity else time_unit)(largest)
    reach = largest / scale
    for row, line in enumerate(lines):
        total = line.quantity in _TOTALS or line.quantity.startswith("peak_bytes")
        for side, colour, shift in _SIDES:
            value = getattr(line, side)
            axes.barh(row + shift, value / scale, height=_BAR_HEIGHT, color=colour)
            text = f"  {quantity_text(line.quantity, value)}" + (f" {side}" if row == 0 else "")
            axes.text(
                value / scale, row + shift, text, va="center", size=7.5, weight="bold" if total else "normal"
            )
        is_off = line.measured <= 0 or abs(_miss(line)) > BAND * line.measured
        axes.text(
            1.0,
            row,
            error_text(line),
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            weight="bold" if is_off else "normal",
            color=style.VERMILION if is_off else style.SOFT,
        )
    axes.set_yticks(range(len(lines)), [quantity_label(line.quantity) for line in lines])
    for tick, line in zip(axes.get_yticklabels(), lines, strict=True):
        tick.set_fontweight("bold" if line.quantity in _TOTALS else "normal")
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlim(0, 1.62 * reach)
    style.measure_axis(axes, "x", f"{name} ({unit})")


def _miss(line: ComparedQuantity) -> float:
    return line.predicted - line.measured


def _rate_words(lines: list[ComparedQuantity]) -> list[str]:
    """Shares and rates, which have no bar, in words."""
    return [
        f"{quantity_label(line.quantity)} {quantity_text(line.quantity, line.predicted)} predicted, "
        f"{quantity_text(line.quantity, line.measured)} measured ({error_text(line)})"
        for line in lines
        if line.quantity in (SHARES[0], "tokens_per_second")
    ]


def _one_run_finding(lines: list[ComparedQuantity]) -> str:
    """Title: the error of the step time, and the part with the largest error."""
    step = next(line for line in lines if line.quantity == _STEP_SECONDS)
    words = f"Step predicted {_text_of(step, 'predicted')}, measured {_text_of(step, 'measured')}: {error_text(step)}"
    parts = [line for line in lines if "_seconds" in line.quantity and line.quantity not in _TOTALS]
    if not parts:
        return words
    worst = max(parts, key=lambda line: abs(_miss(line)))
    return (
        f"{words}; furthest off is {quantity_label(worst.quantity)}, "
        f"{_text_of(worst, 'predicted')} against {_text_of(worst, 'measured')}"
    )


def _text_of(line: ComparedQuantity, side: str) -> str:
    return quantity_text(line.quantity, getattr(line, side))


_EXCESS_COLOURS = "PuOr_r"
"""Orange is slower, purple quicker, white alike: told apart by most eyes (ColorBrewer)."""
_MIN_COLOUR_RANGE = 0.1
_MAX_RANK_TICKS = 16


def ranks(frame: Frame, slow: Sequence[SlowRank], first_step: int, subject: str) -> Figure:
    """A row for each rank, a column for each step; colour is the time at work beyond the median of its peers.

    Args:
        frame: a row per rank and step with `rank`, `step`, `excess` (a share; NaN without peers).
        slow: those that are slow, by index of the step since when.
        first_step: number of the first step.
        subject: what ran.
    """
    table = frame.pivot(index="rank", columns="step", values="excess")
    edge = max(_MIN_COLOUR_RANGE, float(table.abs().quantile(0.98).max()))
    with style.drawing():
        ends = (table.columns[0] - 0.5, table.columns[-1] + 0.5)
        colours = mpl.colormaps[_EXCESS_COLOURS].with_extremes(bad="white")
        figure, axes, image = _rank_cells(table, ends, cmap=colours, vmin=-edge, vmax=edge)
        for one in slow:
            row = table.index.get_loc(one.rank)
            axes.plot(
                [first_step + one.since], [row], marker="|", markersize=14, markeredgewidth=2, color=style.INK
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("step")
        bar = figure.colorbar(image, ax=axes, format=PercentFormatter(1.0, decimals=0))
        bar.set_label("time at work beyond its peers")
        style.put_title(figure, _ranks_finding(slow, len(table), first_step), subject)
    return figure


def late_ranks(frame: Frame, subject: str) -> Figure:
    """A row for each rank, a column for each piece of a step; colour is for how long others waited for the rank there.

    Args:
        frame: a row per rank and piece with `rank`, `share` (of the step, when the piece begins), `late_seconds`.
        subject: what ran.
    """
    table = frame.pivot(index="rank", columns="share", values="late_seconds")
    name, scale = time_unit(max(1e-9, float(table.max().max())))
    with style.drawing():
        figure, axes, image = _rank_cells(table / scale, (0.0, 1.0), cmap="Oranges")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("of the step")
        figure.colorbar(image, ax=axes).set_label(f"others wait for it ({name})")
        total = table.sum(axis=1)
        worst = total.idxmax()
        finding = (
            f"Others wait longest for rank {worst}: {format_seconds(float(total[worst]))} of a step in all"
        )
        style.put_title(figure, finding, subject)
    return figure


def _rank_cells(table: Frame, ends: tuple[float, float], **colours: Any) -> tuple[Figure, Axes, AxesImage]:
    """A row of coloured cells for each rank, between two ends of the x axis."""
    figure = style.new_figure(8.0, min(12.0, 2.2 + 0.28 * len(table)))
    axes = figure.subplots()
    extent = (*ends, len(table) - 0.5, -0.5)
    image = axes.imshow(table.to_numpy(), aspect="auto", extent=extent, interpolation="nearest", **colours)
    tick_step = -(-len(table) // _MAX_RANK_TICKS)
    axes.set_yticks(range(0, len(table), tick_step), [str(one) for one in table.index[::tick_step]])
    axes.set_ylabel("rank")
    axes.grid(False)
    return figure, axes, image


def _ranks_finding(slow: Sequence[SlowRank], count: int, first_step: int) -> str:
    if not slow:
        return f"None of {count} ranks is slower than its peers"
    words = sentence(slow[0], first_step)
    others_words = f"; {len(slow) - 1} more" if len(slow) > 1 else ""
    return words[0].upper() + words[1:] + others_words


_NEGLIGIBLE_DELAY = 0.02
"""Share by which passes of a stage may take longer than planned without a word."""


def timelines(measured: Frame, planned: Frame, ranks: int, subject: str) -> Figure:
    """Measured passes above planned passes, for every rank of the pipeline.

    Args:
        measured: a row per pass with `rank` (its place in the pipeline), `kind`, `chunk`, `microbatch`,
            `start_seconds`, `end_seconds`.
        planned: the same of the plan, and what follows the passes.
        ranks: places of the pipeline.
        subject: which plan and which run.
    """
    end = max(float(frame["end_seconds"].max()) for frame in (measured, planned))
    unit, rows, step_span = time_unit(end), Rows(ranks), TimeSpan("", 0.0, end)
    height = max(0.6, min(3.5, 0.42 * ranks))
    with style.sheet(12.0, 2.8 + 2 * height) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        charts = ((upper, measured, "measured, until the last pass"), (lower, planned, "planned, the step"))
        for axes, frame, words in charts:
            draw_passes(axes, frame, rows, step_span, unit, points=chart_points(1.0) if ranks <= 16 else 0.0)
            seconds = float(frame["end_seconds"].max())
            axes.set_title(f"{words}: {format_seconds(seconds)}", loc="left", size=9)
            axes.set_ylabel("pipeline rank")
            axes.axvline(seconds / unit[1], color=style.INK, linewidth=0.8)
        upper.set_xlabel("")
        kinds = {*measured["kind"], *planned["kind"]}
        idle: list[Patch] = []
        pass_legend(figure, kinds, int(planned["chunk"].max()) + 1, idle, idle=ranks > 1)
        style.put_title(figure, _timelines_finding(measured, planned, ranks), subject)
    return figure


def _timelines_finding(measured: Frame, planned: Frame, ranks: int) -> str:
    """Title: measured and planned seconds of all passes, and the rank that computes longest beside its plan."""
    busy = []
    for frame in (measured, planned):
        passes = frame[frame["kind"].isin(list(PASSES))]
        lengths = (passes["end_seconds"] - passes["start_seconds"]).groupby(passes["rank"]).sum()
        busy.append((lengths, float(passes["end_seconds"].max() - passes["start_seconds"].min())))
    (measured_busy, measured_seconds), (planned_busy, planned_seconds) = busy
    words = f"Passes take {format_seconds(measured_seconds)}, {format_seconds(planned_seconds)} were planned"
    delay_ratio = measured_busy / planned_busy
    worst = delay_ratio.idxmax()
    excess = float(delay_ratio[worst] / delay_ratio.drop(worst).median() - 1) if ranks > 1 else 0.0
    if excess > _NEGLIGIBLE_DELAY:
        words += f"; beside the others pipeline rank {worst} computes {percent(excess)} longer than planned"
    return words


AXES = ("bound_by", "tp", "pp", "mbs", "gpus", "source")
"""Columns by which errors are grouped, a panel each."""
_AXIS_LABELS = {
    "bound_by": "largest part beside compute",
    "tp": "tensor-parallel ranks",
    "pp": "pipeline ranks",
    "mbs": "sequences a microbatch",
    "gpus": "GPUs",
    "source": "source",
}
_GROUP_WORDS = {
    "bound_by": "bound by {}",
    "tp": "with tp{}",
    "pp": "with pp{}",
    "mbs": "with mbs{}",
    "gpus": "on {} GPUs",
    "source": "of {}",
}
_MAX_GROUPS = 9
_MIN_RUNS = 3
"""Runs below which a group has no box."""
_SOURCE_COLOURS = (
    style.BLUE,
    style.VERMILION,
    style.GREEN,
    style.ORANGE,
    style.PURPLE,
    style.SKY,
    style.BROWN,
    style.INK,
    style.YELLOW,
)
_MARKERS = ("o", "s", "^", "D", "v")
_WHISKERS = (10, 90)
_BOXES = "boxes: the middle half, whiskers: 10th to 90th percentile, in brackets: runs"
_MAX_REACH = 60.0
"""Percent at which a chart ends at the latest; what reaches further is told there."""


def predicted_against_measured(frame: Frame, subject: str) -> Figure:
    """Step times on a diagonal with a ±10 % band, a colour and a mark for each source.

    Args:
        frame: a row per run with `source`, `measured_seconds`, `predicted_seconds`.
        subject: where the runs come from.
    """
    with style.drawing():
        has_many_sources = frame["source"].nunique() > len(_SOURCE_COLOURS)
        figure = style.new_figure(6.8, 8.6 if has_many_sources else 6.8)
        axes = figure.add_subplot()
        draw_diagonal(axes, frame["measured_seconds"], frame["predicted_seconds"])
        sizes = frame["source"].value_counts()
        for number, (source, runs) in enumerate(frame.groupby("source", sort=False)):
            error = (runs["predicted_seconds"] / runs["measured_seconds"] - 1).abs().median()
            axes.scatter(
                runs["measured_seconds"],
                runs["predicted_seconds"],
                s=16,
                alpha=0.65,
                linewidths=0,
                color=_SOURCE_COLOURS[number % len(_SOURCE_COLOURS)],
                marker=_MARKERS[number // len(_SOURCE_COLOURS) % len(_MARKERS)],
                label=f"{source_title(str(source))}, {counted(len(runs), 'run')}: {percent(float(error))}",
                zorder=3 + 1 / float(sizes[source]),  # the few above the many
            )
        names = {
            "title": "source and its median error",
            "alignment": "left",
            "handletextpad": 0.2,
            "markerscale": 1.6,
            "fontsize": 8,
            "title_fontsize": 8,
        }
        if has_many_sources:  # more than leave the diagonal free
            figure.legend(loc="outside lower left", ncols=2, **names)
        else:
            axes.legend(loc="upper left", **names)
        style.put_title(
            figure, step_time_finding(frame["measured_seconds"], frame["predicted_seconds"]), subject
        )
    return figure


def errors_by_axis(frame: Frame, subject: str) -> Figure:
    """Signed error of step time by what binds the run, by each axis of the layout, by size and by source.

    Args:
        frame: a row per run with the columns of `AXES`, `measured_seconds`, `predicted_seconds`.
        subject: where the runs come from.
    """
    error = 100 * (frame["predicted_seconds"] / frame["measured_seconds"] - 1)
    reach = min(max(1.5 * 100 * BAND, 1.15 * float(error.abs().quantile(0.98))), _MAX_REACH)
    with style.sheet(11.4, 7.8) as figure:
        for axes, column in zip(figure.subplots(2, 3).flat, AXES, strict=True):
            _draw_panel(axes, column, frame[column], error, reach)
        style.put_title(figure, _worst_group(frame, error), f"{subject}; band: ±{100 * BAND:.0f} %; {_BOXES}")
    return figure


def _draw_panel(axes: Axes, column: str, values: Frame, error: Frame, reach: float) -> None:
    """A box from quartile to quartile with whiskers to the 10th and 90th percentile, a bar at the median."""
    groups = _frequent_groups(column, values)
    draw_band(axes)
    boxes = axes.boxplot(
        [error[values == group] for group in groups],
        orientation="horizontal",
        widths=0.55,
        whis=_WHISKERS,
        showfliers=False,
        patch_artist=True,
        medianprops={"color": style.VERMILION, "linewidth": 2},
        boxprops={"facecolor": style.SKY, "edgecolor": style.BLUE, "alpha": 0.6},
        whiskerprops={"color": style.BLUE},
        capprops={"color": style.BLUE},
    )
    assert len(boxes["medians"]) == len(groups)
    for number, whisker in enumerate(boxes["whiskers"]):
        end = float(whisker.get_xdata()[1])
        if abs(end) > reach:
            _write_whisker_end(axes, 1 + number // 2, math.copysign(reach, end), end)
    labels = [f"{_group_label(column, group)}  ({int((values == group).sum())})" for group in groups]
    axes.set_yticks(range(1, len(groups) + 1), labels, size=8)
    axes.invert_yaxis()
    axes.set_xlim(-reach, reach)
    rare_groups = values.nunique() - len(groups)
    rare_words = f", without {counted(rare_groups, 'rare one')}" if rare_groups else ""
    axes.set_title(f"by {_AXIS_LABELS[column]}{rare_words}", loc="left", size=9)
    axes.set_xlabel("error of step time (%)", size=8)
    style.quiet_axis(axes, grid="x")


def _write_whisker_end(axes: Axes, row: int, edge: float, end: float) -> None:
    """Write the end of a whisker that leaves the chart."""
    side, shift = ("left", 3) if edge < 0 else ("right", -3)
    look = {"ha": side, "va": "bottom", "size": 7, "color": style.BLUE}
    style.write_beside(axes, f"to {end:+.0f} %", (edge, row), (shift, 3), **look)


def _frequent_groups(column: str, values: Frame) -> Sequence[object]:
    """The groups drawn: numbers in their order, names by how many runs they have; the most frequent ones."""
    sizes = values.value_counts()
    large_enough = sizes[sizes >= min(_MIN_RUNS, sizes.iloc[0])]
    frequent = large_enough.index[:_MAX_GROUPS]
    return list(frequent) if column in ("bound_by", "source") else sorted(frequent)


def _group_label(column: str, group: object) -> str:
    label = _group_name(column, group)
    return "\n".join(lines_of(label, 20)) if column == "source" else label


def _group_name(column: str, group: object) -> str:
    names = {"bound_by": part_label, "source": source_title}
    return names[column](str(group)) if column in names else str(group)


def _worst_group(frame: Frame, error: Frame) -> str:
    """Title: the group with the largest median error."""
    medians = [
        (abs(float(error[frame[column] == group].median())), column, group)
        for column in AXES
        for group in _frequent_groups(column, frame[column])
    ]
    _, column, group = max(medians, key=lambda one: one[0])
    errors = error[frame[column] == group]
    name = _GROUP_WORDS[column].format(_group_name(column, group))
    return f"Runs {name} are furthest off: median error {float(errors.median()):+.1f} % ({counted(len(errors), 'run')})"
