"""Scaling: what more GPUs buy, with the same batch (strong) and with a batch that grows with them (weak)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import counted, format_count, grouped
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.style import Frame
from meshwright.plots.parts.text import brief_layout, unproven
from meshwright.render.words import percent

_COLOURS = {"strong": style.BLUE, "weak": style.VERMILION}
_MARKS = {"strong": "o", "weak": "s"}
_MANY = 12
"""Points of a line from which its marks are small."""
_LAYOUT_APART = 0.12
"""Least distance of two numbers of GPUs whose layouts are written, as a share of the axis."""
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
        shown = draw_speed(speed, frame, kinds, "tokens")
        for kind, line in kinds:
            _curve(use, line["gpus"], 100 * line["mfu"], kind, line["gap"])
        use.set_ylim(0, 1.25 * 100 * frame["mfu"].max())
        use.set_ylabel("MFU (%)")
        ticks.linear(use.yaxis)
        use.margins(x=0.08)
        ticks.numbers_of_gpus(use, shown, apart=_LAYOUT_APART)
        use.set_xlabel("GPUs")
        style.quiet_axis(use, grid="both")
        _layouts(speed, shown, kinds)
        style.put_title(figure, _finding(kinds), f"{subject}{unproven(frame)}")
    return figure


def draw_speed(axes: Axes, frame: Frame, kinds: Sequence[tuple[str, Frame]], what: str) -> list[int]:
    """Throughput in `tokens` or `samples` a second, a line for each kind, beside the ideal; GPUs that have a tick."""
    name = f"{what}_per_second"
    word, per_tick = ticks.unit_of(float(frame[name].max()))
    counts = [int(gpus) for gpus in sorted(frame["gpus"].unique())]
    axes.set_yscale("log", base=10)
    said = [(batch_words(kind, line), _COLOURS[kind]) for kind, line in kinds]
    if len(counts) > 1:
        _ideal(axes, frame, per_tick, name)
        said.append(("ideal", style.SOFT))
    for kind, line in kinds:
        _curve(axes, line["gpus"], line[name] / per_tick, kind, line["gap"])
    style.name_in_corner(axes, said, 0.03, 0.97, step=0.055)
    axes.margins(x=0.08, y=0.1)
    axes.set_ylabel(f"throughput ({word}{what}/s, all GPUs)")
    ticks.logarithmic(axes.yaxis, *axes.get_ylim())
    axes.set_xlabel("GPUs")
    style.quiet_axis(axes, grid="both")
    return ticks.numbers_of_gpus(axes, counts, apart=_LAYOUT_APART)


def _curve(axes: Axes, gpus: Frame, values: Frame, kind: str, gap: Frame) -> None:
    """A line with a mark at each point; hollow where no proof was found."""
    mark, colour, size = _MARKS[kind], _COLOURS[kind], 5 if len(gpus) <= _MANY else 3
    axes.plot(gpus, values, color=colour, marker=mark, linewidth=1.8, markersize=size)
    open_ones = gap > 0
    axes.plot(
        gpus[open_ones], values[open_ones], mark, color=colour, markersize=size, markerfacecolor="white"
    )


def _ideal(axes: Axes, frame: Frame, per_tick: float, speed: str) -> None:
    """Throughput proportional to GPUs, from the first strong point."""
    strong = frame[frame["kind"] == "strong"] if (frame["kind"] == "strong").any() else frame
    first = strong.sort_values("gpus").iloc[0]
    ends = [int(frame["gpus"].min()), int(frame["gpus"].max())]
    speeds = [first[speed] * gpus / first["gpus"] / per_tick for gpus in ends]
    axes.plot(ends, speeds, color=style.GREY, linewidth=1.2, linestyle=(0, (2, 2)))


def _layouts(axes: Axes, shown: list[int], kinds: list[tuple[str, Frame]]) -> None:
    """Under each number of GPUs the layout that is best there: a row of them for each kind, "same" where it is."""
    down, before = _BELOW_POINTS, dict.fromkeys(shown, "")
    for kind, line in kinds:
        layouts = {int(row["gpus"]): str(row["layout"]) for _, row in line.iterrows()}
        texts = {gpus: brief_layout(layouts[gpus], _LAYOUT_COLUMNS) for gpus in shown if gpus in layouts}
        same = {gpus for gpus in texts if layouts[gpus] == before[gpus]}
        texts |= dict.fromkeys(same, "same")
        for x, words, side in [(gpus, text, "center") for gpus, text in texts.items()]:
            _below(axes, x, words, down, _COLOURS[kind], side)
        _below(axes, None, kind, down, _COLOURS[kind], "right")
        before |= {gpus: layouts[gpus] for gpus in texts}
        down += _LINE_POINTS * (0.6 + max((text.count("\n") + 1 for text in texts.values()), default=0))


def _below(axes: Axes, gpus: int | None, words: str, down: float, colour: str, side: str) -> None:
    """Text so many points under the axis, at a number of GPUs or at its left end."""
    look = {"ha": side, "va": "top", "size": _LAYOUT_SIZE, "color": colour, "annotation_clip": False}
    if gpus is None:
        style.beside(axes, words, (0, 0), (-6, -down), xycoords=axes.transAxes, weight="bold", **look)
    else:
        style.beside(axes, words, (gpus, 0), (0, -down), xycoords=axes.get_xaxis_transform(), **look)


def batch_words(kind: str, line: Frame) -> str:
    """The batch of a line, or its first and its last."""
    batches = [int(batch) for batch in line["global_batch"]]
    ends = (
        grouped(batches[0]) if len(set(batches)) == 1 else f"{grouped(batches[0])} … {grouped(batches[-1])}"
    )
    return f"{kind}: batch {ends}"


def _finding(kinds: list[tuple[str, Frame]]) -> str:
    """Speed at the last point over that at the first: of the strong line, or of the only one."""
    kind, line = next(((kind, line) for kind, line in kinds if len(line) > 1), kinds[0])
    first, last = line.iloc[0], line.iloc[-1]
    if len(line) < 2:
        return (
            f"{counted(int(first['gpus']), 'GPU')}, the only number with an answer: "
            f"{format_count(first['tokens_per_second'])} tokens/s, {percent(first['mfu'])} MFU"
        )
    gain = last["tokens_per_second"] / first["tokens_per_second"]
    more = last["gpus"] / first["gpus"]
    batch = "same batch" if kind == "strong" else "batch growing with them"
    return (
        f"{grouped(int(first['gpus']))} to {grouped(int(last['gpus']))} GPUs, {batch}: "
        f"{gain:.1f} x the speed, {percent(gain / more)} of ideal"
    )
