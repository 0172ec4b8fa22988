"""Scaling of a recommender: samples a second over GPUs, and what the step of each number of them consists of."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cost_models.units import counted, format_count, grouped
from meshwright.plots.curves.scaling import draw_speed
from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.stacks import legend
from meshwright.plots.parts.style import Frame
from meshwright.plots.parts.text import unproven
from meshwright.plots.shardings.stages import STAGE_COLOURS
from meshwright.render.words import in_unit, percent, time_unit

_WORDS = {"strong": "same batch", "weak": "batch growing with them"}
_BAR = 0.72
_SEEN = 0.002
"""Of the longest step: a shorter stage is not in the legend."""


def sharding_scaling(frame: Frame, subject: str) -> Figure:
    """Throughput of the best sharding at each number of GPUs; beside it the stages of its step.

    Args:
        frame: as `planner.recommender.search.sharding_scaling_frame` has it.
        subject: what was priced.
    """
    kinds = [(str(kind), points.sort_values("gpus")) for kind, points in frame.groupby("kind", sort=True)]
    longest = float(frame["step_seconds"].max())
    with style.sheet(11.2, 5.2) as figure:
        speed, *steps = figure.subplots(1, 1 + len(kinds), width_ratios=(3, *(2 for _ in kinds)))
        draw_speed(speed, frame, kinds, "samples")
        for axes, (kind, line) in zip(steps, kinds, strict=True):
            _steps(axes, kind, line, longest)
        shown = [name for name in STAGE_COLOURS if frame[name].max() > _SEEN * longest]
        legend(figure, shown, STAGE_COLOURS)
        style.put_title(figure, _finding(kinds), f"{subject}{unproven(frame)}")
    return figure


def _steps(axes: Axes, kind: str, line: Frame, longest: float) -> None:
    """A bar for each number of GPUs: the stages of its step, one on top of the other."""
    unit, scale = time_unit(longest)
    places = range(len(line))
    bottom = 0.0 * line["step_seconds"]
    for name, colour in STAGE_COLOURS.items():
        seconds = line[name] / scale
        axes.bar(places, seconds, bottom=bottom, width=_BAR, color=colour, linewidth=0)
        bottom = bottom + seconds
    for at, step in zip(places, line["step_seconds"], strict=True):
        words = in_unit(float(step), (unit, scale))
        axes.text(at, step / scale, words, ha="center", va="bottom", size=7.5, color=style.SOFT)
    axes.set_xticks(places, [grouped(int(gpus)) for gpus in line["gpus"]])
    axes.set_ylim(0, 1.08 * longest / scale)
    axes.set_xlabel("GPUs")
    ticks.measure(axes, "y", f"step, {_WORDS[kind]} ({unit})")


def _finding(kinds: list[tuple[str, Frame]]) -> str:
    """Speed at the last point over that at the first, and which stage takes most there."""
    kind, line = next(((kind, line) for kind, line in kinds if len(line) > 1), kinds[0])
    first, last = line.iloc[0], line.iloc[-1]
    share = percent(float(last[last["longest"]]) / float(last["step_seconds"]))
    binds = f"the {last['longest']} takes {share} of the step"
    if len(line) < 2:
        speed = format_count(first["samples_per_second"])
        return f"{counted(int(first['gpus']), 'GPU')}, the only number with an answer: {speed} samples/s; {binds}"
    gain, more = last["samples_per_second"] / first["samples_per_second"], last["gpus"] / first["gpus"]
    return (
        f"{grouped(int(first['gpus']))} to {grouped(int(last['gpus']))} GPUs, {_WORDS[kind]}: {gain:.1f} x the speed,"
        f" {percent(gain / more)} of ideal; on {grouped(int(last['gpus']))} {binds}"
    )
