"""Results as a table in Markdown, and as a figure: how search time and layouts grow with GPUs, layers and axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

from cost_models.units import grouped
from meshwright.plots import style
from meshwright.plots.style import short_layout

PANELS = {
    "gpus": ("GPUs", "GPT-3 175B, batch 1,536 x 2,048"),
    "layers": ("blocks of the model", "GPT-3 175B's blocks on 1,024 GPUs"),
    "axes": ("axes searched, one more at a time", "Mixtral 8x22B on 512 H100"),
}
Row = Mapping[str, object]

_HEADINGS = (
    "question",
    "top",
    "layouts",
    "do not fit",
    "by bound",
    "exactly",
    "open",
    "gap",
    "aim s",
    "proven s",
    "CPU s",
    "first s",
    "peak MiB",
    "decided/s",
    "priced/s",
    "best",
)


def markdown(rows: Iterable[Row]) -> str:
    """The table of the report: every case that is not a point of the figure."""
    lines = [f"| {' | '.join(_HEADINGS)} |", f"|{' --- |' * len(_HEADINGS)}"]
    for row in rows:
        if row["group"] != "search":
            continue
        cells = (
            str(row["subject"]),
            str(row["top"]),
            *(_count(row[name]) for name in ("layouts", "infeasible", "pruned", "solved", "undecided")),
            f"{100 * _number(row['gap']):.2f} %" if _number(row["gap"]) else "0",
            f"{_number(row['aim_seconds']):g}" if row["aim_seconds"] else "",
            *(f"{_number(row[name]):.2f}" for name in ("proven_seconds", "cpu_seconds", "first_seconds")),
            *(_count(row[name]) for name in ("peak_rss_mib", "decided_per_second", "priced_per_second")),
            short_layout(str(row["layout"]), 1000),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: object) -> float:
    return float(str(value))


def _count(value: object) -> str:
    return f"{int(_number(value)):,}" if value not in (None, "") else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One search of a curve."""

    at: float
    label: str
    seconds: float
    layouts: float
    proven: bool


def draw(rows: Iterable[Row], path: Path) -> None:
    """Write the figure, if every curve has two points or more."""
    every = list(rows)
    curves = {group: _points(every, group) for group in PANELS}
    if any(len(points) < 2 for points in curves.values()):
        return
    with style.drawing():
        figure = style.new_figure(12.5, 4.8)
        panels = figure.subplots(1, len(curves))
        for axes, (group, points) in zip(panels, curves.items(), strict=True):
            _panel(axes, group, points)
        subject = "one core, median of five; round: seconds from the question to the proof (hollow: stopped by the time"
        style.put_title(figure, _finding(curves), f"{subject} limit, not proven); square: layouts covered")
    style.save(figure, path)


def _points(rows: list[Row], group: str) -> list[Point]:
    """In rising order."""
    points = [
        Point(
            at=_number(row["at"]),
            label=str(row["label"]),
            seconds=_number(row["proven_seconds"]),
            layouts=_number(row["layouts"]),
            proven=not _number(row["undecided"]),
        )
        for row in rows
        if row["group"] == group
    ]
    return sorted(points, key=lambda point: point.at)


def _panel(axes: Axes, group: str, points: list[Point]) -> None:
    """Seconds on the left, layouts on the right, both logarithmic."""
    label, subject = PANELS[group]
    where = [point.at for point in points]
    axes.plot(where, [point.seconds for point in points], color=style.BLUE, linewidth=1.8)
    for point in points:
        face = style.BLUE if point.proven else "white"
        axes.plot(point.at, point.seconds, marker="o", markersize=6, color=style.BLUE, markerfacecolor=face)
    axes.set_yscale("log")
    axes.set_ylim(0.01, 100)
    axes.set_ylabel("seconds to the proof", color=style.BLUE)
    other = axes.twinx()
    layouts = [point.layouts for point in points]
    other.plot(where, layouts, color=style.VERMILION, marker="s", linewidth=1.2, markersize=4)
    other.set_yscale("log")
    other.set_ylim(10, 1e7)
    other.set_ylabel("layouts covered", color=style.VERMILION)
    other.grid(False)
    if group == "gpus":
        axes.set_xscale("log", base=2)
    names = [point.label or grouped(int(point.at)) for point in points]
    axes.set_xticks(where, names, rotation=40, ha="right", rotation_mode="anchor")
    for each in (axes, other):
        each.minorticks_off()
    axes.set_xlabel(label)
    axes.set_title(subject, size=9, color=style.GREY)
    style.quiet_axis(axes, grid="y")


def _finding(curves: dict[str, list[Point]]) -> str:
    """What the curves show, in numbers."""
    gpus, axes = curves["gpus"], curves["axes"]
    seconds = sorted(point.seconds for point in gpus)
    layouts = axes[-1].layouts / axes[0].layouts
    more = f"{gpus[-1].at / gpus[0].at:.0f} times the GPUs: {seconds[0]:.1f} to {seconds[-1]:.1f} s a search"
    longer = axes[-1].seconds / axes[0].seconds
    return (
        f"{more}; all axes: {grouped(round(layouts))} times the layouts of four, {longer:.1f} times the time"
    )
