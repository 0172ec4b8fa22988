"""`plot`: pictures of plans, of what they were chosen from, and of run reports."""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.documents import printable
from cost_models.errors import WARNING, InputError, Problem, UnknownNameError
from cost_models.flags import argument, part_of
from meshwright.plots.drawing import PlotOptions
from meshwright.verbs.contract import command, option_word

if TYPE_CHECKING:
    from meshwright.terminal.output import Output
    from meshwright.verbs.plot.drawing import Plotted
    from planner.search.search import Budget

PLOTS = {
    "frontier": ("gpus", "between", "points", "tokens", "price", "time_limit"),
    "scaling": ("gpus", "kind", "time_limit"),
    "time": (),
    "memory": (),
    "sharding": (),
    "timeline": (),
    "window": (),
    "far-links": ("time_limit",),
    "ladder": ("allow",),
    "heatmap": ("time_limit",),
    "tornado": ("time_limit",),
    "forecast": ("tokens", "operations"),
    "cache": (),
    "topology": ("gpus",),
    "accuracy": (),
    "ranks": (),
}
"""Kinds of picture of `meshwright plot`, each with the options that mean something to it."""
CURVE_SECONDS = 120.0
"""Time limit of all searches of a curve, unless the user says otherwise."""


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

    options = options or PlotOptions()
    check_options(kind, options)
    return draw_kind(kind, files, options, budget)


def _check_kind(kind: str) -> str:
    """The kind, where there is such a plot; told before anything else is."""
    if kind not in PLOTS:
        raise UnknownNameError("plot", printable(kind), tuple(PLOTS), hint=f"there are {', '.join(PLOTS)}")
    return kind


def check_options(kind: str, options: PlotOptions) -> None:
    """Raises InputError where an option means nothing to this kind of plot, UnknownNameError where there is none."""
    from meshwright.render.words import sentence_list

    own, problems = PLOTS[_check_kind(kind)], []
    for name in dict.fromkeys(name for names in PLOTS.values() for name in names):
        if getattr(options, name) not in (None, ()) and name not in own:
            kinds = sentence_list([f"`{one}`" for one, names in PLOTS.items() if name in names])
            problems.append(Problem(option_word(name), f"is for {kinds}, not `{kind}`"))
    if problems:
        raise InputError(f"`{kind}` takes fewer flags", problems=problems)


class PlotFlags(PlotOptions, kw_only=True):
    """Options of `meshwright plot`."""

    drawn: str = field(
        metadata=argument("KIND", f"What to draw: {', '.join(PLOTS)}.", check=_check_kind, completion="plots")
    )
    files: tuple[Path, ...] = field(metadata=argument("FILE...", kind=list[Path], completion="plans"))
    """Plan file; time: several plans; accuracy, ranks: run reports; topology: CLUSTER [PLAN]."""


@command(PlotFlags, out="Default KIND.png; .svg, .pdf.")
def plot_command(options: PlotFlags, output: Output) -> None:
    """Draw a curve or a breakdown."""
    from meshwright.plots.style import check_suffix
    from meshwright.terminal.output import say
    from meshwright.terminal.progress import searching
    from meshwright.verbs.plot.drawing import draw_kind

    kind, plot_options = options.drawn, part_of(options, PlotOptions)
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
