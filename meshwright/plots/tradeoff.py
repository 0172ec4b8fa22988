"""The frontier: what more memory buys in throughput, over every legal layout."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import format_bytes, format_count, grouped
from meshwright.plots import style
from meshwright.plots.style import Frame
from meshwright.plots.text import short_layout
from meshwright.render.words import percent, size_unit

_REACH = 2.0
"""The memory axis ends at this many limits: beyond it lie layouts nobody would run."""
_MAX_LABELS = 5
_LABEL_GAP = 0.075
"""Least vertical distance of two labels, as a share of the axis."""


def frontier(frame: Frame, limit_bytes: float, subject: str) -> Figure:
    """Peak memory against throughput: all layouts grey, the Pareto line, the chosen plan, the limit.

    Args:
        frame: a row per layout with `layout`, `peak_bytes`, `tokens_per_second`, `mfu`, `fits`, `pareto`, `chosen`.
        limit_bytes: what one device may hold.
        subject: what was priced.
    """
    unit, scale = size_unit(limit_bytes)
    shown = frame[frame["peak_bytes"] <= _REACH * limit_bytes]
    best_line = shown[shown["pareto"]].sort_values("peak_bytes")
    with style.drawing():
        figure = style.new_figure(9.0, 5.6)
        axes = figure.add_subplot()
        for fits, colour in ((False, style.FAINT), (True, style.PALE)):
            some = shown[shown["fits"] == fits]
            axes.scatter(
                some["peak_bytes"] / scale, some["tokens_per_second"], s=9, color=colour, linewidths=0
            )
        axes.plot(
            best_line["peak_bytes"] / scale,
            best_line["tokens_per_second"],
            color=style.BLUE,
            linewidth=1.8,
            marker="o",
            markersize=4.5,
            drawstyle="steps-post",
        )
        top = 1.12 * float(shown["tokens_per_second"].max()) if len(shown) else 1.0
        axes.set_ylim(0, top)
        right = 1.06 * max(float(shown["peak_bytes"].max()) if len(shown) else 0.0, limit_bytes) / scale
        axes.set_xlim(0, right)
        axes.axvline(limit_bytes / scale, color=style.INK, linewidth=1.4, linestyle=(0, (5, 3)))
        axes.text(
            limit_bytes / scale + 0.006 * right,
            0.015 * top,
            f"limit {limit_bytes / scale:.1f} {unit}",
            weight="bold",
        )
        _mark_chosen(axes, shown, scale)
        chosen = shown.loc[shown["chosen"], "tokens_per_second"]
        _label_line(axes, best_line, list(chosen), (right * scale, top), scale)
        axes.set_xlabel(f"peak memory of the fullest device ({unit})")
        axes.set_ylabel("throughput (tokens/s, all GPUs)")
        axes.yaxis.set_major_formatter(lambda value, _position: format_count(value))
        style.quiet_axis(axes, grid="both")
        style.put_title(figure, _finding(frame, limit_bytes), _subject(subject, frame, shown))
    return figure


def _mark_chosen(axes: Axes, shown: Frame, scale: float) -> None:
    for _, row in shown[shown["chosen"]].iterrows():
        axes.scatter(
            row["peak_bytes"] / scale,
            row["tokens_per_second"],
            s=150,
            marker="*",
            color=style.VERMILION,
            zorder=5,
        )
        axes.annotate(
            f"chosen\n{short_layout(row['layout'], 34)}",
            (row["peak_bytes"] / scale, row["tokens_per_second"]),
            xytext=(9, 5),
            textcoords="offset points",
            color=style.VERMILION,
            weight="bold",
            size=8,
            va="bottom",
        )


def _label_line(
    axes: Axes, line: Frame, taken: list[float], reach: tuple[float, float], scale: float
) -> None:
    """Name a few points of the line, from the fastest down, none close to another or to the chosen one (`taken`)."""
    right, top = reach
    for _, row in line[~line["chosen"]].iloc[::-1].iterrows():
        y = row["tokens_per_second"]
        if len(taken) > _MAX_LABELS or any(abs(y - other) < _LABEL_GAP * top for other in taken):
            continue
        taken.append(y)
        left = row["peak_bytes"] > 0.6 * right
        axes.annotate(
            short_layout(row["layout"], 44),
            (row["peak_bytes"] / scale, y),
            xytext=(-7 if left else 7, -3),
            textcoords="offset points",
            ha="right" if left else "left",
            va="top",
            size=7.5,
            color=style.BLUE,
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1.0},
        )


def _finding(frame: Frame, limit_bytes: float) -> str:
    fitting = frame[frame["fits"]]
    if fitting.empty:
        least = format_bytes(float(frame["peak_bytes"].min()))
        return f"Nothing fits in {format_bytes(limit_bytes)}; the smallest layout needs {least}"
    line = fitting[fitting["pareto"]].sort_values("peak_bytes")  # priced in full, unlike the grey points
    best = line.iloc[-1] if len(line) else fitting.loc[fitting["tokens_per_second"].idxmax()]
    almost = line[line["tokens_per_second"] >= 0.95 * best["tokens_per_second"]]
    cheap = almost.iloc[0] if len(almost) else best
    if cheap["peak_bytes"] > 0.95 * best["peak_bytes"]:
        needs = f"{percent(best['mfu'])} MFU needs {format_bytes(best['peak_bytes'])}"
        smaller = line[line["peak_bytes"] < cheap["peak_bytes"]]
        if smaller.empty:
            return f"{needs}; nothing fits in less"
        less = smaller.iloc[-1]
        return f"{needs}; {format_bytes(less['peak_bytes'])} are enough for {percent(less['mfu'])}"
    return (
        f"{percent(best['mfu'])} MFU needs {format_bytes(best['peak_bytes'])}; "
        f"95 % of that speed fits in {format_bytes(cheap['peak_bytes'])}"
    )


def _subject(subject: str, frame: Frame, shown: Frame) -> str:
    beyond = len(frame) - len(shown)
    more = f", {grouped(beyond)} of them beyond the right edge" if beyond else ""
    return f"{subject}; {grouped(len(frame))} layouts with recompute, {grouped(int(frame['fits'].sum()))} fit{more}"
