"""Figures of trade-offs: memory against throughput, any two objectives, and cost against days on several clusters.

`frontier` draws the cloud of legal layouts with its Pareto line, `pareto` points that are each a proven optimum,
`cost_and_days` a line for each cluster.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from cost_models.documents import printable
from cost_models.units import counted, format_bytes, grouped
from meshwright.plots import style
from meshwright.plots.parts import Label, ends_first, put_labels
from meshwright.plots.style import Frame, brief_layout, recompute_of
from meshwright.render.goals import value_text
from meshwright.render.words import money, percent, size_unit, time_unit
from planner.objectives import Measure, Unit

_AXIS_LIMITS = 2.0
"""The memory axis ends at this many limits: beyond it lie layouts nobody would run."""
_FAR_LIMIT = 4.0
"""A limit this many times as large as everything drawn is not drawn but told."""
_MAX_CLOUD_LABELS = 6


def frontier(frame: Frame, limit_bytes: float, subject: str) -> Figure:
    """Peak memory against throughput: all layouts grey, the Pareto line, the chosen plan, the limit.

    Args:
        frame: a row per layout with `layout`, `peak_bytes`, `tokens_per_second`, `mfu`, `fits`, `pareto`, `proven`,
            `chosen`.
        limit_bytes: what one device may hold.
        subject: what was priced.
    """
    reach = max(
        _AXIS_LIMITS * limit_bytes, 1.05 * float(frame.loc[frame["chosen"], "peak_bytes"].max() or 0.0)
    )
    drawn = frame[~(frame["peak_bytes"] > reach)]
    line = drawn[drawn["pareto"]].sort_values("peak_bytes")
    largest = float(drawn["peak_bytes"].max()) if len(drawn) else limit_bytes
    near = limit_bytes <= _FAR_LIMIT * largest
    right = 1.06 * max(largest, limit_bytes) if near else 1.25 * largest
    unit, scale = size_unit(right)
    word, per_tick = style.count_unit(float(drawn["tokens_per_second"].max()) if len(drawn) else 1.0)
    x, y = drawn["peak_bytes"] / scale, drawn["tokens_per_second"] / per_tick
    with style.sheet(9.0, 5.8) as figure:
        axes = figure.add_subplot()
        for fits, colour in ((False, style.FAINT), (True, style.PALE)):
            selected = drawn["fits"] == fits
            axes.scatter(x[selected], y[selected], s=9, color=colour, linewidths=0, rasterized=True)
        axes.set_xlim(0, right / scale)
        axes.set_ylim(0, 1.16 * float(y.max()) if len(drawn) else 1.0)
        steps = _draw_best_line(axes, line, scale, per_tick)
        bounds, words = _draw_memory_limit(axes, limit_bytes, scale, near=near)
        chosen = drawn[drawn["chosen"]]
        for row in chosen.index:
            axes.scatter(x[row], y[row], s=150, marker="*", color=style.VERMILION, zorder=5)
        axes.set_xlabel(f"peak memory of the fullest device ({unit})")
        axes.set_ylabel(f"throughput ({word}tokens/s, all GPUs)")
        style.linear_ticks(axes.xaxis)
        style.linear_ticks(axes.yaxis)
        style.quiet_axis(axes, grid="both")
        style.put_title(figure, _cloud_finding(frame, limit_bytes), _cloud_subject(subject, frame))
        labels = [
            _cloud_label(row, "chosen, ", style.VERMILION, scale, per_tick) for _, row in chosen.iterrows()
        ]
        unchosen = line[~line["chosen"]]
        proven = unchosen[unchosen["proven"]]
        rows = [row for _, row in (proven if len(proven) >= _MAX_CLOUD_LABELS else unchosen).iterrows()]
        labels += [
            _cloud_label(row, "", style.BLUE, scale, per_tick) for row in ends_first(rows, _MAX_CLOUD_LABELS)
        ]
        marks = list(zip(line["peak_bytes"] / scale, line["tokens_per_second"] / per_tick, strict=True))
        put_labels(axes, labels, lines=[*steps, *bounds], marks=marks, texts=words)
    return figure


def _draw_best_line(axes: Axes, line: Frame, scale: float, per_tick: float) -> list[Line2D]:
    """Steps through the best layouts known; those that are proven to be the best there are have a large mark."""
    if line.empty:
        return []
    x, y = (line["peak_bytes"] / scale).to_numpy(), (line["tokens_per_second"] / per_tick).to_numpy()
    corners = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
    steps = axes.plot(*corners, color=style.BLUE, linewidth=1.6, zorder=3)
    for proven, area in ((False, 9), (True, 30)):
        selected = (line["proven"] == proven).to_numpy()
        axes.scatter(x[selected], y[selected], s=area, color=style.BLUE, linewidths=0, zorder=4)
    return steps


def _draw_memory_limit(
    axes: Axes, limit_bytes: float, scale: float, *, near: bool
) -> tuple[list[Line2D], list[Text]]:
    """Draw the memory limit with "fits" and "does not fit" beside it; write a distant limit as text only."""
    words = f"limit {format_bytes(limit_bytes)}"
    if not near:
        said = f"{words}, far to the right →"
        return [], [axes.text(0.99, 0.02, said, transform=axes.transAxes, ha="right", weight="bold")]
    at, across = limit_bytes / scale, axes.get_xaxis_transform()
    margin = 0.008 * axes.get_xlim()[1]
    line = axes.axvline(at, color=style.INK, linewidth=1.4, linestyle=(0, (5, 3)))
    label = axes.text(at + margin, 0.015, words, transform=across, weight="bold")
    label.set_bbox({"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1.0})
    fits = axes.text(at - margin, 0.985, "fits", transform=across, ha="right", va="top", color=style.SOFT)
    misfit = axes.text(at + margin, 0.985, "does not fit", transform=across, va="top", color=style.SOFT)
    return [line], [label, fits, misfit]


def _cloud_label(row: Frame, prefix: str, colour: str, scale: float, per_tick: float) -> Label:
    recompute = recompute_of(row["layout"])
    return Label(
        text=f"{prefix}{percent(row['mfu'])} MFU{recompute and ', '}{recompute}\n{brief_layout(row['layout'], 36)}",
        at=(row["peak_bytes"] / scale, row["tokens_per_second"] / per_tick),
        colour=colour,
        size=8 if prefix else 7.5,
        weight="bold" if prefix else "normal",
        needed=bool(prefix),
    )


def _cloud_finding(frame: Frame, limit_bytes: float) -> str:
    fitting = frame[frame["fits"]]
    if fitting.empty:
        smallest = format_bytes(float(frame["peak_bytes"].min()))
        return f"Nothing fits in {format_bytes(limit_bytes)}; the smallest layout needs {smallest}"
    line = fitting[fitting["pareto"]].sort_values("peak_bytes")  # priced in full, unlike the grey points
    best = line.iloc[-1] if len(line) else fitting.loc[fitting["tokens_per_second"].idxmax()]
    near_best = line[line["tokens_per_second"] >= 0.95 * best["tokens_per_second"]]
    smallest_near_best = near_best.iloc[0] if len(near_best) else best
    if smallest_near_best["peak_bytes"] > 0.95 * best["peak_bytes"]:
        needs = f"{percent(best['mfu'])} MFU needs {format_bytes(best['peak_bytes'])}"
        smaller = line[line["peak_bytes"] < smallest_near_best["peak_bytes"]]
        if smaller.empty:
            return f"{needs}; nothing fits in less"
        less = smaller.iloc[-1]
        return f"{needs}; {format_bytes(less['peak_bytes'])} are enough for {percent(less['mfu'])}"
    return (
        f"{percent(best['mfu'])} MFU needs {format_bytes(best['peak_bytes'])}; "
        f"95 % of that speed fits in {format_bytes(smallest_near_best['peak_bytes'])}"
    )


def _cloud_subject(subject: str, frame: Frame) -> str:
    """Subtitle: the subject, the number of layouts in the cloud, and how many dots are proven optima."""
    proven = int((frame["pareto"] & frame["proven"]).sum())
    dots = (
        f"large dots: {counted(proven, 'plan')} proven the best for so much memory, small ones: the best known"
        if proven
        else "dots: the best known for so much memory, with even stages"
    )
    even = frame[~frame["proven"]]
    cloud = f"{counted(len(even), 'layout')} with even stages, each recompute policy apart"
    return f"{subject}; {cloud}, {grouped(int(even['fits'].sum()))} fit; {dots}"


_UNIT_NAMES: dict[Unit, str] = {
    "seconds": "step time",
    "share": "MFU",
    "GPU-hours": "GPU-hours",
    "money": "cost",
    "bytes": "peak memory",
    "GPUs": "GPUs",
}
_MAX_POINT_LABELS = 14
_LOG_RATIO = 8.0
"""Ratio of the ends of an axis from which it is drawn in even ratios."""


def pareto(
    frame: Frame,
    names: tuple[str, str],
    measures: tuple[Measure, Measure],
    subject: str,
    *,
    complete: bool = True,
) -> Figure:
    """The second objective across, the first upwards; steps where no point is missing, else points alone.

    Args:
        frame: a row per point with the two objectives under their `names`, `gpus`, `layout`, `gap`; from the best in
            the first to the best in the second.
        names: of the objectives' columns, first and second.
        measures: what they are.
        subject: what was priced.
        complete: no other point lies between these.
    """
    (up, across), (up_measure, across_measure) = names, measures
    line = frame.sort_values(across)
    with style.sheet(9.0, 5.6) as figure:
        axes = figure.add_subplot()
        x = line[across] / _axis_scale(line[across], across_measure.unit)
        y = line[up] / _axis_scale(line[up], up_measure.unit)
        steps = []
        if complete:
            later, sooner = (slice(None, -1), slice(1, None))[:: -1 if across_measure.highest else 1]
            corners = np.repeat(np.asarray(x), 2)[sooner], np.repeat(np.asarray(y), 2)[later]
            steps = axes.plot(*corners, color=style.BLUE, linewidth=1.2)
        axes.scatter(x, y, s=26, color=style.BLUE, zorder=3)
        ringed = line["gap"] > 0
        axes.scatter(x[ringed], y[ringed], s=70, facecolors="none", edgecolors=style.VERMILION, zorder=4)
        for along, column, values, measure in (("x", across, x, across_measure), ("y", up, y, up_measure)):
            _dress_axis(axes, along, line[column], values, measure.unit)
        axes.margins(x=0.14, y=0.14)
        style.quiet_axis(axes, grid="both")
        proof = _proof_words(frame, complete=complete)
        style.put_title(figure, _pareto_finding(frame, names, measures), f"{subject}; {proof}")
        one_size = line["gpus"].nunique() == 1
        labels = [
            _point_label(row, at, one_size)
            for (_, row), at in zip(line.iterrows(), zip(x, y, strict=True), strict=True)
        ]
        put_labels(
            axes, ends_first(labels, _MAX_POINT_LABELS), lines=steps, marks=list(zip(x, y, strict=True))
        )
    return figure


def _point_label(row: Frame, at: tuple[float, float], one_size: bool) -> Label:
    """The GPUs and the degrees of a point."""
    gpus = "" if one_size else f"{counted(int(row['gpus']), 'GPU')}\n"
    return Label(text=gpus + brief_layout(row["layout"], 30), at=at, colour=style.BLUE, size=7)


def _dress_axis(axes: Axes, along: str, column: Frame, values: Frame, unit: Unit) -> None:
    """Set scale, ticks and label of one axis; `values` are the column in the unit of the axis."""
    axis = getattr(axes, f"{along}axis")
    low, high = float(values.min()), float(values.max())
    if unit == "GPUs":
        style.gpu_ticks(axes, sorted({int(value) for value in values}), along=along)
    elif low > 0 and high > _LOG_RATIO * low:
        getattr(axes, f"set_{along}scale")("log", base=10)
        style.log_ticks(axis, low, high)
    else:
        style.linear_ticks(axis)
    if unit == "money":
        axis.set_major_formatter(FuncFormatter(lambda value, _position: money(value)))
    axis.set_label_text(_axis_name(float(column.max()), unit))


def _axis_scale(column: Frame, unit: Unit) -> float:
    """Base units in one unit of the axis."""
    largest = float(column.max())
    scales = {"bytes": size_unit, "seconds": time_unit, "GPU-hours": style.count_unit}
    return scales[unit](largest)[1] if unit in scales else 0.01 if unit == "share" else 1.0


def _axis_name(largest: float, unit: Unit) -> str:
    return {
        "seconds": f"step time ({time_unit(largest)[0]})",
        "share": "MFU (%)",
        "GPU-hours": f"{style.count_unit(largest)[0]}GPU-hours of the training run",
        "money": "cost of the training run",
        "bytes": f"peak memory of the fullest device ({size_unit(largest)[0]})",
        "GPUs": "GPUs",
    }[unit]


def _proof_words(frame: Frame, *, complete: bool) -> str:
    open_ones = int((frame["gap"] > 0).sum())
    points = counted(len(frame), "point")
    proof = "each a proven optimum"
    if open_ones:
        proof = f"{grouped(open_ones)} of them (ringed) within {percent(float(frame['gap'].max()))} of one"
    return f"{points}, {proof}" + ("" if complete else "; others lie between them")


def _pareto_finding(frame: Frame, names: tuple[str, str], measures: tuple[Measure, Measure]) -> str:
    """Title: gain in the second objective and loss in the first between the ends of the frontier."""
    (first, second), (of_first, of_second) = names, measures
    top, bottom = frame.iloc[0], frame.iloc[-1]
    if len(frame) < 2:
        return (
            f"One plan is best in both: {of_first.label} {value_text(top[first], of_first.unit)}, "
            f"{of_second.label} {value_text(top[second], of_second.unit)}"
        )

    def at(row: Frame) -> str:
        values = (
            (float(row[name]), measure.unit) for name, measure in ((second, of_second), (first, of_first))
        )
        return " at ".join(
            counted(int(value), "GPU") if unit == "GPUs" else value_text(value, unit)
            for value, unit in values
        )

    gain = _change_words(top[second], bottom[second], of_second.unit)
    loss = _change_words(top[first], bottom[first], of_first.unit)
    return f"{gain[:1].upper()}{gain[1:]} for {loss}: {at(bottom)}, or {at(top)}"


def _change_words(first: float, last: float, unit: Unit) -> str:
    """ "9.5 % less cost", "7.2 x the step time", "1/16 of the GPUs"; shares in points."""
    name, ratio = _UNIT_NAMES[unit], last / first
    direction = "more" if ratio > 1 else "fewer" if name.endswith("s") else "less"
    if unit == "share":
        return f"{100 * abs(last - first):.1f} pt {direction} {name}"
    if ratio >= 2:
        return f"{round(ratio, 1):g} x the {name}"
    if ratio <= 0.5:
        return f"1/{round(1 / ratio, 1):g} of the {name}"
    return f"{percent(abs(ratio - 1))} {direction} {name}"


def cost_and_days(frame: Frame, subject: str) -> Figure:
    """Days across, cost upwards, a line and a colour for each cluster, a ring round what nothing beats in both.

    Args:
        frame: a row per answer with `cluster`, `gpus`, `days`, `cost` and whether it is of the `frontier`.
        subject: what is trained.
    """
    with style.sheet(9.0, 5.6) as figure:
        axes = figure.add_subplot()
        lines, names, numbers = [], [], []
        for place, cluster in enumerate(sorted(set(frame["cluster"]))):
            points = frame[frame["cluster"] == cluster].sort_values("gpus", ascending=False)
            colour = style.SERIES_COLOURS[place % len(style.SERIES_COLOURS)]
            lines += axes.plot(
                points["days"], points["cost"], color=colour, linewidth=1.2, marker="o", markersize=5
            )
            labels = [
                Label(text=f"{int(row['gpus']):,}", at=(row["days"], row["cost"]), colour=colour, size=7)
                for _, row in points.iterrows()
            ]
            words = f"{printable(str(cluster), 40)}, {labels[0].text} GPUs"
            names.append(replace(labels[0], text=words, weight="bold", size=8, needed=True))
            numbers += labels[1:]
        best = frame[frame["frontier"]].sort_values("days")
        axes.scatter(best["days"], best["cost"], s=90, facecolors="none", edgecolors=style.INK, zorder=4)
        axes.set_xlabel("days of the training run")
        axes.set_ylabel("cost of the training run")
        soonest, latest = float(frame["days"].min()), float(frame["days"].max())
        if latest > _LOG_RATIO * soonest:
            axes.set_xscale("log")
            style.log_ticks(axes.xaxis, soonest, latest)
        else:
            style.linear_ticks(axes.xaxis)
        axes.yaxis.set_major_formatter(lambda value, _position: money(value))
        axes.margins(x=0.1, y=0.14)
        style.quiet_axis(axes, grid="both")
        style.put_title(
            figure, _clusters_finding(best), f"{subject}; ringed: nothing is both sooner and cheaper"
        )
        marks = list(zip(frame["days"], frame["cost"], strict=True))
        put_labels(axes, names + numbers, lines=lines, marks=marks)
    return figure


def _clusters_finding(best: Frame) -> str:
    """The ends of the frontier."""
    soonest, cheapest = best.iloc[0], best.iloc[-1]

    def words(row: Frame) -> str:
        gpus_words = f"{counted(int(row['gpus']), 'GPU')} of {row['cluster']}"
        return f"{money(row['cost'])} in {row['days']:,.1f} days on {gpus_words}"

    if len(best) == 1:
        return f"One choice is cheapest and soonest: {words(cheapest)}"
    return f"{words(cheapest)}, or {words(soonest)}"
