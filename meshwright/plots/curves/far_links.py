"""Far links: what the bandwidth between buildings buys, and which axes the best layout sends over it."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import counted, format_seconds
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.style import Frame
from meshwright.plots.parts.text import unproven
from meshwright.render.words import percent, sentence_list

_COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.PURPLE)
_MARKS = ("o", "s", "D", "^")


def far_links(frame: Frame, bandwidth: float, inside: str, subject: str) -> Figure:
    """MFU of the best layout against the bandwidth of a GPU on the farthest links, with the axes that cross them.

    Args:
        frame: a row per point with `domains`, `bandwidth`, `mfu`, `crossing`, `gap`, `step_seconds`.
        bandwidth: of the plan's own cluster, bytes/s of a GPU.
        inside: name of the level that the links leave.
        subject: what was priced.
    """
    alone, lines = frame[frame["domains"] == 1], _lines(frame)
    with style.sheet(9.6, 4.8) as figure:
        axes = figure.subplots()
        axes.set_xscale("log", base=2)
        for at, (_, line) in enumerate(lines):
            _curve(axes, line, _COLOURS[at % 4], _MARKS[at % 4], above=at == 0)
        names = [(counted(many, inside), _COLOURS[at % 4]) for at, (many, _) in enumerate(lines) if many]
        style.name_in_corner(axes, names, 0.02, 0.97)
        rates = sorted({float(rate) * 8 / 1e9 for _, line in lines for rate in line["bandwidth"]})
        if not alone.empty:
            level = 100 * float(alone["mfu"].iloc[0])
            axes.axhline(level, color=style.SOFT, linewidth=1.2, linestyle=(0, (2, 2)))
            axes.text(rates[0], level, f" one {inside}", va="bottom", color=style.SOFT, weight="bold")
        axes.axvline(bandwidth * 8 / 1e9, color=style.PALE, linewidth=1.2, zorder=0)
        axes.set_ylim(0, 1.25 * 100 * float(frame["mfu"].max()))
        axes.margins(x=0.06)
        axes.set_xticks(rates, [ticks.written(round(rate, 3)) for rate in rates], size=8)
        axes.minorticks_off()
        axes.set_xlabel(f"bandwidth from {inside} to {inside} (Gb/s a GPU); grey: the cluster's own")
        ticks.measure(axes, "y", "MFU of the best layout (%)")
        below = f"{subject}; beside points: axes that cross{unproven(frame)}"
        style.put_title(figure, finding(frame, bandwidth, inside), below)
    return figure


def finding(frame: Frame, bandwidth: float, inside: str) -> str:
    """ "4 buildings at 25 Gb/s a GPU: 14.79 s, 1.2 % more than in one; pp and dp cross"."""
    domains, line = _lines(frame)[-1]
    own = line.iloc[(line["bandwidth"] - bandwidth).abs().argmin()]
    at = f"{ticks.written(round(float(own['bandwidth']) * 8 / 1e9, 3))} Gb/s a GPU"
    where = f"{counted(domains, inside)} at {at}" if domains else f"At {at} from {inside} to {inside}"
    said = f"{where}: {format_seconds(float(own['step_seconds']))} a step"
    alone = frame[frame["domains"] == 1]
    if not alone.empty:
        more = float(own["step_seconds"]) / float(alone["step_seconds"].iloc[0]) - 1
        said += f", {percent(more)} more than in one" if more >= 5e-4 else ", as fast as in one"
    axes = str(own["crossing"]).split()
    crosses = (
        f"{sentence_list(axes)} {'crosses' if len(axes) == 1 else 'cross'}" if axes else "nothing crosses"
    )
    return f"{said}; {crosses}"


def _lines(frame: Frame) -> list[tuple[int, Frame]]:
    several = frame[frame["domains"] != 1]
    return [
        (int(domains), line.sort_values("bandwidth"))
        for domains, line in several.groupby("domains", sort=True)
    ]


def _curve(axes: Axes, line: Frame, colour: str, mark: str, *, above: bool) -> None:
    """A line with a mark at each point, hollow where no proof was found; the axes that cross where they change."""
    x, y = line["bandwidth"] * 8 / 1e9, 100 * line["mfu"]
    axes.plot(x, y, color=colour, marker=mark, linewidth=1.8, markersize=5)
    open_ones = line["gap"] > 0
    axes.plot(x[open_ones], y[open_ones], mark, color=colour, markersize=5, markerfacecolor="white")
    before = None
    for rate, mfu, across in zip(x, y, line["crossing"], strict=True):
        if across != before:
            crossing = str(across).split()
            shift = (0, 7 if above else -7 - 9 * len(crossing))
            style.beside(axes, "\n".join(crossing), (rate, mfu), shift, ha="center", size=8, color=colour)
        before = across
