"""The passes of one step as they ran, above those that were planned, on one axis of time."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cost_models.units import format_seconds
from meshwright.plots.parts import style
from meshwright.plots.parts.lanes import Rows
from meshwright.plots.parts.style import Frame
from meshwright.plots.timeline import PASSES, Window, chart_points, draw, legend
from meshwright.render.words import percent, time_unit

_MOST_TOLD = 0.02
"""Share by which passes of a stage may take longer than planned without a word."""


def timelines(measured: Frame, planned: Frame, ranks: int, subject: str) -> Figure:
    """Measured passes above planned ones, of every place of the pipeline.

    Args:
        measured: a row per pass with `rank` (its place in the pipeline), `kind`, `chunk`, `microbatch`,
            `start_seconds`, `end_seconds`.
        planned: the same of the plan, and what follows the passes.
        ranks: places of the pipeline.
        subject: which plan and which run.
    """
    end = max(float(frame["end_seconds"].max()) for frame in (measured, planned))
    unit, rows, whole = time_unit(end), Rows(ranks), Window("", 0.0, end)
    height = max(0.6, min(3.5, 0.42 * ranks))
    with style.sheet(12.0, 2.8 + 2 * height) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        both = ((above, measured, "measured, until the last pass"), (below, planned, "planned, the step"))
        for axes, frame, words in both:
            draw(axes, frame, rows, whole, unit, points=chart_points(1.0) if ranks <= 16 else 0.0)
            seconds = float(frame["end_seconds"].max())
            axes.set_title(f"{words}: {format_seconds(seconds)}", loc="left", size=9)
            axes.set_ylabel("pipeline rank")
            axes.axvline(seconds / unit[1], color=style.INK, linewidth=0.8)
        above.set_xlabel("")
        kinds = {*measured["kind"], *planned["kind"]}
        idle: list[Patch] = []
        legend(figure, kinds, int(planned["chunk"].max()) + 1, idle, idle=ranks > 1)
        style.put_title(figure, _finding(measured, planned, ranks), subject)
    return figure


def _finding(measured: Frame, planned: Frame, ranks: int) -> str:
    """Which place computes longest beside its plan, and how long the passes take in all."""
    busy = []
    for frame in (measured, planned):
        passes = frame[frame["kind"].isin(list(PASSES))]
        lengths = (passes["end_seconds"] - passes["start_seconds"]).groupby(passes["rank"]).sum()
        busy.append((lengths, float(passes["end_seconds"].max() - passes["start_seconds"].min())))
    (took, whole), (meant, expected) = busy
    words = f"Passes take {format_seconds(whole)}, {format_seconds(expected)} were planned"
    longer = took / meant
    worst = longer.idxmax()
    beside = float(longer[worst] / longer.drop(worst).median() - 1) if ranks > 1 else 0.0
    if beside > _MOST_TOLD:
        words += f"; beside the others pipeline rank {worst} computes {percent(beside)} longer than planned"
    return words
