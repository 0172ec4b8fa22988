"""The tornado: how far the step moves with a quarter more or less of each thing, the plan held and planned again."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from cost_models.units import format_seconds
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.style import Frame
from meshwright.render.words import change, percent, time_unit

_MORE, _LESS = style.BLUE, style.ORANGE
_TALL = 0.34
_WORTH = 5e-3
"""Gain of another layout from which it is told."""


def tornado(frame: Frame, subject: str) -> Figure:
    """Two bars for each quantity from the plan's step on; a diamond is the best plan then.

    Args:
        frame: a row for each quantity and factor with `quantity`, `factor`, `held_seconds`, `held_fits`,
            `step_seconds`, `plan_seconds`, the quantities in their order.
        subject: what was priced.
    """
    names = list(dict.fromkeys(str(one) for one in frame["quantity"]))
    own = float(frame["plan_seconds"].iloc[0])
    unit, scale = time_unit(own)
    with style.sheet(9.6, 2.1 + 0.72 * len(names)) as figure:
        axes = figure.subplots()
        for row in frame.to_dict(orient="records"):
            more = float(row["factor"]) > 1
            at = names.index(str(row["quantity"])) + (-_TALL / 2 if more else _TALL / 2)
            colour = _MORE if more else _LESS
            held, best = float(row["held_seconds"]) / scale, float(row["step_seconds"]) / scale
            fits = bool(row["held_fits"])
            if fits:
                axes.barh(at, held - own / scale, left=own / scale, height=_TALL, color=colour)
            if best == best:
                axes.plot([best], [at], marker="D", markersize=5, color=style.INK, markerfacecolor="white")
            _note(axes, at, own / scale, held if fits else None, best, own, scale)
        axes.axvline(own / scale, color=style.INK, linewidth=1.2)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.margins(x=0.3)
        ticks.measure(axes, "x", f"step ({unit})")
        low, high = sorted(float(one) for one in frame["factor"].unique())
        diamond = Line2D([], [], marker="D", color="none", markeredgecolor=style.INK, markerfacecolor="white")
        axes.legend(
            [Patch(color=_MORE), Patch(color=_LESS), diamond],
            [f"{percent(high - 1, '+.0%')} of it", f"{percent(low - 1, '+.0%')} of it", "re-planned"],
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=3,
            fontsize=8,
        )
        style.put_title(figure, finding(frame), f"{subject}; line: its step, {format_seconds(own)}")
    return figure


def finding(frame: Frame) -> str:
    """ "Compute efficiency moves the step most: 25 % less of it adds 29.1 %; ..."."""
    own = float(frame["plan_seconds"].iloc[0])
    fitting = frame[frame["held_fits"]]
    if fitting.empty:
        return "Nothing that could change leaves room for the plan"
    most = fitting.loc[(fitting["held_seconds"] - own).abs().idxmax()]
    name = str(most["quantity"])
    moved = f"{_share(most)} of it {_effect(own, float(most['held_seconds']))}"
    said = f"{name[:1].upper()}{name[1:]} moves the step most: {moved}"
    anew = frame[(frame["step_seconds"] < (1 - _WORTH) * frame["held_seconds"]) | ~frame["held_fits"]]
    anew = anew[anew["step_seconds"] < (1 - _WORTH) * own]
    if anew.empty:
        return said
    best = anew.loc[anew["step_seconds"].idxmin()]
    effect = _effect(own, float(best["step_seconds"]))
    return f"{said}; {_share(best)} {best['quantity']} {effect} with another layout"


def _share(row: Frame) -> str:
    """ "25 % less"."""
    factor = float(row["factor"])
    return percent(abs(factor - 1), ".0%") + (" more" if factor > 1 else " less")


def _effect(own: float, then: float) -> str:
    """ "adds 29.1 %"."""
    moved = then / own - 1
    return f"{'adds' if moved > 0 else 'saves'} {percent(abs(moved))}"


def _note(
    axes: Axes, at: float, own: float, held: float | None, best: float, plan: float, scale: float
) -> None:
    """The change beside the bar's end, or that the plan does not fit then."""
    ends = [one for one in (held, best) if one is not None and one == one]
    if held is None:
        words = "does not fit" if best != best else f"does not fit; re-planned {change(plan, best * scale)}"
    else:
        words = change(plan, held * scale)
        if best == best and abs(best - held) > 5e-4 * own:
            words += f", re-planned {change(plan, best * scale)}"
    end = max(ends, key=lambda one: abs(one - own), default=own)
    right = end >= own
    side, shift = ("left", 6) if right else ("right", -6)
    style.beside(axes, words, (end, at), (shift, 0), ha=side, va="center", size=8)
