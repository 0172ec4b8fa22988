"""Figures of scaling: throughput and GPU time against the number of GPUs, MFU against the bandwidth of far links.

Strong scaling keeps the batch, weak scaling has it grow with the GPUs; every point is the best layout there.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import counted, format_count, format_seconds, grouped
from meshwright.plots import style
from meshwright.plots.parts import part_legend, stack_bars, visible_parts
from meshwright.plots.style import Frame, brief_layout, short_layout, unproven
from meshwright.render.words import part_label, percent, sentence_list

_KIND_COLOURS = {"strong": style.BLUE, "weak": style.VERMILION}
_KIND_MARKS = {"strong": "o", "weak": "s"}
_MANY_POINTS = 12
"""Points of a line from which its marks are small."""
_LAYOUT_DISTANCE = 0.12
"""Minimum distance of two numbers of GPUs with layouts below, as a share of the axis."""
_LAYOUT_COLUMNS = 11
_LAYOUT_SIZE = 7.0
_LINE_POINTS = 1.25 * _LAYOUT_SIZE
_BELOW_POINTS = 34.0
"""From the axis down to the first layout, past ticks and the name of the axis."""


def scaling(frame: Frame, subject: str) -> Figure:
    """Throughput and MFU of the best layout at each number of GPUs, and the layouts below.

    Args:
        frame: a row per point with `kind` (strong or weak), `gpus`, `layout`, `tokens_per_second`, `mfu`,
            `global_batch`, `gap`; numbers of GPUs on which nothing fits are left out.
        subject: what was priced.
    """
    kinds = [(str(kind), points.sort_values("gpus")) for kind, points in frame.groupby("kind", sort=True)]
    with style.sheet(10.4, 5.6) as figure:
        speed, use = figure.subplots(1, 2, width_ratios=(3, 2))
        gpu_ticks = draw_speed(speed, frame, kinds, "tokens")
        for kind, line in kinds:
            _kind_curve(use, line["gpus"], 100 * line["mfu"], kind, line["gap"])
        use.set_ylim(0, 1.25 * 100 * frame["mfu"].max())
        use.set_ylabel("MFU (%)")
        style.linear_ticks(use.yaxis)
        use.margins(x=0.08)
        style.gpu_ticks(use, gpu_ticks, distance=_LAYOUT_DISTANCE)
        use.set_xlabel("GPUs")
        style.quiet_axis(use, grid="both")
        _write_layouts(speed, gpu_ticks, kinds)
        style.put_title(figure, _scaling_finding(kinds), f"{subject}{unproven(frame)}")
    return figure


def draw_speed(axes: Axes, frame: Frame, kinds: Sequence[tuple[str, Frame]], unit: str) -> list[int]:
    """Throughput in `tokens` or `samples` a second, a line for each kind, beside the ideal; GPUs that have a tick."""
    name = f"{unit}_per_second"
    word, per_tick = style.count_unit(float(frame[name].max()))
    counts = [int(gpus) for gpus in sorted(frame["gpus"].unique())]
    axes.set_yscale("log", base=10)
    legend = [(batch_words(kind, line), _KIND_COLOURS[kind]) for kind, line in kinds]
    if len(counts) > 1:
        _draw_ideal(axes, frame, per_tick, name)
        legend.append(("ideal", style.SOFT))
    for kind, line in kinds:
        _kind_curve(axes, line["gpus"], line[name] / per_tick, kind, line["gap"])
    style.name_in_corner(axes, legend, 0.03, 0.97, step=0.055)
    axes.margins(x=0.08, y=0.1)
    axes.set_ylabel(f"throughput ({word}{unit}/s, all GPUs)")
    style.log_ticks(axes.yaxis, *axes.get_ylim())
    axes.set_xlabel("GPUs")
    style.quiet_axis(axes, grid="both")
    return style.gpu_ticks(axes, counts, distance=_LAYOUT_DISTANCE)


def _kind_curve(axes: Axes, gpus: Frame, values: Frame, kind: str, gap: Frame) -> None:
    """A line with a mark at each point; hollow where no proof was found."""
    mark, colour, size = _KIND_MARKS[kind], _KIND_COLOURS[kind], 5 if len(gpus) <= _MANY_POINTS else 3
    axes.plot(gpus, values, color=colour, marker=mark, linewidth=1.8, markersize=size)
    open_ones = gap > 0
    axes.plot(
        gpus[open_ones], values[open_ones], mark, color=colour, markersize=size, markerfacecolor="white"
    )


def _draw_ideal(axes: Axes, frame: Frame, per_tick: float, speed: str) -> None:
    """Throughput proportional to GPUs, from the first strong point."""
    strong = frame[frame["kind"] == "strong"] if (frame["kind"] == "strong").any() else frame
    first = strong.sort_values("gpus").iloc[0]
    ends = [int(frame["gpus"].min()), int(frame["gpus"].max())]
    speeds = [first[speed] * gpus / first["gpus"] / per_tick for gpus in ends]
    axes.plot(ends, speeds, color=style.GREY, linewidth=1.2, linestyle=(0, (2, 2)))


def _write_layouts(axes: Axes, gpu_ticks: list[int], kinds: list[tuple[str, Frame]]) -> None:
    """Under each number of GPUs the layout that is best there: a row of them for each kind, "same" where it is."""
    down, row_above = _BELOW_POINTS, dict.fromkeys(gpu_ticks, "")
    for kind, line in kinds:
        layouts = {int(row["gpus"]): str(row["layout"]) for _, row in line.iterrows()}
        texts = {gpus: brief_layout(layouts[gpus], _LAYOUT_COLUMNS) for gpus in gpu_ticks if gpus in layouts}
        repeated = {gpus for gpus in texts if layouts[gpus] == row_above[gpus]}
        texts |= dict.fromkeys(repeated, "same")
        for x, words, side in [(gpus, text, "center") for gpus, text in texts.items()]:
            _write_below(axes, x, words, down, _KIND_COLOURS[kind], side)
        _write_below(axes, None, kind, down, _KIND_COLOURS[kind], "right")
        row_above |= {gpus: layouts[gpus] for gpus in texts}
        down += _LINE_POINTS * (0.6 + max((text.count("\n") + 1 for text in texts.values()), default=0))


def _write_below(axes: Axes, gpus: int | None, words: str, down: float, colour: str, side: str) -> None:
    """Write text `down` points below the axis, at a number of GPUs or (None) at the left end."""
    look = {"ha": side, "va": "top", "size": _LAYOUT_SIZE, "color": colour, "annotation_clip": False}
    if gpus is None:
        style.write_beside(axes, words, (0, 0), (-6, -down), xycoords=axes.transAxes, weight="bold", **look)
    else:
        style.write_beside(axes, words, (gpus, 0), (0, -down), xycoords=axes.get_xaxis_transform(), **look)


def batch_words(kind: str, line: Frame) -> str:
    """The batch of a line, or its first and its last."""
    batches = [int(batch) for batch in line["global_batch"]]
    ends = (
        grouped(batches[0]) if len(set(batches)) == 1 else f"{grouped(batches[0])} … {grouped(batches[-1])}"
    )
    return f"{kind}: batch {ends}"


def _scaling_finding(kinds: list[tuple[str, Frame]]) -> str:
    """Speed at the last point over that at the first: of the strong line, or of the only one."""
    kind, line = next(((kind, line) for kind, line in kinds if len(line) > 1), kinds[0])
    first, last = line.iloc[0], line.iloc[-1]
    if len(line) < 2:
        return (
            f"{counted(int(first['gpus']), 'GPU')}, the only number with an answer: "
            f"{format_count(first['tokens_per_second'])} tokens/s, {percent(first['mfu'])} MFU"
        )
    gain = last["tokens_per_second"] / first["tokens_per_second"]
    gpu_ratio = last["gpus"] / first["gpus"]
    batch = "same batch" if kind == "strong" else "batch growing with them"
    return (
        f"{grouped(int(first['gpus']))} to {grouped(int(last['gpus']))} GPUs, {batch}: "
        f"{gain:.1f} x the speed, {percent(gain / gpu_ratio)} of ideal"
    )


_BAR_WIDTH = 0.66
_BAR_LAYOUT_COLUMNS = 15
_BAR_INCHES = 1.25
"""Inches of a bar with the air beside it."""


def stacked_scaling(frame: Frame, subject: str) -> Figure:
    """A bar for each number of GPUs: the GPU time of one step by part; a line is that of the first, which ideal scaling
    keeps.

    Args:
        frame: a row per point with `gpus`, `layout`, `step_seconds`, `mfu`, `gap` and seconds of the step by part, the
            global batch the same in all.
        subject: what was priced.
    """
    points = frame.sort_values("gpus").reset_index(drop=True)
    time_parts = [part for part in style.TIME_COLOURS if part in points]
    gpu_seconds = points[time_parts].mul(points["gpus"], axis=0)
    parts = visible_parts(gpu_seconds, style.TIME_COLOURS)
    totals = points["step_seconds"] * points["gpus"]
    word, scale = _gpu_time_unit(float(totals.max()))
    with style.sheet(max(7.6, 1.6 + _BAR_INCHES * len(points)), 5.8) as figure:
        axes = figure.subplots()
        stack_bars(axes, gpu_seconds[parts] / scale, style.TIME_COLOURS, _BAR_WIDTH)
        first = float(totals.iloc[0]) / scale
        axes.axhline(first, color=style.SOFT, linewidth=1.2, linestyle=(0, (2, 2)))
        _name_bars(axes, points, totals / scale)
        axes.set_ylim(0, 1.16 * float(totals.max()) / scale)
        style.measure_axis(axes, "y", f"{word} of one step, all GPUs")
        part_legend(figure, parts, style.TIME_COLOURS)
        line = f"line: what {grouped(int(points['gpus'].iloc[0]))} GPUs spend"
        open_ones = "; *: not proven the best in time" if (points["gap"] > 0).any() else ""
        style.put_title(figure, stacked_scaling_finding(points), f"{subject}; {line}{open_ones}")
    return figure


def stacked_scaling_finding(frame: Frame) -> str:
    """ "512 to 4,096 GPUs: the step costs 18.2 % more GPU time; bubble grows most"."""
    first, last = frame.iloc[0], frame.iloc[-1]
    if len(frame) < 2:
        step = format_seconds(float(first["step_seconds"]))
        return f"{grouped(int(first['gpus']))} GPUs, the only number with an answer: {step} a step"
    first_seconds, last_seconds = (float(point["step_seconds"] * point["gpus"]) for point in (first, last))
    span = f"{grouped(int(first['gpus']))} to {grouped(int(last['gpus']))} GPUs"
    gained = last_seconds / first_seconds - 1
    if gained < 0:
        return f"{span}: a step costs {percent(-gained)} less GPU time"
    parts = [part for part in style.TIME_COLOURS if part in frame]
    loss = max(parts, key=lambda part: float(last[part] * last["gpus"] - first[part] * first["gpus"]))
    return f"{span}: a step costs {percent(gained)} more GPU time; {part_label(loss)} grows most"


def _name_bars(axes: Axes, points: Frame, totals: Frame) -> None:
    """Above each bar the step and its MFU, below it the GPUs and the layout."""
    labels = []
    for at, row in enumerate(points.to_dict(orient="records")):
        star = "*" if float(row["gap"]) > 0 else ""
        bar_text = f"{format_seconds(float(row['step_seconds']))}{star}\n{percent(float(row['mfu']))} MFU"
        style.write_beside(axes, bar_text, (at, float(totals[at])), (0, 3), ha="center", va="bottom", size=8)
        layout = short_layout(str(row["layout"]), _BAR_LAYOUT_COLUMNS)
        look = {"xycoords": axes.get_xaxis_transform(), "annotation_clip": False, "color": style.SOFT}
        style.write_beside(axes, layout, (at, 0), (0, -32), ha="center", va="top", size=_LAYOUT_SIZE, **look)
        labels.append(grouped(int(row["gpus"])))
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlabel("GPUs, and the best layout on so many", labelpad=2)


def _gpu_time_unit(gpu_seconds: float) -> tuple[str, float]:
    """GPU-hours where there are some."""
    return ("GPU-hours", 3600.0) if gpu_seconds >= 7200 else ("GPU-seconds", 1.0)


_DOMAIN_MARKS = ("o", "s", "D", "^")


def far_links(frame: Frame, bandwidth: float, inside: str, subject: str) -> Figure:
    """MFU of the best layout against the bandwidth of a GPU on the farthest links, with the axes that cross them.

    Args:
        frame: a row per point with `domains`, `bandwidth`, `mfu`, `crossing`, `gap`, `step_seconds`.
        bandwidth: of the plan's own cluster, bytes/s of a GPU.
        inside: name of the level that the links leave.
        subject: what was priced.
    """
    one_domain, lines = frame[frame["domains"] == 1], _domain_lines(frame)
    with style.sheet(9.6, 4.8) as figure:
        axes = figure.subplots()
        axes.set_xscale("log", base=2)
        for at, (_, line) in enumerate(lines):
            _domain_curve(
                axes, line, style.SERIES_COLOURS[at % 4], _DOMAIN_MARKS[at % 4], label_above=at == 0
            )
        names = [
            (counted(many, inside), style.SERIES_COLOURS[at % 4])
            for at, (many, _) in enumerate(lines)
            if many
        ]
        style.name_in_corner(axes, names, 0.02, 0.97)
        rates = sorted({float(rate) * 8 / 1e9 for _, line in lines for rate in line["bandwidth"]})
        if not one_domain.empty:
            level = 100 * float(one_domain["mfu"].iloc[0])
            axes.axhline(level, color=style.SOFT, linewidth=1.2, linestyle=(0, (2, 2)))
            axes.text(rates[0], level, f" one {inside}", va="bottom", color=style.SOFT, weight="bold")
        axes.axvline(bandwidth * 8 / 1e9, color=style.PALE, linewidth=1.2, zorder=0)
        axes.set_ylim(0, 1.25 * 100 * float(frame["mfu"].max()))
        axes.margins(x=0.06)
        axes.set_xticks(rates, [style.tick_text(round(rate, 3)) for rate in rates], size=8)
        axes.minorticks_off()
        axes.set_xlabel(f"bandwidth from {inside} to {inside} (Gb/s a GPU); grey: the cluster's own")
        style.measure_axis(axes, "y", "MFU of the best layout (%)")
        subtitle = f"{subject}; beside points: axes that cross{unproven(frame)}"
        style.put_title(figure, far_links_finding(frame, bandwidth, inside), subtitle)
    return figure


def far_links_finding(frame: Frame, bandwidth: float, inside: str) -> str:
    """ "4 buildings at 25 Gb/s a GPU: 14.79 s, 1.2 % more than in one; pp and dp cross"."""
    domains, line = _domain_lines(frame)[-1]
    point = line.iloc[(line["bandwidth"] - bandwidth).abs().argmin()]
    at = f"{style.tick_text(round(float(point['bandwidth']) * 8 / 1e9, 3))} Gb/s a GPU"
    place_words = f"{counted(domains, inside)} at {at}" if domains else f"At {at} from {inside} to {inside}"
    sentence = f"{place_words}: {format_seconds(float(point['step_seconds']))} a step"
    one_domain = frame[frame["domains"] == 1]
    if not one_domain.empty:
        slowdown = float(point["step_seconds"]) / float(one_domain["step_seconds"].iloc[0]) - 1
        sentence += f", {percent(slowdown)} more than in one" if slowdown >= 5e-4 else ", as fast as in one"
    axes = str(point["crossing"]).split()
    crosses = (
        f"{sentence_list(axes)} {'crosses' if len(axes) == 1 else 'cross'}" if axes else "nothing crosses"
    )
    return f"{sentence}; {crosses}"


def _domain_lines(frame: Frame) -> list[tuple[int, Frame]]:
    several = frame[frame["domains"] != 1]
    return [
        (int(domains), line.sort_values("bandwidth"))
        for domains, line in several.groupby("domains", sort=True)
    ]


def _domain_curve(axes: Axes, line: Frame, colour: str, mark: str, *, label_above: bool) -> None:
    """A line with a mark at each point, hollow where no proof was found; the axes that cross where they change."""
    x, y = line["bandwidth"] * 8 / 1e9, 100 * line["mfu"]
    axes.plot(x, y, color=colour, marker=mark, linewidth=1.8, markersize=5)
    open_ones = line["gap"] > 0
    axes.plot(x[open_ones], y[open_ones], mark, color=colour, markersize=5, markerfacecolor="white")
    last_crossing = None
    for rate, mfu, crossing_axes in zip(x, y, line["crossing"], strict=True):
        if crossing_axes != last_crossing:
            crossing = str(crossing_axes).split()
            shift = (0, 7 if label_above else -7 - 9 * len(crossing))
            style.write_beside(
                axes, "\n".join(crossing), (rate, mfu), shift, ha="center", size=8, color=colour
            )
        last_crossing = crossing_axes
