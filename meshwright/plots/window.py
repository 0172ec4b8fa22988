"""The window: what each further block in host memory costs in time, and what it moves from one memory to the other."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import counted, format_bytes, format_seconds
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.style import Frame
from meshwright.render.words import size_unit, time_unit

_COLOURS = {"states": style.BLUE, "parked": style.GREEN, "streamed": style.VERMILION}
_WIDTHS = {"states": 4.5, "parked": 1.5, "streamed": 1.8}
"""Of lines: those of `states` and `parked` lie on one another in both memories, so the wider goes below."""
_NEAR = 1.6
"""A limit this many times as large as everything drawn is told, not drawn."""


def window(frame: Frame, device_limit: float, host_limit: float | None, subject: str) -> Figure:
    """Step time, device memory and host memory against the blocks of a rank in host memory, a line for each residency.

    Args:
        frame: a row per point with `residency`, `blocks`, `step_seconds`, `peak_bytes`, `host_bytes`, `fits`, `chosen`.
        device_limit: what one device may hold.
        host_limit: what blocks may fill of one host; None where nobody says.
        subject: what was priced.
    """
    lines = [
        (str(name), points.sort_values("blocks")) for name, points in frame.groupby("residency", sort=True)
    ]
    unit = time_unit(float(frame["step_seconds"].max()))
    with style.sheet(10.8, 4.6) as figure:
        time, device, host = figure.subplots(1, 3)
        device_unit = size_unit(float(frame["peak_bytes"].max()))
        host_unit = size_unit(max(float(frame["host_bytes"].max()), 1.0))
        for axes, column, (word, scale), what in (
            (time, "step_seconds", unit, "step"),
            (device, "peak_bytes", device_unit, "memory of the fullest device"),
            (host, "host_bytes", host_unit, "memory of each host"),
        ):
            for name, line in lines:
                _curve(axes, line, column, scale, name)
            axes.set_ylim(0, 1.2 * float(frame[column].max()) / scale or 1.0)
            axes.set_xlabel("blocks of a rank in host memory")
            axes.set_ylabel(f"{what} ({word})")
            ticks.linear(axes.xaxis)
            ticks.linear(axes.yaxis)
            style.quiet_axis(axes, grid="y")
        _limit(device, device_limit, device_unit[1], "right")
        if host_limit is not None:
            _limit(host, host_limit, host_unit[1], "left")
        style.name_in_corner(time, [(name, _COLOURS[name]) for name, _ in lines], 0.04, 0.97, step=0.07)
        style.put_title(figure, _finding(lines), f"{subject}; hollow: does not fit; star: the plan")
    return figure


def _curve(axes: Axes, line: Frame, column: str, scale: float, name: str) -> None:
    """A line through all points, filled where both memories suffice."""
    x, y, fits = line["blocks"], line[column] / scale, line["fits"]
    colour, width = _COLOURS[name], _WIDTHS[name]
    above = 3.0 - 0.2 * width  # the wider, the lower
    axes.plot(x, y, color=colour, linewidth=width, zorder=above)
    hollow = axes.scatter(x[~fits], y[~fits], s=9 * width, facecolors="white", edgecolors=colour)
    hollow.set(linewidths=1.0, zorder=above + 0.1)
    axes.scatter(x[fits], y[fits], s=10 * width, color=colour, linewidths=0, zorder=above + 0.1)
    own = line["chosen"]
    axes.scatter(x[own], y[own], s=150, marker="*", color=style.INK, zorder=4)


def _limit(axes: Axes, limit: float, scale: float, side: str) -> None:
    """The limit as a line, named in the corner where curves are not; or only a word where it is far above."""
    at, top = limit / scale, axes.get_ylim()[1]
    words, far = f"- -  limit {format_bytes(limit)}", at > _NEAR * top
    if far:
        words = f"limit {format_bytes(limit)}, far above"
    else:
        axes.set_ylim(0, max(top, 1.2 * at))
        axes.axhline(at, color=style.INK, linewidth=1.4, linestyle=(0, (5, 3)))
    where = 0.98 if side == "right" else 0.02
    axes.text(where, 0.985, words, transform=axes.transAxes, ha=side, va="top", weight="bold")


_SAID = {
    "states": "states of {} on the host",
    "parked": "states of {} parked on the host",
    "streamed": "{} streamed from the host",
}


def _finding(lines: list[tuple[str, Frame]]) -> str:
    """The fastest point that fits, and the one that leaves most of the device."""
    fitting = [(name, row) for name, line in lines for _, row in line[line["fits"]].iterrows()]
    if not fitting:
        return "However many blocks of one kind are in host memory, nothing fits"
    fastest = min(fitting, key=lambda one: float(one[1]["step_seconds"]))
    smallest = min(fitting, key=lambda one: float(one[1]["peak_bytes"]))
    first = _point(*fastest)
    said = first if smallest[1]["layout"] == fastest[1]["layout"] else f"{first}; {_point(*smallest)}"
    return said[0].upper() + said[1:]


def _point(name: str, row: Frame) -> str:
    """ "states of 50 blocks on the host: 4.04 s a step in 139.0 GiB"."""
    blocks = int(row["blocks"])
    what = _SAID[name].format(counted(blocks, "block")) if blocks else "all blocks on the device"
    return f"{what}: {format_seconds(float(row['step_seconds']))} in {format_bytes(float(row['peak_bytes']))}"
