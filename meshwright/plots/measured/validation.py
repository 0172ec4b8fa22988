"""How good predictions of published runs are: against the measured times, and where the errors are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.measured.runs.cases import source_title
from cost_models.units import counted
from meshwright.plots.parts import style
from meshwright.plots.parts.diagonal import BAND, draw_band, draw_diagonal, finding
from meshwright.plots.parts.style import Frame
from meshwright.render.words import lines_of, part_label, percent

AXES = ("bound_by", "tp", "pp", "mbs", "gpus", "source")
"""What errors are sorted by, a panel each."""
_LABELS = {
    "bound_by": "largest part beside compute",
    "tp": "tensor-parallel ranks",
    "pp": "pipeline ranks",
    "mbs": "sequences a microbatch",
    "gpus": "GPUs",
    "source": "source",
}
_WHICH = {
    "bound_by": "bound by {}",
    "tp": "with tp{}",
    "pp": "with pp{}",
    "mbs": "with mbs{}",
    "gpus": "on {} GPUs",
    "source": "of {}",
}
_MAX_GROUPS = 9
_FEWEST = 3
"""Runs below which a group has no box."""
_COLOURS = (
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
_EDGE = 60.0
"""Percent at which a chart ends at the latest; what reaches further is told there."""


def predicted_against_measured(frame: Frame, subject: str) -> Figure:
    """Step times on a diagonal with a ±10 % band, a colour and a mark for each source.

    Args:
        frame: a row per run with `source`, `measured_seconds`, `predicted_seconds`.
        subject: where the runs come from.
    """
    with style.drawing():
        many = frame["source"].nunique() > len(_COLOURS)
        figure = style.new_figure(6.8, 8.6 if many else 6.8)
        axes = figure.add_subplot()
        draw_diagonal(axes, frame["measured_seconds"], frame["predicted_seconds"])
        sizes = frame["source"].value_counts()
        for number, (source, some) in enumerate(frame.groupby("source", sort=False)):
            error = (some["predicted_seconds"] / some["measured_seconds"] - 1).abs().median()
            axes.scatter(
                some["measured_seconds"],
                some["predicted_seconds"],
                s=16,
                alpha=0.65,
                linewidths=0,
                color=_COLOURS[number % len(_COLOURS)],
                marker=_MARKERS[number // len(_COLOURS) % len(_MARKERS)],
                label=f"{source_title(str(source))}, {counted(len(some), 'run')}: {percent(float(error))}",
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
        if many:  # more than leave the diagonal free
            figure.legend(loc="outside lower left", ncols=2, **names)
        else:
            axes.legend(loc="upper left", **names)
        style.put_title(figure, finding(frame["measured_seconds"], frame["predicted_seconds"]), subject)
    return figure


def errors_by_axis(frame: Frame, subject: str) -> Figure:
    """Signed error of step time by what binds the run, by each axis of the layout, by size and by source.

    Args:
        frame: a row per run with the columns of `AXES`, `measured_seconds`, `predicted_seconds`.
        subject: where the runs come from.
    """
    error = 100 * (frame["predicted_seconds"] / frame["measured_seconds"] - 1)
    reach = min(max(1.5 * 100 * BAND, 1.15 * float(error.abs().quantile(0.98))), _EDGE)
    with style.sheet(11.4, 7.8) as figure:
        for axes, column in zip(figure.subplots(2, 3).flat, AXES, strict=True):
            _panel(axes, column, frame[column], error, reach)
        style.put_title(figure, _worst_group(frame, error), f"{subject}; band: ±{100 * BAND:.0f} %; {_BOXES}")
    return figure


def _panel(axes: Axes, column: str, values: Frame, error: Frame, reach: float) -> None:
    """A box from quartile to quartile with whiskers to the 10th and 90th percentile, a bar at the median."""
    groups = _groups(column, values)
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
            _beyond(axes, 1 + number // 2, math.copysign(reach, end), end)
    labels = [f"{_group_label(column, group)}  ({int((values == group).sum())})" for group in groups]
    axes.set_yticks(range(1, len(groups) + 1), labels, size=8)
    axes.invert_yaxis()
    axes.set_xlim(-reach, reach)
    more = values.nunique() - len(groups)
    rest = f", without {counted(more, 'rare one')}" if more else ""
    axes.set_title(f"by {_LABELS[column]}{rest}", loc="left", size=9)
    axes.set_xlabel("error of step time (%)", size=8)
    style.quiet_axis(axes, grid="x")


def _beyond(axes: Axes, row: int, edge: float, end: float) -> None:
    """Where a whisker that leaves the chart ends."""
    side, shift = ("left", 3) if edge < 0 else ("right", -3)
    look = {"ha": side, "va": "bottom", "size": 7, "color": style.BLUE}
    style.beside(axes, f"to {end:+.0f} %", (edge, row), (shift, 3), **look)


def _groups(column: str, values: Frame) -> Sequence[object]:
    """The groups drawn: numbers in their order, names by how many runs they have; the most frequent ones."""
    sizes = values.value_counts()
    enough = sizes[sizes >= min(_FEWEST, sizes.iloc[0])]
    frequent = enough.index[:_MAX_GROUPS]
    return list(frequent) if column in ("bound_by", "source") else sorted(frequent)


def _group_label(column: str, group: object) -> str:
    named = _named(column, group)
    return "\n".join(lines_of(named, 20)) if column == "source" else named


def _named(column: str, group: object) -> str:
    names = {"bound_by": part_label, "source": source_title}
    return names[column](str(group)) if column in names else str(group)


def _worst_group(frame: Frame, error: Frame) -> str:
    """Which of the groups drawn is furthest off."""
    medians = [
        (abs(float(error[frame[column] == group].median())), column, group)
        for column in AXES
        for group in _groups(column, frame[column])
    ]
    _, column, group = max(medians, key=lambda one: one[0])
    some = error[frame[column] == group]
    which = _WHICH[column].format(_named(column, group))
    return f"Runs {which} are furthest off: median error {float(some.median()):+.1f} % ({counted(len(some), 'run')})"
