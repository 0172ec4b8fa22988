"""An exact frontier of two objectives: each point a proven optimum, named by its GPUs and its layout."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import counted, format_count, grouped
from meshwright.plots import style
from meshwright.plots.style import Frame
from meshwright.plots.text import short_layout
from meshwright.render.goals import value_text
from meshwright.render.words import percent, size_unit
from planner.objectives import Measure, Unit

_AXES: dict[Unit, str] = {
    "seconds": "step time (s)",
    "share": "MFU (%)",
    "GPU-hours": "GPU-hours of the training run",
    "money": "cost of the training run",
    "bytes": "peak memory of the fullest device",
    "GPUs": "GPUs",
}
_MAX_LABELS = 14
"""Points named; of more every n-th and both ends are."""


def pareto(frame: Frame, names: tuple[str, str], measures: tuple[Measure, Measure], subject: str) -> Figure:
    """The second objective across, the first upwards, a step line through the points.

    Args:
        frame: a row per point with the two objectives under their `names`, `gpus`, `layout`, `gap`.
        names: of the objectives' columns, first and second.
        measures: what they are.
        subject: what was priced.
    """
    (up, across), (up_measure, across_measure) = names, measures
    line = frame.sort_values(across)
    with style.drawing():
        figure = style.new_figure(9.0, 5.6)
        axes = figure.add_subplot()
        x = line[across] / _scale(line, across, across_measure.unit)
        y = line[up] / _scale(line, up, up_measure.unit)
        axes.plot(x, y, color=style.BLUE, linewidth=1.2, drawstyle="steps-post")
        axes.scatter(x, y, s=26, color=style.BLUE, zorder=3)
        open_ones = line["gap"] > 0
        axes.scatter(
            x[open_ones], y[open_ones], s=70, facecolors="none", edgecolors=style.VERMILION, zorder=4
        )
        _label_points(axes, line, x, y, one_size=line["gpus"].nunique() == 1)
        for axis, name, measure in ((axes.xaxis, across, across_measure), (axes.yaxis, up, up_measure)):
            axis.set_major_formatter(
                lambda value, _position: format_count(value) if value >= 1e6 else f"{value:g}"
            )
            axis.set_label_text(_axis(line, name, measure.unit))
        for set_scale, values in ((axes.set_xscale, x), (axes.set_yscale, y)):
            if values.min() > 0 and values.max() / values.min() > 8:
                set_scale("log", base=2)
        axes.margins(x=0.14, y=0.12)
        style.quiet_axis(axes, grid="both")
        style.put_title(figure, _finding(frame, names, measures), f"{subject}; {_proof(frame)}")
    return figure


def _label_points(axes: Axes, line: Frame, x: Frame, y: Frame, *, one_size: bool) -> None:
    """The GPUs and the degrees of each point, above and to the right of the line."""
    every = -(-len(line) // _MAX_LABELS)
    for number, (_, row) in enumerate(line.iterrows()):
        if number % every and number != len(line) - 1:
            continue
        words = [
            word for word in row["layout"].split() if word.startswith(("tp", "pp", "vpp", "dp", "cp", "ep"))
        ]
        gpus = "" if one_size else f"{grouped(int(row['gpus']))} GPUs\n"
        axes.annotate(
            gpus + short_layout(" ".join(words), 22),
            (x.iloc[number], y.iloc[number]),
            xytext=(6, 3),
            textcoords="offset points",
            size=7,
            color=style.BLUE,
        )


def _scale(line: Frame, name: str, unit: Unit) -> float:
    """What one on the axis stands for."""
    if unit == "bytes":
        return size_unit(float(line[name].max()))[1]
    return 0.01 if unit == "share" else 1.0


def _axis(line: Frame, name: str, unit: Unit) -> str:
    return f"{_AXES[unit]} ({size_unit(float(line[name].max()))[0]})" if unit == "bytes" else _AXES[unit]


def _proof(frame: Frame) -> str:
    open_ones = int((frame["gap"] > 0).sum())
    points = counted(len(frame), "point")
    if not open_ones:
        return f"{points}, each a proven optimum"
    return f"{points}, {open_ones} of them (ringed) within {percent(float(frame['gap'].max()))} of one"


def _finding(frame: Frame, names: tuple[str, str], measures: tuple[Measure, Measure]) -> str:
    """What the ends cost one another."""
    (first, second), (of_first, of_second) = names, measures
    if len(frame) < 2:
        row = frame.iloc[0]
        return (
            f"One plan is best in both: {of_first.label} {value_text(row[first], of_first.unit)}, "
            f"{of_second.label} {value_text(row[second], of_second.unit)}"
        )
    top, bottom = frame.iloc[0], frame.iloc[-1]

    def words(row: Frame) -> str:
        pair = ((first, of_first), (second, of_second))
        return " at ".join(f"{measure.label} {value_text(row[name], measure.unit)}" for name, measure in pair)

    return f"From {words(top)} to {words(bottom)}"
