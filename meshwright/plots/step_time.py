"""Where the time of a step goes, layout by layout, with the communication that compute hides below each bar."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cost_models.pipeline.seconds import HIDDEN_PARTS
from cost_models.units import format_seconds
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.stacks import legend, stack, visible
from meshwright.plots.parts.style import Frame
from meshwright.plots.parts.text import brief_layout, short_layout
from meshwright.render.words import change, lines_of, part_label, percent, time_unit

_BAR, _STRIP = 0.56, 0.15
"""Heights, in rows: of a bar, and of the strip under it for what is hidden."""
_HATCH = "//////"
_LONGEST_NAME = 60
"""Characters of a layout in the title; of a longer one its degrees."""
_LEAST_SHARE = 0.002
"""Of the axis: less hidden communication is not drawn."""


def time_breakdown(frame: Frame, subject: str) -> Figure:
    """One horizontal bar per layout, its parts in seconds per step; hatched below it what runs behind compute.

    Args:
        frame: a row per layout in the order to draw; `layout`, one column of seconds per part, and `tp_hidden`,
            `cp_hidden`, `ep_hidden`, `dp_hidden` with the seconds of communication that the step does not wait for;
            where rows answer different questions, `name` says which.
        subject: what was priced.
    """
    parts = [part for part in style.TIME_COLOURS if part in frame and frame[part].max() > 0]
    totals = frame[parts].sum(axis=1)
    unit, scale = time_unit(totals.max())
    with style.sheet(9.4, 1.9 + 0.68 * len(frame)) as figure:
        axes = figure.add_subplot()
        stack(axes, frame[parts] / scale, style.TIME_COLOURS, horizontal=True, width=_BAR)
        reach = totals.max() / scale
        axes.set_xlim(0, 1.24 * reach)
        hidden = _hidden(axes, frame, scale)
        for row, total in enumerate(totals):
            slower = "" if total == totals.min() or "name" in frame else change(totals.min(), total)
            said = format_seconds(total)
            axes.text(total / scale + 0.01 * reach, row, said, va="center", weight="bold")
            axes.text(
                1.0,
                row,
                slower,
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="center",
                color=style.SOFT,
            )
        axes.set_yticks(range(len(frame)), _names(frame))
        axes.set_ylim(len(frame) - 0.4, -0.5)
        ticks.measure(axes, "x", f"time of one step ({unit})")
        more = [Patch(facecolor="white", edgecolor=style.INK, hatch=_HATCH, label="overlapped with compute")]
        legend(figure, visible(frame, style.TIME_COLOURS), style.TIME_COLOURS, *more[: len(hidden)])
        style.put_title(figure, _finding(frame, parts, totals), subject)
    return figure


def _hidden(axes: Axes, frame: Frame, scale: float) -> list[str]:
    """A hatched strip of what each layout hides, in the colours of the axes it is of; says which there are."""
    shown = [part for part in HIDDEN_PARTS if part in frame and frame[part].max() > 0]
    for row, (_, layout) in enumerate(frame.iterrows()):
        start = 0.0
        for part in shown:
            value = layout[part] / scale
            if value < _LEAST_SHARE * axes.get_xlim()[1]:
                continue
            axes.barh(
                row + (_BAR + _STRIP) / 2,
                value,
                left=start,
                height=_STRIP,
                facecolor="white",
                edgecolor=style.TIME_COLOURS[HIDDEN_PARTS[part]],
                linewidth=0.6,
                hatch=_HATCH,
            )
            start += value
    return shown


def _names(frame: Frame) -> list[str]:
    names = frame["name"] if "name" in frame else [""] * len(frame)
    return [
        "\n".join([*lines_of(name, 40), short_layout(layout, 36)]) if name else short_layout(layout, 36)
        for name, layout in zip(names, frame["layout"], strict=True)
    ]


def _finding(frame: Frame, parts: list[str], totals: Frame) -> str:
    if "name" in frame:
        shares = frame["compute"] / totals
        return f"Compute is {percent(shares.min())} to {percent(shares.max())} of the step"
    losses = [part for part in parts if part != "compute"]
    best = totals.idxmin()
    layout = str(frame.loc[best, "layout"])
    whole = short_layout(layout, 200)
    name = whole if len(whole) <= _LONGEST_NAME else brief_layout(layout, 200)
    if not losses:
        return f"{name}: all of the step is compute"
    worst = max(losses, key=lambda part: float(frame.loc[best, part]))
    share = float(frame.loc[best, worst]) / totals[best]
    return (
        f"{name} takes {format_seconds(totals[best])} and loses most to {part_label(worst)}: {percent(share)}"
    )
