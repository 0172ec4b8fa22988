"""`plot`: draw pictures of plans, of the layouts they were chosen from, and of run reports."""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.documents import printable
from cost_models.errors import WARNING, InputError, Problem, UnknownNameError
from cost_models.flags import argument, part_of
from meshwright.inputs.problems import refuse
from meshwright.plots.drawing import PICTURES, Drawing, PictureRequest, PlotOptions, picture
from meshwright.terminal.answers import Answer
from meshwright.verbs.contract import command, option_word, verbs_of_plan
from meshwright.verbs.forecast import forecast

if TYPE_CHECKING:
    from meshwright.terminal.output import Output
    from planner.search.search import Budget

PLOTS = (
    *("frontier", "scaling", "time", "memory", "sharding", "timeline", "window", "far-links", "ladder"),
    *("heatmap", "tornado", "forecast", "cache", "topology", "accuracy", "ranks"),
)
"""Kinds of pictures that `meshwright plot` draws."""
_KINDS_OF_OPTION = {
    "gpus": ("frontier", "scaling", "topology"),
    "between": ("frontier",),
    "points": ("frontier",),
    "tokens": ("frontier", "forecast"),
    "price": ("frontier",),
    "time_limit": ("frontier", "scaling", "far-links", "heatmap", "tornado"),
    "kind": ("scaling",),
    "allow": ("ladder",),
    "operations": ("forecast",),
}
"""Option → kinds of pictures that it applies to."""
CURVE_SECONDS = 120.0
"""Default time limit in seconds of all searches of a picture."""


def plot(
    kind: str, *files: str | Path, options: PlotOptions | None = None, budget: Budget | None = None
) -> Plotted:
    """Draw one kind of picture from plan files; `accuracy` draws run reports or tables, `ranks` a run report,
    `topology` a cluster and its plan.

    Raises:
        InputError: a file, an option or a list of GPUs that is wrong.
        UnknownNameError: there is no such kind.
    """
    from meshwright.plots import pictures  # registers them
    from meshwright.render.words import sentence_list
    from planner.plan import load_any_plan
    from planner.search.search import Budget

    assert pictures
    options = options or PlotOptions()
    check_options(kind, options)
    spending = budget or Budget(time_limit=options.time_limit or CURVE_SECONDS, keep_on_interrupt=True)
    spending.proof = "bounds"
    request = PictureRequest(files=tuple(map(Path, files)), options=options, budget=spending)
    draw = PICTURES[Path].get(kind)
    if draw is None or (kind == "timeline" and len(files) != 2):  # families draw it of their plans
        plans = [load_any_plan(path) for path in request.files]
        for plan in plans:
            request.note(verbs_of_plan(plan).notes(plan))
        request, verbs = replace(request, plans=plans), verbs_of_plan(plans[0])
        if kind not in verbs.pictures:
            hint = f"{sentence_list(sorted(verbs.pictures))} are"
            raise InputError(f"`{kind}` is not drawn of {verbs.noun}", hint=hint)
        draw = verbs.pictures[kind]
    return Plotted(kind=kind, drawing=draw(request), notes=tuple(request.notes))


@picture("forecast", Path)
def _forecast(request: PictureRequest) -> Drawing:
    """Draw days until a plan's training job ends against the checkpoint interval, and goodput against GPUs."""
    from meshwright.plots.pictures import plan_in

    plan, options = plan_in(request, request.file("forecast", "plan")), request.options
    return forecast(plan, options.tokens, operations=options.operations).plot()


def _check_kind(kind: str) -> str:
    """Check the kind of picture, before any other problem is reported. Raises UnknownNameError."""
    if kind not in PLOTS:
        raise UnknownNameError("plot", printable(kind), PLOTS, hint=f"there are {', '.join(PLOTS)}")
    return kind


def check_options(kind: str, options: PlotOptions) -> None:
    """Raise InputError if an option does not apply to a kind of picture, UnknownNameError for an unknown kind."""
    from meshwright.render.words import sentence_list

    _check_kind(kind)
    problems = [
        Problem(option_word(name), f"is for {sentence_list([f'`{one}`' for one in kinds])}, not `{kind}`")
        for name, kinds in _KINDS_OF_OPTION.items()
        if kind not in kinds and getattr(options, name) not in (None, ())
    ]
    refuse(f"`{kind}` takes fewer flags", problems)


class PlotFlags(PlotOptions, kw_only=True):
    """Options of `meshwright plot`: kind of picture, files, and options of the curve."""

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

    kind, plot_options = options.drawn, part_of(options, PlotOptions)
    check_options(kind, plot_options)
    path = output.out or Path(f"{kind}.png")
    check_suffix(path)
    output.check_places(path)
    with searching(output, options.time_limit or CURVE_SECONDS) as budget:
        answer = plot(kind, *options.files, options=plot_options, budget=budget)
    output.show(replace(answer, file=path), files=[lambda: answer.drawing.save(path)])
    if not output.json:
        say(f"Wrote {path}")
    output.remark(answer.notes)
    if budget.interrupted:
        output.end_interrupted("not every point was searched")
    if budget.ended:
        output.note(f"{WARNING}time ran out before every point was searched; allow more with --time-limit")


class Plotted(Answer):
    """Answer of `plot`: a picture with its data."""

    kind: str
    drawing: Drawing
    notes: tuple[str, ...] = ()
    """Notes on effects that the picture leaves out."""
    file: Path | None = None
    """File to which the picture is written."""

    def csv_rows(self) -> list[dict[str, Any]]:
        """Rows of the picture's data, in base units."""
        return self.drawing.points

    def document(self) -> dict[str, Any]:
        """JSON document: kind, file, title, notes and data."""
        plot = {"plot": self.kind, "file": self.file and str(self.file), "title": self.drawing.title}
        return plot | {"notes": list(self.notes), "points": self.rows}

    def view(self) -> tuple[str, ...]:
        """Text that `meshwright plot` prints."""
        from meshwright.render.words import wrapped

        table = self.drawing.table
        return (wrapped(self.drawing.title), *(("", table) if table else ()))

    def __repr__(self) -> str:
        """Title of the picture."""
        return self.drawing.title
