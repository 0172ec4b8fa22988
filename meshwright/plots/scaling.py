"""Figures of scaling: throughput and GPU time against the number of GPUs, MFU against bandwidth of the slowest links.

Strong scaling keeps the batch, weak scaling has it grow with the GPUs; every point is the best layout there.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import counted, format_count, format_seconds, grouped
from meshwright.plots import style
from meshwright.plots.parts import legend_below, stack_bars
from meshwright.plots.style import Frame, brief_layout, short_layout, unproven
from meshwright.render.words import part_label, percent, sentence_list

_KINDS = {"strong": (style.BLUE, "o"), "weak": (style.VERMILION, "s")}
"""Colour and mark of each kind of scaling."""
BATCH_WORDS = {"strong": "same batch", "weak": "batch growing with them"}
_LAYOUT_DISTANCE = 0.12
"""Smallest distance between numbers of GPUs with layouts written below, as a share of the axis."""
_LAYOUT_COLUMNS = 11
_LAYOUT_SIZE = 7.0
_BELOW_POINTS = 34.0
"""Points from the axis down to the first layout."""


def lines_by_kind(frame: Frame) -> dict[str, Frame]:
    """Points of each kind of scaling (strong or weak), in order of the number of GPUs."""
    return {str(kind): points.sort_values("gpus") for kind, points in frame.groupby("kind", sort=True)}


@style.drawing()
def scaling(frame: Frame, subject: str) -> Figure:
    """Line plots of the best layouts: throughput and MFU (y) against the number of GPUs (x), with the layouts written
    below.

    Args:
        frame: a row per point with `kind` (strong or weak), `gpus`, `layout`, `tokens_per_second`, `mfu`,
            `global_batch`, `gap`; numbers of GPUs on which nothing fits are left out.
        subject: what was priced.
    """
    lines = lines_by_kind(frame)
    finding = scaling_finding(lines, "tokens")
    figure = style.new_figure(10.4, 5.6, finding, f"{subject}{unproven(frame)}")
    speed, use = figure.subplots(1, 2, width_ratios=(3, 2))
    gpu_ticks = draw_speed(speed, frame, lines, "tokens")
    for kind, line in lines.items():
        style.draw_curve(use, line["gpus"], 100 * line["mfu"], *_KINDS[kind], line["gap"] > 0)
    use.set_ylim(0, 1.25 * 100 * frame["mfu"].max())
    use.margins(x=0.08)
    style.gpu_ticks(use, gpu_ticks, distance=_LAYOUT_DISTANCE)
    style.name_axes(use, "GPUs", "MFU (%)")
    _write_layouts(speed, gpu_ticks, lines)
    return figure


def draw_speed(axes: Axes, frame: Frame, lines: dict[str, Frame], unit: str) -> list[int]:
    """Draw throughput (`unit`: tokens or samples per second) against GPUs, a line for each kind beside ideal scaling;
    return the GPUs at ticks."""
    name = f"{unit}_per_second"
    word, per_tick = style.count_unit(float(frame[name].max()))
    counts = sorted(map(int, frame["gpus"].unique()))
    if len(counts) > 1:  # throughput proportional to GPUs, from the first strong point
        strong: Frame = lines.get("strong", frame)
        first, ends = strong.iloc[0], [counts[0], counts[-1]]
        ideal = [first[name] * gpus / first["gpus"] / per_tick for gpus in ends]
        axes.plot(ends, ideal, color=style.SOFT, linewidth=1.2, linestyle=style.DOTS, label="ideal")
    for kind, line in lines.items():
        speeds, look = line[name] / per_tick, _KINDS[kind]
        style.draw_curve(axes, line["gpus"], speeds, *look, line["gap"] > 0, _batch_words(kind, line))
    style.name_lines(axes, "upper left")
    axes.margins(x=0.08, y=0.1)
    style.log_axis(axes, "y", frame[name] / per_tick)
    style.name_axes(axes, "GPUs", f"throughput ({word}{unit}/s, all GPUs)")
    return style.gpu_ticks(axes, counts, distance=_LAYOUT_DISTANCE)


def _write_layouts(axes: Axes, gpu_ticks: list[int], lines: dict[str, Frame]) -> None:
    """Write the best layout below each number of GPUs, in a row for each kind."""
    down = _BELOW_POINTS
    for kind, line in lines.items():
        points = line[line["gpus"].isin(gpu_ticks)]
        layouts = [brief_layout(layout, _LAYOUT_COLUMNS) for layout in points["layout"]]
        below = axes.secondary_xaxis("bottom")
        below.set_xticks(points["gpus"], layouts, size=_LAYOUT_SIZE, color=_KINDS[kind][0])
        below.tick_params(pad=down)
        below.minorticks_off()
        below.spines[:].set_visible(False)
        down += 1.3 * _LAYOUT_SIZE * max((layout.count("\n") + 1.6 for layout in layouts), default=0.0)


def _batch_words(kind: str, line: Frame) -> str:
    """Words on a line of the chart: kind of scaling, and its first and last global batch: "weak: batch 256 …
    2,048"."""
    batches = dict.fromkeys(grouped(int(line["global_batch"].iloc[end])) for end in (0, -1))
    return f"{kind}: batch {' … '.join(batches)}"


def scaling_finding(lines: dict[str, Frame], unit: str) -> str:
    """Title on scaling: throughput at the last point over the first, and the share of ideal scaling."""
    kind = next((kind for kind in lines if len(lines[kind]) > 1), next(iter(lines)))
    line = lines[kind]
    first, last, speed = line.iloc[0], line.iloc[-1], f"{unit}_per_second"
    if len(line) < 2:
        mfu = f", {percent(first['mfu'])} MFU" if "mfu" in first else ""
        only = f"{counted(int(first['gpus']), 'GPU')}, the only number with an answer"
        return f"{only}: {format_count(first[speed])} {unit}/s{mfu}"
    gain, gpu_ratio = last[speed] / first[speed], last["gpus"] / first["gpus"]
    span = f"{_gpu_span(line)}, {BATCH_WORDS[kind]}"
    return f"{span}: {gain:.1f} x the speed, {percent(gain / gpu_ratio)} of ideal"


def _gpu_span(line: Frame) -> str:
    """First and last number of GPUs of a line, as words."""
    return f"{grouped(int(line['gpus'].iloc[0]))} to {grouped(int(line['gpus'].iloc[-1]))} GPUs"


_BAR_WIDTH = 0.66
_BAR_LAYOUT_COLUMNS = 15
_BAR_INCHES = 1.25
"""Inches per bar, with the space beside it."""


@style.drawing()
def stacked_scaling(frame: Frame, subject: str) -> Figure:
    """Stacked bars of GPU time per step by part, a bar for each number of GPUs; the dotted line is the first bar's
    total, which ideal scaling would keep.

    Args:
        frame: a row per point with `gpus`, `layout`, `step_seconds`, `mfu`, `gap` and seconds of the step by part, the
            global batch the same in all.
        subject: what was priced.
    """
    points = frame.sort_values("gpus").reset_index(drop=True)
    time_parts = [part for part in style.TIME_COLOURS if part in points]
    gpu_seconds = points[time_parts].mul(points["gpus"], axis=0)
    totals = points["step_seconds"] * points["gpus"]
    word, scale = ("GPU-hours", 3600.0) if totals.max() >= 7200 else ("GPU-seconds", 1.0)
    subject += f"; line: what {grouped(int(points['gpus'].iloc[0]))} GPUs spend"
    subject += "; *: not proven the best in time" if (points["gap"] > 0).any() else ""
    width = max(7.6, 1.6 + _BAR_INCHES * len(points))
    figure, axes = style.new_chart(width, 5.8, _stacked_finding(points, gpu_seconds), subject)
    stack_bars(axes, gpu_seconds / scale, style.TIME_COLOURS, _BAR_WIDTH)
    axes.axhline(totals[0] / scale, color=style.SOFT, linewidth=1.2, linestyle=style.DOTS)
    for at, row in points.iterrows():
        step, mfu = format_seconds(float(row["step_seconds"])), percent(float(row["mfu"]))
        words, place = f"{step}{'*' * (row['gap'] > 0)}\n{mfu} MFU", (at, totals[at] / scale)
        style.write_beside(axes, words, place, (0, 3), ha="center", va="bottom", size=8)
    layouts = [short_layout(layout, _BAR_LAYOUT_COLUMNS) for layout in points["layout"]]
    names = [
        f"{grouped(gpus)} GPUs\n\n{layout}" for gpus, layout in zip(points["gpus"], layouts, strict=True)
    ]
    axes.set_xticks(range(len(points)), names, size=_LAYOUT_SIZE)
    axes.set_ylim(0, 1.16 * float(totals.max()) / scale)
    style.name_axes(axes, "GPUs, and the best layout on so many", f"{word} of one step, all GPUs", grid="y")
    legend_below(figure, axes)
    return figure


def _stacked_finding(points: Frame, gpu_seconds: Frame) -> str:
    """Title on GPU time per step: "512 to 4,096 GPUs: a step costs 18.2 % more GPU time; bubble grows most"."""
    totals = (points["step_seconds"] * points["gpus"]).to_numpy()
    if len(points) < 2:
        step = format_seconds(float(points["step_seconds"].iloc[0]))
        return f"{grouped(int(points['gpus'].iloc[0]))} GPUs, the only number with an answer: {step} a step"
    gained = totals[-1] / totals[0] - 1
    if gained < 0:
        return f"{_gpu_span(points)}: a step costs {percent(-gained)} less GPU time"
    loss = part_label((gpu_seconds.iloc[-1] - gpu_seconds.iloc[0]).idxmax())
    return f"{_gpu_span(points)}: a step costs {percent(gained)} more GPU time; {loss} grows most"


_DOMAIN_MARKS = ("o", "s", "D", "^")
_GIGABITS = 8 / 1e9
"""Gigabits per second in one byte per second."""


@style.drawing()
def far_links(frame: Frame, bandwidth: float, inside: str, subject: str) -> Figure:
    """Line plot of the best layouts: bandwidth per GPU of the slowest network level (x) against MFU (y), with the
    axes that cross that level.

    Args:
        frame: a row per point with `domains`, `bandwidth`, `mfu`, `crossing`, `gap`, `step_seconds`.
        bandwidth: of the plan's own cluster, bytes/s of a GPU.
        inside: name of the level that the links leave.
        subject: what was priced.
    """
    several, one_domain = frame[frame["domains"] != 1], frame[frame["domains"] == 1]
    lines = {int(many): line.sort_values("bandwidth") for many, line in several.groupby("domains", sort=True)}
    subject = f"{subject}; beside points: axes that cross{unproven(frame)}"
    finding = _far_links_finding(lines, one_domain, bandwidth, inside)
    figure, axes = style.new_chart(9.6, 4.8, finding, subject)
    axes.set_xscale("log", base=2)
    for at, (domains, line) in enumerate(lines.items()):
        colour, x, y = style.SERIES_COLOURS[at % 4], line["bandwidth"] * _GIGABITS, 100 * line["mfu"]
        label = counted(domains, inside) if domains else ""
        style.draw_curve(axes, x, y, colour, _DOMAIN_MARKS[at % 4], line["gap"] > 0, label)
        changes = line["crossing"] != line["crossing"].shift()
        for rate, mfu, crossing in zip(x[changes], y[changes], line["crossing"][changes], strict=True):
            words = str(crossing).split()
            shift = (0, -7 - 9 * len(words) if at else 7)
            style.write_beside(axes, "\n".join(words), (rate, mfu), shift, ha="center", size=8, color=colour)
    if any(lines):
        style.name_lines(axes, "upper left")
    rates = sorted({float(rate) * _GIGABITS for rate in several["bandwidth"]})
    if not one_domain.empty:
        level = 100 * float(one_domain["mfu"].iloc[0])
        axes.axhline(level, color=style.SOFT, linewidth=1.2, linestyle=style.DOTS)
        axes.text(rates[0], level, f" one {inside}", va="bottom", color=style.SOFT, weight="bold")
    axes.axvline(bandwidth * _GIGABITS, color=style.PALE, linewidth=1.2, zorder=0)
    axes.set_ylim(0, 1.25 * 100 * float(frame["mfu"].max()))
    axes.margins(x=0.06)
    axes.set_xticks(rates, [f"{round(rate, 3):,g}" for rate in rates], size=8)
    axes.minorticks_off()
    name = f"bandwidth from {inside} to {inside} (Gb/s a GPU); grey: the cluster's own"
    style.name_axes(axes, name, "MFU of the best layout (%)", grid="y")
    return figure


def _far_links_finding(lines: dict[int, Frame], one_domain: Frame, bandwidth: float, inside: str) -> str:
    """Title on slow links: "4 buildings at 25 Gb/s a GPU: 14.79 s a step, 1.2 % more than in one; pp and dp
    cross"."""
    domains, line = list(lines.items())[-1]
    point = line.iloc[(line["bandwidth"] - bandwidth).abs().argmin()]
    rate = f"{round(float(point['bandwidth']) * _GIGABITS, 3):,.10g} Gb/s a GPU"
    place = f"{counted(domains, inside)} at {rate}" if domains else f"At {rate} from {inside} to {inside}"
    sentence = f"{place}: {format_seconds(float(point['step_seconds']))} a step"
    if not one_domain.empty:
        slowdown = float(point["step_seconds"]) / float(one_domain["step_seconds"].iloc[0]) - 1
        sentence += f", {percent(slowdown)} more than in one" if slowdown >= 5e-4 else ", as fast as in one"
    crossing = str(point["crossing"]).split()
    verb = "crosses" if len(crossing) == 1 else "cross"
    return f"{sentence}; {sentence_list(crossing)} {verb}" if crossing else f"{sentence}; nothing crosses"
