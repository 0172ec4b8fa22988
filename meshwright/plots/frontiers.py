"""Figures of trade-offs: memory and throughput, any two objectives, cost and days on several clusters.

`frontier` draws the cloud of legal layouts with its Pareto line, `pareto` points that are each a proven optimum,
`cost_and_days` a line for each cluster.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from cost_models.documents import printable
from cost_models.units import counted, format_bytes, grouped
from meshwright.plots import style
from meshwright.plots.parts import Label, put_labels
from meshwright.plots.style import Frame, brief_layout, recompute_of
from meshwright.render.goals import value_text
from meshwright.render.words import money, percent, size_unit, time_unit
from planner.objectives import Measure, Unit

_AXIS_LIMITS = 2.0
"""End of the memory axis, as a multiple of the memory limit."""
_FAR_LIMIT = 4.0
"""Ratio of the memory limit to the largest layout drawn above which the limit is written, not drawn."""
_MAX_CLOUD_LABELS = 6


@style.drawing()
def frontier(frame: Frame, limit_bytes: float, subject: str) -> Figure:
    """Scatter plot of layouts: peak memory (x) against throughput (y), with the Pareto line, the chosen plan and the
    memory limit.

    Points that are proven optima have a larger mark.

    Args:
        frame: a row per layout with `layout`, `peak_bytes`, `tokens_per_second`, `mfu`, `fits`, `pareto`, `proven`,
            `chosen`.
        limit_bytes: what one device may hold.
        subject: what was priced.
    """
    furthest = float(frame.loc[frame["chosen"], "peak_bytes"].max() or 0.0)
    cloud = frame[~(frame["peak_bytes"] > max(_AXIS_LIMITS * limit_bytes, 1.05 * furthest))]
    largest = float(cloud["peak_bytes"].max()) if len(cloud) else limit_bytes
    fastest = float(cloud["tokens_per_second"].max()) if len(cloud) else 1.0
    near = limit_bytes <= _FAR_LIMIT * largest
    right = 1.06 * max(largest, limit_bytes) if near else 1.25 * largest
    (unit, scale), (word, per_tick) = size_unit(right), style.count_unit(fastest)
    cloud = cloud.assign(x=cloud["peak_bytes"] / scale, y=cloud["tokens_per_second"] / per_tick)
    line = cloud[cloud["pareto"]].sort_values("x")
    titles = _cloud_finding(frame, limit_bytes), _cloud_subject(subject, frame)
    figure, axes = style.new_chart(9.0, 5.8, *titles)
    for layouts, area, colour in (
        (cloud[~cloud["fits"]], 9, style.FAINT),
        (cloud[cloud["fits"]], 9, style.PALE),
        (line[~line["proven"]], 9, style.BLUE),
        (line[line["proven"]], 30, style.BLUE),
    ):
        is_best = colour == style.BLUE
        points = axes.scatter(layouts["x"], layouts["y"], s=area, color=colour, linewidths=0)
        points.set(rasterized=not is_best, zorder=4 if is_best else 1)
    corners = np.repeat(line["x"], 2)[1:], np.repeat(line["y"], 2)[:-1]
    lines = axes.plot(*corners, color=style.BLUE, linewidth=1.6)
    axes.set(xlim=(0, right / scale), ylim=(0, 1.16 * fastest / per_tick))
    words = f"limit {format_bytes(limit_bytes)}"
    if near:
        at, look = limit_bytes / scale, {"xycoords": axes.get_xaxis_transform(), "va": "top"}
        lines.append(axes.axvline(at, color=style.INK, linewidth=1.4, linestyle=style.DASHES))
        box = style.white_box()
        style.write_beside(axes, words, (at, 0.0), (4, 16), bbox=box, weight="bold", **look)
        style.write_beside(axes, "fits", (at, 1.0), (-4, -4), ha="right", color=style.SOFT, **look)
        style.write_beside(axes, "does not fit", (at, 1.0), (4, -4), color=style.SOFT, **look)
    else:
        style.write_in_chart(axes, 0.99, 0.02, f"{words}, far to the right →", ha="right", weight="bold")
    plan_points, best_points = cloud[cloud["chosen"]], line[~line["chosen"]]
    style.mark_plan(axes, plan_points["x"], plan_points["y"], style.VERMILION)
    names = f"peak memory of the fullest device ({unit})", f"throughput ({word}tokens/s, all GPUs)"
    style.name_axes(axes, *names)
    proven = best_points[best_points["proven"]]
    rows = [row for _, row in (proven if len(proven) >= _MAX_CLOUD_LABELS else best_points).iterrows()]
    labels = [_cloud_label(row) for row in (*plan_points.iloc, *style.evenly(rows, _MAX_CLOUD_LABELS)[::-1])]
    put_labels(axes, labels, lines=lines, marks=list(zip(line["x"], line["y"], strict=True)))
    return figure


def _cloud_label(row: Frame) -> Label:
    """Label of one layout in the frontier picture; the chosen layout's is bold, and written even over other marks."""
    words = ", ".join(filter(None, [f"{percent(row['mfu'])} MFU", recompute_of(row["layout"])]))
    text, at = f"{words}\n{brief_layout(row['layout'], 36)}", (row["x"], row["y"])
    if not row["chosen"]:
        return Label(text=text, at=at, colour=style.BLUE)
    return Label(text=f"chosen, {text}", at=at, colour=style.VERMILION, size=8, weight="bold", needed=True)


def _cloud_finding(frame: Frame, limit_bytes: float) -> str:
    """Title of the frontier picture: memory that the best layout needs, and what less memory gives."""
    fitting = frame[frame["fits"]]
    if fitting.empty:
        smallest = format_bytes(float(frame["peak_bytes"].min()))
        return f"Nothing fits in {format_bytes(limit_bytes)}; the smallest layout needs {smallest}"
    line = fitting[fitting["pareto"]].sort_values("peak_bytes")  # priced in full, unlike the grey points
    best = line.iloc[-1] if len(line) else fitting.loc[fitting["tokens_per_second"].idxmax()]
    near_best = line[line["tokens_per_second"] >= 0.95 * best["tokens_per_second"]]
    smallest_near_best = near_best.iloc[0] if len(near_best) else best
    needs = f"{percent(best['mfu'])} MFU needs {format_bytes(best['peak_bytes'])}"
    if smallest_near_best["peak_bytes"] <= 0.95 * best["peak_bytes"]:
        return f"{needs}; 95 % of that speed fits in {format_bytes(smallest_near_best['peak_bytes'])}"
    smaller = line[line["peak_bytes"] < smallest_near_best["peak_bytes"]]
    if smaller.empty:
        return f"{needs}; nothing fits in less"
    less = smaller.iloc[-1]
    return f"{needs}; {format_bytes(less['peak_bytes'])} are enough for {percent(less['mfu'])}"


def _cloud_subject(subject: str, frame: Frame) -> str:
    """Subtitle of the frontier picture: question, number of layouts, and how many dots are proven optima."""
    proven = int((frame["pareto"] & frame["proven"]).sum())
    dots = "dots: the best known for so much memory, with even stages"
    if proven:
        proofs = f"{counted(proven, 'plan')} proven the best for so much memory"
        dots = f"large dots: {proofs}, small ones: the best known"
    even = frame[~frame["proven"]]
    cloud = f"{counted(len(even), 'layout')} with even stages, each recompute policy apart"
    return f"{subject}; {cloud}, {grouped(int(even['fits'].sum()))} fit; {dots}"


_MAX_POINT_LABELS = 14


@style.drawing()
def pareto(
    frame: Frame,
    names: tuple[str, str],
    measures: tuple[Measure, Measure],
    subject: str,
    *,
    complete: bool = True,
) -> Figure:
    """Scatter plot of optimal plans: second objective (x) against the first (y); joined by steps if no point is
    missing.

    Args:
        frame: a row per point with the two objectives under their `names`, `gpus`, `layout`, `gap`; from the best in
            the first to the best in the second.
        names: of the objectives' columns, first and second.
        measures: what they are.
        subject: what was priced.
        complete: no other point lies between these.
    """
    line = frame.sort_values(names[1])
    subject = f"{subject}; {_proof_words(frame, complete=complete)}"
    figure, axes = style.new_chart(9.0, 5.6, _pareto_finding(frame, names, measures), subject)
    (y_label, y_scale), (x_label, x_scale) = (
        _axis_of(float(line[name].max()), measure.unit) for name, measure in zip(names, measures, strict=True)
    )
    y, x = line[names[0]] / y_scale, line[names[1]] / x_scale
    for along, values, measure in zip("yx", (y, x), measures, strict=True):
        if measure.unit == "GPUs":
            style.gpu_ticks(axes, [*map(int, values)], along=along)
        else:
            style.scale_axis(axes, along, values)
        if measure.unit == "money":
            getattr(axes, f"{along}axis").set_major_formatter(lambda value, _position: money(value))
    style.name_axes(axes, x_label, y_label)
    steps = []
    if complete:
        later, sooner = (slice(None, -1), slice(1, None))[:: -1 if measures[1].highest else 1]
        corners = np.repeat(np.asarray(x), 2)[sooner], np.repeat(np.asarray(y), 2)[later]
        steps = axes.plot(*corners, color=style.BLUE, linewidth=1.2)
    axes.scatter(x, y, s=26, color=style.BLUE, zorder=3)
    ringed = line["gap"] > 0
    axes.scatter(x[ringed], y[ringed], s=70, facecolors="none", edgecolors=style.VERMILION, zorder=4)
    axes.margins(x=0.14, y=0.14)
    sizes = [counted(int(gpus), "GPU") + "\n" for gpus in line["gpus"]]
    places = list(zip(x, y, strict=True))
    labels = [
        Label(text=size * (len(set(sizes)) > 1) + brief_layout(layout, 30), at=at, colour=style.BLUE, size=7)
        for size, layout, at in zip(sizes, line["layout"], places, strict=True)
    ]
    put_labels(axes, style.evenly(labels, _MAX_POINT_LABELS)[::-1], lines=steps, marks=places)
    return figure


def _axis_of(largest: float, unit: Unit) -> tuple[str, float]:
    """Label of an objective's axis for values up to `largest`, and the base units in one unit of the axis."""
    size, time, count = size_unit(largest), time_unit(largest), style.count_unit(largest)
    return {
        "seconds": (f"step time ({time[0]})", time[1]),
        "share": ("MFU (%)", 0.01),
        "GPU-hours": (f"{count[0]}GPU-hours of the training run", count[1]),
        "money": ("cost of the training run", 1.0),
        "bytes": (f"peak memory of the fullest device ({size[0]})", size[1]),
        "GPUs": ("GPUs", 1.0),
    }[unit]


def _proof_words(frame: Frame, *, complete: bool) -> str:
    """Words on the number of points of a frontier, and on how many are proven optima."""
    open_ones = int((frame["gap"] > 0).sum())
    proof = "each a proven optimum"
    if open_ones:
        proof = f"{grouped(open_ones)} of them (ringed) within {percent(float(frame['gap'].max()))} of one"
    return f"{counted(len(frame), 'point')}, {proof}" + ("" if complete else "; others lie between them")


def _pareto_finding(frame: Frame, names: tuple[str, str], measures: tuple[Measure, Measure]) -> str:
    """Title of a frontier: gain in the second objective and loss in the first, from one end to the other."""
    units = [measure.unit for measure in measures]
    top, bottom = ([float(row[name]) for name in names] for row in (frame.iloc[0], frame.iloc[-1]))
    if len(frame) < 2:
        values = [f"{one.label} {value_text(at, one.unit)}" for one, at in zip(measures, top, strict=True)]
        return f"One plan is best in both: {', '.join(values)}"
    first, second = (
        [counted(int(value), "GPU") if unit == "GPUs" else value_text(value, unit) for value in (end, start)]
        for start, end, unit in zip(top, bottom, units, strict=True)
    )
    loss, gain = (_change_words(*ends) for ends in zip(top, bottom, units, strict=True))
    ends = [f"{of_second} at {of_first}" for of_second, of_first in zip(second, first, strict=True)]
    return f"{gain[:1].upper()}{gain[1:]} for {loss}: {ends[0]}, or {ends[1]}"


def _change_words(first: float, last: float, unit: Unit) -> str:
    """Words on the change of an objective between two plans: "9.5 % less cost", "7.2 x the step time", "1/16 of the
    GPUs"; shares in points."""
    names = {"seconds": "step time", "share": "MFU", "money": "cost", "bytes": "peak memory"}
    name, ratio = names.get(unit, unit), last / first
    direction = "more" if ratio > 1 else "fewer" if name.endswith("s") else "less"
    if unit == "share":
        return f"{100 * abs(last - first):.1f} pt {direction} {name}"
    if ratio >= 2:
        return f"{round(ratio, 1):g} x the {name}"
    if ratio <= 0.5:
        return f"1/{round(1 / ratio, 1):g} of the {name}"
    return f"{percent(abs(ratio - 1))} {direction} {name}"


@style.drawing()
def cost_and_days(frame: Frame, subject: str) -> Figure:
    """Line plot of training runs: days (x) against cost (y), a line for each cluster; ringed: no other is both sooner
    and cheaper.

    Args:
        frame: a row per answer with `cluster`, `gpus`, `days`, `cost` and whether it is of the `frontier`.
        subject: what is trained.
    """
    best = frame[frame["frontier"]].sort_values("days")
    subject += "; ringed: nothing is both sooner and cheaper"
    figure, axes = style.new_chart(9.0, 5.6, _clusters_finding(best), subject)
    lines, labels = [], list[Label]()
    for place, cluster in enumerate(sorted(set(frame["cluster"]))):
        points = frame[frame["cluster"] == cluster].sort_values("gpus", ascending=False)
        colour = style.SERIES_COLOURS[place % len(style.SERIES_COLOURS)]
        look: style.Look = {"color": colour, "linewidth": 1.2, "marker": "o", "markersize": 5}
        lines += axes.plot(points["days"], points["cost"], label=printable(str(cluster), 40), **look)
        labels += [
            Label(text=counted(gpus, "GPU"), at=(days, cost), colour=colour, size=7)
            for gpus, days, cost in points[["gpus", "days", "cost"]].itertuples(index=False)
        ]
    axes.scatter(best["days"], best["cost"], s=90, facecolors="none", edgecolors=style.INK, zorder=4)
    style.name_axes(axes, "days of the training run", "cost of the training run")
    style.scale_axis(axes, "x", frame["days"])
    axes.yaxis.set_major_formatter(lambda value, _position: money(value))
    axes.margins(x=0.1, y=0.14)
    style.name_lines(axes)
    put_labels(axes, labels, lines=lines)
    return figure


def _clusters_finding(best: Frame) -> str:
    """Title of the cost picture: the cheapest and the soonest training run."""
    ends = [
        f"{money(row['cost'])} in {row['days']:,.1f} days on {counted(int(row['gpus']), 'GPU')} of {row['cluster']}"
        for _, row in best.iloc[[-1, 0]].iterrows()
    ]
    return f"One choice is cheapest and soonest: {ends[0]}" if len(best) == 1 else ", or ".join(ends)
