"""The ladder: what each technique adds to the MFU of a plan, the one that saves most first."""

from __future__ import annotations

from matplotlib.figure import Figure

from cost_models.units import format_seconds
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.style import Frame
from meshwright.render.words import percent

_COLOURS = {"base": style.GREY, "trainer": style.BLUE, "mathematics": style.VERMILION}
_SAID = {"trainer": "what trainers do", "mathematics": "what changes the training"}


def ladder(frame: Frame, subject: str) -> Figure:
    """A bar per rung from the bare trainer down the page; pale: what the plan lacks.

    Args:
        frame: a row per rung with `name`, `kind`, `has`, `mfu`, `adds`, `step_seconds`, `fits`.
        subject: what was priced.
    """
    count = len(frame)
    with style.sheet(9.6, 1.5 + 0.42 * count) as figure:
        axes = figure.subplots()
        before = 0.0
        for at, row in enumerate(frame.to_dict(orient="records")):
            mfu, colour = 100 * float(row["mfu"]), _COLOURS[str(row["kind"])]
            axes.barh(at, min(mfu, before) if at else mfu, color=style.FAINT if at else colour, height=0.62)
            if at:
                left, wide = min(mfu, before), abs(mfu - before)
                alpha = 1.0 if row["has"] else 0.45
                axes.barh(at, max(wide, 0.12), left=left, color=colour, alpha=alpha, height=0.62)
            added = f"  {100 * float(row['adds']):+.1f}" if at else ""
            fits = "" if row["fits"] else ", does not fit"
            words = f"{mfu:.1f} %{added}   {format_seconds(float(row['step_seconds']))}{fits}"
            axes.text(max(mfu, before) + 0.6, at, words, va="center", size=8.5)
            before = mfu
        axes.set_yticks(range(count), [str(name) for name in frame["name"]])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.3 * 100 * float(frame["mfu"].max()))
        ticks.measure(axes, "x", "MFU (%), and seconds for a batch of the plan's size")
        kinds = [(_SAID[kind], _COLOURS[kind]) for kind in _SAID if (frame["kind"] == kind).any()]
        style.name_in_corner(axes, kinds, 0.99, 0.97, step=0.07, side="right")
        pale = "; pale: what the plan lacks" if not frame["has"].all() else ""
        style.put_title(figure, finding(frame), f"{subject}{pale}")
    return figure


def finding(frame: Frame) -> str:
    """ "From 38.2 % to 58.7 % MFU; tensor-parallel overlap saves most"."""
    first, last = float(frame["mfu"].iloc[0]), float(frame["mfu"].iloc[-1])
    said = f"From {percent(first)} to {percent(last)} MFU"
    return f"{said}; most by {frame['name'].iloc[1]}" if len(frame) > 1 else said
