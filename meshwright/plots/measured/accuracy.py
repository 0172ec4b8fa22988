"""How good predictions of several runs are: step times on a diagonal, and the error of every quantity."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meshwright.plots.measured.one_run import one_run
from meshwright.plots.parts import style
from meshwright.plots.parts.diagonal import BAND, draw_band, draw_diagonal, finding
from meshwright.plots.parts.labels import Label, put_labels
from meshwright.plots.parts.style import Frame
from meshwright.plots.parts.text import short_layout
from meshwright.render.measured import SHARES, quantity_label

_MAX_QUANTITIES = 24
_MAX_LABELS = 12
_MAX_COLOURS = 5
"""Runs that have a colour each, so that they are found again beside the diagonal."""
_COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY)
_EDGE = 100.0
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
    rows = list(dict.fromkeys(sorted(compared["quantity"], key=_order)))[:_MAX_QUANTITIES]
    colours = _colours(frame)
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
            _errors(charts[1], compared, rows, colours)
        style.put_title(figure, finding(steps["measured"], steps["predicted"]), subject)
        _label_runs(charts[0], steps, colours)
    return figure


def _order(quantity: str) -> int:
    """Times first, then rates and shares, then memory."""
    kinds = ("step_seconds", "_seconds", "per_second", "mfu", "hfu", "peak_bytes", "_bytes", "")
    return next(number for number, kind in enumerate(kinds) if kind in quantity)


def _colours(frame: Frame) -> dict[str, str]:
    """A colour for each run where there are few."""
    labels = list(dict.fromkeys(frame["label"]))
    few = len(labels) <= _MAX_COLOURS
    return {label: _COLOURS[number] if few else style.BLUE for number, label in enumerate(labels)}


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


def _errors(axes: Axes, frame: Frame, rows: list[str], colours: dict[str, str]) -> None:
    """A dot per run and a bar at the median for each quantity; shares differ in points."""
    errors = [_error(frame[frame["quantity"] == quantity], quantity) for quantity in rows]
    largest = max(float(error.abs().max()) for error in errors)
    edge = min(max(largest, 150 * BAND), _EDGE)
    draw_band(axes)
    shift = {label: _spread(number, len(colours)) for number, label in enumerate(colours)}
    for row, (quantity, error) in enumerate(zip(rows, errors, strict=True)):
        labels = frame.loc[error.index, "label"]
        for label, value in zip(labels, error, strict=True):
            beyond = abs(value) > edge
            axes.scatter(
                min(max(value, -edge), edge),
                row + shift[label],
                s=32 if beyond else 26,
                marker=("<" if value < 0 else ">") if beyond else "o",
                color=colours[label],
                alpha=0.8,
                linewidths=0,
            )
        middle = float(error.median())
        at = min(max(middle, -edge), edge)
        axes.scatter([at], [row], s=200, marker="|", color=style.INK, linewidths=2)
        box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.3}
        style.beside(axes, _written(quantity, middle), (at, row), (0, 9), ha="center", size=7.5, bbox=box)
    axes.set_yticks(range(len(rows)), [_name(name) for name in rows])
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.set_xlim(-1.18 * edge, 1.18 * edge)
    axes.set_xlabel("error of the prediction (%; of MFU in points); bar: median")
    style.quiet_axis(axes, grid="x")


def _error(some: Frame, quantity: str) -> Frame:
    """In percent of what was measured; of a share, the difference in points."""
    if quantity in SHARES:
        return 100 * (some["predicted"] - some["measured"])
    return 100 * (some["predicted"] / some["measured"] - 1)


def _written(quantity: str, error: float) -> str:
    return f"{error:+,.1f} {'pt' if quantity in SHARES else '%'}"


def _spread(number: int, runs: int) -> float:
    """How far from the middle of a row a run's dot lies, where runs are few: so that dots at the edge are all seen."""
    return 0.2 * (number - (runs - 1) / 2) if runs <= _MAX_COLOURS else 0.0


def _name(quantity: str) -> str:
    return f"{quantity_label(quantity)} memory" if "_bytes" in quantity else quantity_label(quantity)
