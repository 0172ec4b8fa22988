"""The step of a sharding: every stage on every GPU, and which GPU the others wait for."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.stacks import legend
from meshwright.plots.parts.style import Frame
from meshwright.render.words import in_unit, percent, time_unit

STAGE_COLOURS = {
    "index exchange": style.SKY,
    "lookup": style.BLUE,
    "forward exchange": style.ORANGE,
    "dense network": style.GREY,
    "backward exchange": style.VERMILION,
    "update": style.PURPLE,
}
_BAR = 0.78
MOST_GPUS = 32
"""GPUs that have a bar each; of more those that stages wait for, and others in even steps."""
_SEEN = 0.002
"""Of the step: a shorter stage is not in the legend."""
_NAMED = 0.03
"""Least share of the step of a stage that is named above the bars."""


def stages(frame: Frame, subject: str) -> Figure:
    """A bar for each GPU along the step: dark where it is busy, pale where it waits for the stage to end.

    Args:
        frame: as `meshwright.records.shardings.stages_frame` has it.
        subject: which plan.
    """
    step = _step(frame)
    unit = time_unit(step)
    shown = shown_gpus(frame)
    with style.sheet(10.0, 2.0 + 0.26 * max(len(shown), 4)) as figure:
        axes = figure.add_subplot()
        for row, gpu in enumerate(shown):
            for _, one in frame[frame["gpu"] == gpu].iterrows():
                _bar(axes, row, one, unit[1])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, step / unit[1])
        axes.set_yticks(range(len(shown)), [f"GPU {gpu}" for gpu in shown])
        ticks.measure(axes, "x", f"time of one step ({unit[0]})")
        _edges(axes, frame, unit[1])
        present = [
            name
            for name in STAGE_COLOURS
            if frame[frame["stage"] == name]["stage_seconds"].max() > _SEEN * step
        ]
        waiting = Patch(facecolor=style.FAINT, label="waits")
        last = Patch(facecolor="white", edgecolor=style.INK, linewidth=1.4, label="ends the stage")
        legend(figure, present, STAGE_COLOURS, *([waiting, last] if frame["waits"].any() else [waiting]))
        left = len(set(frame["gpu"])) - len(shown)
        style.put_title(figure, _finding(frame), subject + (f"; {left} more GPUs not drawn" if left else ""))
    return figure


def shown_gpus(frame: Frame) -> list[int]:
    """GPUs that are drawn."""
    gpus = sorted(set(frame["gpu"]))
    if len(gpus) <= MOST_GPUS:
        return gpus
    last = set(frame[frame["waits"]]["gpu"])
    even = np.linspace(0, len(gpus) - 1, MOST_GPUS - len(last)).round().astype(int)
    return sorted(last | {gpus[at] for at in even.tolist()})


def _bar(axes: Axes, row: int, one: Frame, scale: float) -> None:
    """A stage of one GPU."""
    start, length, busy = (
        float(one[name]) / scale for name in ("start_seconds", "stage_seconds", "busy_seconds")
    )
    axes.barh(row, length, left=start, height=_BAR, color=style.FAINT, linewidth=0)
    axes.barh(row, busy, left=start, height=_BAR, color=STAGE_COLOURS[one["stage"]], linewidth=0)
    if one["waits"]:
        axes.barh(
            row,
            length,
            left=start,
            height=_BAR,
            facecolor="none",
            edgecolor=style.INK,
            linewidth=1.4,
            zorder=4,
        )


def _edges(axes: Axes, frame: Frame, scale: float) -> None:
    """A line where each stage ends, and above those with room how long it lasts."""
    step = _step(frame) / scale
    for _, one in frame[frame["gpu"] == frame["gpu"].min()].iterrows():
        start, length = float(one["start_seconds"]) / scale, float(one["stage_seconds"]) / scale
        axes.axvline(start + length, color="white", linewidth=1.0, zorder=3)
        if length >= _NAMED * step:
            axes.text(
                start + length / 2,
                1.005,
                f"{length:.2f}",
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="bottom",
                size=8,
                color=style.SOFT,
            )


def _step(frame: Frame) -> float:
    one = frame[frame["gpu"] == frame["gpu"].min()]
    return float(one["stage_seconds"].sum())


def _finding(frame: Frame) -> str:
    """The longest stage of the step, and the GPU that costs it most waiting."""
    step = _step(frame)
    unit = time_unit(step)
    of_stage = frame.groupby("stage", sort=False).agg(
        length=("stage_seconds", "first"), mean=("busy_seconds", "mean")
    )
    longest = of_stage["length"].idxmax()
    said = f"The {longest} takes {percent(float(of_stage['length'].max()) / step)} of the step"
    last = frame[frame["waits"]]
    if last.empty:
        return f"{said}; no GPU waits for another's tables"
    waited = last["stage_seconds"] - of_stage["mean"][last["stage"]].to_numpy()
    worst = last.loc[waited.idxmax()]
    length, mean = float(worst["stage_seconds"]), float(of_stage["mean"][worst["stage"]])
    return (
        f"{said}; GPUs wait most for GPU {worst['gpu']} in the {worst['stage']}:"
        f" {in_unit(length, unit)} {unit[0]}, {in_unit(mean, unit)} {unit[0]} on average"
    )
