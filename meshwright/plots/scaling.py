"""Scaling: what more GPUs buy, with the same batch (strong) and with a batch that grows with them (weak)."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import format_count, grouped
from meshwright.plots import style
from meshwright.plots.style import Frame
from meshwright.plots.text import short_layout
from meshwright.render.words import percent

_COLOURS = {"strong": style.BLUE, "weak": style.VERMILION}
_MARKS = {"strong": "o", "weak": "s"}
_MAX_LABELS = 8
"""Points with a layout and a tick each; of more, every n-th has a layout, and ticks are doublings."""
_LEGEND_HEIGHT = {"strong": 0.11, "weak": 0.05}
"""Where each kind is named, as a share of the axis: the foot of the chart, which MFU curves leave free."""


def scaling(frame: Frame, subject: str) -> Figure:
    """Throughput and MFU of the best layout at each number of GPUs.

    Args:
        frame: a row per point with `kind` (strong or weak), `gpus`, `layout`, `tokens_per_second`, `mfu`,
            `global_batch`; numbers of GPUs on which nothing fits are left out.
        subject: what was priced.
    """
    with style.drawing():
        figure = style.new_figure(10.0, 5.4)
        speed, use = figure.subplots(1, 2, width_ratios=(3, 2))
        _ideal(speed, frame)
        for kind, points in frame.groupby("kind", sort=True):
            line = points.sort_values("gpus")
            look = {
                "color": _COLOURS[str(kind)],
                "marker": _MARKS[str(kind)],
                "linewidth": 1.8,
                "markersize": 5 if len(line) <= _MAX_LABELS else 3,
            }
            speed.plot(line["gpus"], line["tokens_per_second"], **look)
            use.plot(line["gpus"], 100 * line["mfu"], **look)
            use.text(
                0.05,
                _LEGEND_HEIGHT[str(kind)],
                _batch_words(str(kind), line),
                transform=use.transAxes,
                weight="bold",
                color=_COLOURS[str(kind)],
            )
        _label_layouts(speed, frame)
        speed.set_yscale("log", base=2)
        speed.yaxis.set_major_formatter(lambda value, _position: f"{format_count(value / 1e3)} k")
        speed.set_ylabel("throughput (tokens/s, all GPUs)")
        use.set_ylabel("MFU (%)")
        use.set_ylim(0, 1.25 * 100 * frame["mfu"].max())
        counts = _ticks(frame)
        for axes in (speed, use):
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [grouped(int(gpus)) for gpus in counts])
            axes.minorticks_off()
            axes.set_xlabel("GPUs")
            style.quiet_axis(axes, grid="both")
        speed.margins(x=0.12, y=0.14)
        use.margins(x=0.08)
        style.put_title(figure, _finding(frame), subject)
    return figure


def _ticks(frame: Frame) -> list[int]:
    """Every number of GPUs, or doublings where there are many."""
    counts = sorted(frame["gpus"].unique().tolist())
    if len(counts) <= _MAX_LABELS:
        return counts
    doublings = [counts[0]]
    while 2 * doublings[-1] <= counts[-1]:
        doublings.append(2 * doublings[-1])
    return doublings


def _ideal(axes: Axes, frame: Frame) -> None:
    """Throughput proportional to GPUs, from the first strong point."""
    strong = frame[frame["kind"] == "strong"] if (frame["kind"] == "strong").any() else frame
    first = strong.sort_values("gpus").iloc[0]
    ends = [int(frame["gpus"].min()), int(frame["gpus"].max())]
    speeds = [first["tokens_per_second"] * gpus / first["gpus"] for gpus in ends]
    axes.plot(ends, speeds, color=style.GREY, linewidth=1.2, linestyle=(0, (2, 2)))
    axes.annotate(
        "ideal",
        (ends[1], speeds[1]),
        xytext=(4, 2),
        textcoords="offset points",
        color=style.GREY,
        weight="bold",
    )


def _label_layouts(axes: Axes, frame: Frame) -> None:
    """The best layout at each point: strong below its line, weak above where it differs."""
    strong = {row["gpus"]: row["layout"] for _, row in frame[frame["kind"] == "strong"].iterrows()}
    counts = sorted(frame["gpus"].unique())
    shown = set(counts[:: -(-len(counts) // _MAX_LABELS)])
    for _, row in frame.iterrows():
        below = row["kind"] == "strong"
        if row["gpus"] not in shown or (not below and strong.get(row["gpus"]) == row["layout"]):
            continue
        axes.annotate(
            short_layout(_degrees(row["layout"]), 16),
            (row["gpus"], row["tokens_per_second"]),
            xytext=(6, -6) if below else (-6, 6),
            textcoords="offset points",
            ha="left" if below else "right",
            va="top" if below else "bottom",
            size=7,
            color=_COLOURS[row["kind"]],
        )


def _degrees(layout: str) -> str:
    """The words of a layout that say how ranks are used."""
    return " ".join(word for word in layout.split() if word.startswith(("tp", "pp", "vpp", "dp", "mbs")))


def _batch_words(kind: str, line: Frame) -> str:
    batches = line["global_batch"]
    if kind == "strong":
        return f"strong: batch {grouped(int(batches.iloc[-1]))}"
    return f"weak: batch {grouped(int(batches.iloc[0]))} … {grouped(int(batches.iloc[-1]))}"


def _finding(frame: Frame) -> str:
    line = frame[frame["kind"] == "strong"].sort_values("gpus")
    if len(line) < 2:
        return "One point is no curve"
    first, last = line.iloc[0], line.iloc[-1]
    gain = last["tokens_per_second"] / first["tokens_per_second"]
    more = last["gpus"] / first["gpus"]
    return (
        f"{grouped(int(first['gpus']))} to {grouped(int(last['gpus']))} GPUs, same batch: "
        f"{gain:.1f} x the speed, {percent(gain / more)} of ideal"
    )
