"""`plot`: pictures of plans, of what they were chosen from, and of run reports."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.documents import printable
from cost_models.errors import WARNING, UnknownNameError
from cost_models.flags import argument, flag, part_of
from meshwright.inputs.options import Failures, tokens_flag
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from meshwright.terminal.output import Output
    from meshwright.verbs.plot.drawing import Plotted
    from planner.search.search import Budget

PLOTS = (
    "frontier",
    "scaling",
    "time",
    "memory",
    "sharding",
    "timeline",
    "window",
    "far-links",
    "ladder",
    "heatmap",
    "tornado",
    "forecast",
    "cache",
    "topology",
    "accuracy",
    "ranks",
)
"""Kinds of picture of `meshwright plot`."""
CURVE_SECONDS = 120.0
"""Time limit of all searches of a curve, unless the user says otherwise."""


@dataclass(frozen=True, kw_only=True)
class PlotOptions(Failures):
    """Options of the curves that are searched for; `forecast` counts failures."""

    gpus: str | None = flag("N,N,...", "Numbers of GPUs; also 64..1024, 64..16384x50.")
    """Numbers of GPUs, for `scaling` and `frontier`; one for `topology`."""
    between: str | None = flag("A,B", "frontier: two objectives, e.g. time,memory.")
    points: str | None = flag("N", "frontier: number of points, or all.")
    kind: str | None = flag("KIND", "scaling: strong, weak or stacked.")
    tokens: str | float | None = tokens_flag()
    price: str | None = flag("MONEY", "Price of one GPU-hour.", panel="objective")
    allow: tuple[str, ...] = flag(
        "WORD", "ladder: parallel-block, window=N, batch=N.", kind=list[str], default=()
    )
    """For `ladder`: what may change of the training."""
    time_limit: float | None = flag(
        "SECONDS", "Time limit of all searches; default 120.", kind=float, minimum=0.001
    )


def plot(
    kind: str, *files: str | Path, options: PlotOptions | None = None, budget: Budget | None = None
) -> Plotted:
    """Draw one kind of plot of plan files; of run reports or tables `accuracy`, of one report `ranks`, of a cluster and
    its plan `topology`.

    Raises:
        InputError: a file, an option or a list of GPUs that is wrong.
        UnknownNameError: there is no such kind.
    """
    from meshwright.verbs.plot.drawing import draw_kind

    return draw_kind(kind, files, options or PlotOptions(), budget)


def _check_kind(kind: str) -> str:
    """The kind, where there is such a plot; told before anything else is."""
    if kind not in PLOTS:
        raise UnknownNameError("plot", printable(kind), PLOTS)
    return kind


@dataclass(frozen=True, kw_only=True)
class PlotFlags(PlotOptions):
    """Options of `meshwright plot`."""

    drawn: str = field(
        metadata=argument("KIND", f"What to draw: {', '.join(PLOTS)}.", check=_check_kind, completion="plots")
    )
    files: tuple[Path, ...] = field(
        metadata=argument(
            "FILE...",
            "Plan file; time: several plans; accuracy, ranks: run reports; topology: CLUSTER [PLAN].",
            kind=list[Path],
            completion="plans",
        )
    )


@command(PlotFlags, name="plot", out="Default KIND.png; .svg, .pdf.")
def plot_command(options: PlotFlags, output: Output) -> None:
    """Draw a curve or a breakdown."""
    from meshwright.plots.style import check_suffix
    from meshwright.terminal.output import say
    from meshwright.terminal.progress import searching
    from meshwright.verbs.plot.drawing import check_options, draw_kind, require_kind

    kind, plot_options = options.drawn, part_of(options, PlotOptions)
    require_kind(kind)
    check_options(kind, plot_options)
    path = output.out or Path(f"{kind}.png")
    check_suffix(path)
    output.check_places(path)
    with searching(output, options.time_limit or CURVE_SECONDS) as budget:
        answer = draw_kind(kind, options.files, plot_options, budget)
    output.show(replace(answer, file=path), files=[lambda: answer.drawing.save(path)])
    if not output.json:
        say(f"Wrote {path}")
    output.remark(answer.notes)
    if budget.interrupted:
        output.end_interrupted("not every point was searched")
    if budget.ended:
        output.note(f"{WARNING}time ran out before every point was searched; allow more with --time-limit")
