"""What fills each GPU, and each host that holds tables, part by part, under their limits."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import format_bytes
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.stacks import legend, stack, visible
from meshwright.plots.parts.style import Frame
from meshwright.records.shardings import while_
from meshwright.render.words import part_label, percent, size_unit

PART_COLOURS = {
    "weights": style.BLUE,
    "optimizer": style.GREEN,
    "hash tables": style.SKY,
    "ids": style.BROWN,
    "vectors": style.ORANGE,
    "update": style.VERMILION,
    "dense states": style.OLIVE,
    "activations": style.YELLOW,
    "workspace": style.PALE,
    "communicators": style.GREY,
}
_WORDS = {"device": "GPU", "host": "host"}
_BAR = 0.78
_NUMBERS = 16
"""Bars of a panel that carry numbers."""
_TICKS = 24
_FAR = 3.0
"""A limit this many times as high as the highest bar is told and not drawn."""


def tiers(frame: Frame, subject: str) -> Figure:
    """A panel for each tier, a bar for each GPU or host.

    Args:
        frame: as `meshwright.records.shardings.tiers_frame` has it.
        subject: which plan.
    """
    panels = [(tier, own.reset_index(drop=True)) for tier, own in frame.groupby("tier", sort=False)]
    with style.sheet(9.6, 4.8) as figure:
        widths = [max(len(own), 2) ** 0.5 for _, own in panels]
        every = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0]
        for axes, (tier, own) in zip(every, panels, strict=True):
            _panel(axes, str(tier), own)
        seen = {part for _, own in panels for part in visible(own, PART_COLOURS)}
        legend(figure, [part for part in PART_COLOURS if part in seen], PART_COLOURS)
        style.put_title(figure, _finding(panels), subject)
    return figure


def _panel(axes: Axes, tier: str, own: Frame) -> None:
    parts = [part for part in PART_COLOURS if part in own and own[part].max() > 0]
    totals, limit = own[parts].sum(axis=1), float(own["limit_bytes"].iloc[0])
    near = limit <= _FAR * totals.max()
    unit, scale = size_unit(max(totals.max(), limit if near else 0.0))
    stack(axes, own[parts] / scale, PART_COLOURS, horizontal=False, width=_BAR, numbers=len(own) <= _NUMBERS)
    top = 1.16 * max(totals.max(), limit if near else 0.0) / scale
    axes.set_ylim(0, top)
    axes.set_xlim(-0.6, max(len(own) - 0.4, 1.0))
    step = -(-len(own) // _TICKS)
    axes.set_xticks(range(0, len(own), step), [str(place) for place in own["place"][::step]])
    if len(own) <= _NUMBERS:
        for place, total in enumerate(totals):
            axes.text(place, total / scale + 0.01 * top, f"{total / scale:.1f}", ha="center", weight="bold")
    if near:
        axes.axhline(limit / scale, color=style.INK, linewidth=1.4, linestyle=(0, (5, 3)))
    words = f"limit {format_bytes(limit)}" if limit == limit else "limit unknown"
    axes.text(
        0.99,
        limit / scale / top + 0.01 if near else 0.97,
        words if near or limit != limit else f"{words}, far above ↑",
        transform=axes.transAxes,
        ha="right",
        va="bottom" if near else "top",
        weight="bold",
    )
    axes.set_xlabel(_WORDS[tier])
    ticks.measure(axes, "y", f"memory of each {_WORDS[tier]} ({unit})")


def _finding(panels: list[tuple[object, Frame]]) -> str:
    """The fullest GPU, and the fullest host where tables lie there."""
    said = []
    for tier, own in panels:
        parts = [part for part in PART_COLOURS if part in own]
        totals = own[parts].sum(axis=1)
        at, limit = int(totals.argmax()), float(own["limit_bytes"].iloc[0])
        largest = max(parts, key=lambda part: float(own[part].iloc[at]))
        full = f"{percent(float(totals.iloc[at]) / limit)} full" if limit == limit else "the fullest"
        size = format_bytes(float(own[largest].iloc[at]))
        share = f"{part_label(largest)} {size}"
        when = while_(str(own["moment"].iloc[at]))
        said.append(f"{_WORDS[str(tier)]} {own['place'].iloc[at]} is {full}{when}, most of it {share}")
    return "; ".join(said)
