"""An exact frontier of two objectives: each point a proven optimum, named by its GPUs and its layout."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from cost_models.units import counted, grouped
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.labels import Label, ends_first, put_labels
from meshwright.plots.parts.style import Frame
from meshwright.plots.parts.text import brief_layout
from meshwright.render.goals import value_text
from meshwright.render.words import money, percent, size_unit, time_unit
from planner.objectives import Measure, Unit

_NAMES: dict[Unit, str] = {
    "seconds": "step time",
    "share": "MFU",
    "GPU-hours": "GPU-hours",
    "money": "cost",
    "bytes": "peak memory",
    "GPUs": "GPUs",
}
_MAX_LABELS = 14
_WIDE = 8.0
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
        x = line[across] / _scale(line[across], across_measure.unit)
        y = line[up] / _scale(line[up], up_measure.unit)
        steps = []
        if complete:
            later, sooner = (slice(None, -1), slice(1, None))[:: -1 if across_measure.highest else 1]
            corners = np.repeat(np.asarray(x), 2)[sooner], np.repeat(np.asarray(y), 2)[later]
            steps = axes.plot(*corners, color=style.BLUE, linewidth=1.2)
        axes.scatter(x, y, s=26, color=style.BLUE, zorder=3)
        ringed = line["gap"] > 0
        axes.scatter(x[ringed], y[ringed], s=70, facecolors="none", edgecolors=style.VERMILION, zorder=4)
        for along, column, values, measure in (("x", across, x, across_measure), ("y", up, y, up_measure)):
            _dress(axes, along, line[column], values, measure.unit)
        axes.margins(x=0.14, y=0.14)
        style.quiet_axis(axes, grid="both")
        proof = _proof(frame, complete=complete)
        style.put_title(figure, _finding(frame, names, measures), f"{subject}; {proof}")
        one_size = line["gpus"].nunique() == 1
        labels = [
            _label(row, at, one_size)
            for (_, row), at in zip(line.iterrows(), zip(x, y, strict=True), strict=True)
        ]
        put_labels(axes, ends_first(labels, _MAX_LABELS), lines=steps, marks=list(zip(x, y, strict=True)))
    return figure


def _label(row: Frame, at: tuple[float, float], one_size: bool) -> Label:
    """The GPUs and the degrees of a point."""
    gpus = "" if one_size else f"{counted(int(row['gpus']), 'GPU')}\n"
    return Label(text=gpus + brief_layout(row["layout"], 30), at=at, colour=style.BLUE, size=7)


def _dress(axes: Axes, along: str, column: Frame, values: Frame, unit: Unit) -> None:
    """Scale, ticks and name of one axis; `values` are those of the column in the axis' unit."""
    axis = getattr(axes, f"{along}axis")
    low, high = float(values.min()), float(values.max())
    if unit == "GPUs":
        ticks.numbers_of_gpus(axes, sorted({int(value) for value in values}), along=along)
    elif low > 0 and high > _WIDE * low:
        getattr(axes, f"set_{along}scale")("log", base=10)
        ticks.logarithmic(axis, low, high)
    else:
        ticks.linear(axis)
    if unit == "money":
        axis.set_major_formatter(FuncFormatter(lambda value, _position: money(value)))
    axis.set_label_text(_axis(float(column.max()), unit))


def _scale(column: Frame, unit: Unit) -> float:
    """What one on the axis stands for."""
    largest = float(column.max())
    scales = {"bytes": size_unit, "seconds": time_unit, "GPU-hours": ticks.unit_of}
    return scales[unit](largest)[1] if unit in scales else 0.01 if unit == "share" else 1.0


def _axis(largest: float, unit: Unit) -> str:
    return {
        "seconds": f"step time ({time_unit(largest)[0]})",
        "share": "MFU (%)",
        "GPU-hours": f"{ticks.unit_of(largest)[0]}GPU-hours of the training run",
        "money": "cost of the training run",
        "bytes": f"peak memory of the fullest device ({size_unit(largest)[0]})",
        "GPUs": "GPUs",
    }[unit]


def _proof(frame: Frame, *, complete: bool) -> str:
    open_ones = int((frame["gap"] > 0).sum())
    points = counted(len(frame), "point")
    proof = "each a proven optimum"
    if open_ones:
        proof = f"{grouped(open_ones)} of them (ringed) within {percent(float(frame['gap'].max()))} of one"
    return f"{points}, {proof}" + ("" if complete else "; others lie between them")


def _finding(frame: Frame, names: tuple[str, str], measures: tuple[Measure, Measure]) -> str:
    """What the better end in one objective costs in the other."""
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

    gain = _changed(top[second], bottom[second], of_second.unit)
    loss = _changed(top[first], bottom[first], of_first.unit)
    return f"{gain[:1].upper()}{gain[1:]} for {loss}: {at(bottom)}, or {at(top)}"


def _changed(before: float, after: float, unit: Unit) -> str:
    """ "9.5 % less cost", "7.2 x the step time", "1/16 of the GPUs"; shares in points."""
    name, ratio = _NAMES[unit], after / before
    more = "more" if ratio > 1 else "fewer" if name.endswith("s") else "less"
    if unit == "share":
        return f"{100 * abs(after - before):.1f} pt {more} {name}"
    if ratio >= 2:
        return f"{round(ratio, 1):g} x the {name}"
    if ratio <= 0.5:
        return f"1/{round(1 / ratio, 1):g} of the {name}"
    return f"{percent(abs(ratio - 1))} {more} {name}"
