"""`report`: write a plan with its proof, reasons, pictures, forecast and run as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InfeasibleError, InputError, MeshwrightError
from cost_models.flags import argument, as_keywords, flag, given_flags, part_of, plan_file
from meshwright.inputs.options import Ending, tokens_flag
from meshwright.plots.drawing import PictureRequest, PlotOptions
from meshwright.terminal.answers import SavedAnswer
from meshwright.verbs.contract import command, read_plan
from meshwright.verbs.forecast import ForecastOptions

if TYPE_CHECKING:
    from executor.measure.report import AnyReport
    from meshwright.inputs.plans import HasPlan
    from meshwright.pages.chapters import Chapter
    from meshwright.plots.drawing import Draw
    from meshwright.render.words import Fact
    from meshwright.terminal.output import Output
    from planner.plan import AnyPlan
    from planner.search.search import Budget

PAGE_SECONDS = 60.0
"""Default time limit in seconds of all searches for a page."""
USUAL_NAME = "plan.yaml"
_POINTS = "8"
"""Number of points of a frontier on a page; each point is a search."""


class ReportOptions(Ending):
    """Options of `report`: the plan, a run report, and tokens, price and start date of the training job."""

    plan: AnyPlan | HasPlan | str | Path = field(metadata=plan_file())
    """Plan file written by `meshwright plan -o`."""
    run: str | Path | None = field(default=None, metadata=argument("[REPORT]", kind=Path))
    """Of a run of the plan: run-report.json.

    Set beside what was predicted.
    """
    _: KW_ONLY
    tokens: str | float | None = tokens_flag()
    budget: Budget | None = None
    """Limits of the searches for rivals and frontiers."""


@as_keywords(ReportOptions)
def report(options: ReportOptions) -> Reported:
    """Write a plan as one HTML page that needs no other file, no script and no network.

    With `tokens` (or those of the plan), the page also says when training ends; with `start` that is a date, and with
    the `price` of a GPU-hour it has a cost.

    Raises:
        InputError: a file or an option that is wrong; the run is of another plan.
    """
    from meshwright.pages.chapters import Chapter, Listing
    from meshwright.pages.html import page
    from meshwright.render.words import lines_of_any_length
    from planner.plan import package_version, plan_text
    from planner.search.search import Budget

    plan = options.plan
    loaded, verbs = read_plan(plan, "report", given_flags(options))
    measured = None if options.run is None else _report_of(loaded, Path(options.run))
    name = str(plan) if isinstance(plan, (str, Path)) else USUAL_NAME
    budget = options.budget or Budget(time_limit=PAGE_SECONDS, keep_on_interrupt=True)
    request = PageRequest(name=name, budget=budget)
    with lines_of_any_length():
        end = [*_end(loaded, options, request)]  # first, as it may be asked wrongly
        answer, *appendix = verbs.chapters(loaded, request)
        chapters = [answer, *end, *appendix]
        if measured is not None:
            compared = verbs.ran(measured).text
            chapters.append(Chapter(title="Predicted beside measured", blocks=[*compared]))
        title = f"{verbs.about(loaded)}: a plan"
    if notes := list(dict.fromkeys(request.notes)):
        chapters.append(Chapter(title="What it passes over", blocks=notes))
    chapters.append(Chapter(title="The plan itself", blocks=[Listing(text=plan_text(loaded))]))
    return Reported(
        title=title,
        chapters=tuple(one.title for one in chapters),
        html=page(title, chapters, foot=f"Written by Meshwright {package_version()}."),
        figures={**verbs.figures(loaded), **request.forecast},
        notes=tuple(notes),
    )


class ReportFlags(ReportOptions, kw_only=True):
    """Options of `meshwright report`: plan, run report, training job, and time limit of the searches."""

    time_limit: float | None = flag("SECONDS", minimum=0.001)
    """Time limit of all searches; default 60."""


@command(ReportFlags, shows=("json", "quiet"), out="Default: the plan's name with .html.")
def report_command(options: ReportFlags, output: Output) -> None:
    """Write a plan as one HTML page: answer, proof, why, pictures."""
    from meshwright.terminal.output import say
    from meshwright.terminal.progress import searching

    path = output.out or Path(str(options.plan)).with_suffix(".html")
    output.check_places(path)
    with searching(output, options.time_limit or PAGE_SECONDS) as budget:
        answer = report(**vars(part_of(options, ReportOptions, budget=budget)))
    output.show(replace(answer, file=path), path)
    if not output.json:
        say(f"Wrote {path}")
    if budget.interrupted:
        output.end_interrupted("not every picture was searched for")


@dataclass(slots=True, kw_only=True)
class PageRequest:
    """Request for an HTML page about a plan: name of the plan, limits of searches, and notes collected meanwhile."""

    name: str
    """File of the plan, as commands on the page name it."""
    budget: Budget
    """Limits of the searches for the page."""
    ends: tuple[Fact, ...] = ()
    """Facts on the end of training and its cost; empty if the tokens are not known."""
    forecast: Mapping[str, Any] = field(default_factory=dict)
    """JSON document of `forecast` under the key `forecast`; empty without a forecast."""
    notes: list[str] = field(default_factory=list)
    """Notes on effects that the page leaves out."""

    def tell(self, doing: str) -> None:
        """Show in the progress line which work begins now."""
        if self.budget.on_status is not None:
            self.budget.on_status(doing)


def pictures(
    plan: AnyPlan, request: PageRequest, kinds: Sequence[tuple[str, str]], drawers: Mapping[str, Draw]
) -> Iterator[Chapter]:
    """Yield a chapter for each pair of title and kind, with the picture of that kind, or the reason why it cannot be
    drawn."""
    from meshwright.pages.chapters import Chapter, Picture

    for title, kind in kinds:
        request.tell(f"drawing {kind}")
        options = PlotOptions(points=_POINTS) if kind == "frontier" else PlotOptions()
        picture_request = PictureRequest(
            plans=[plan], options=options, budget=replace(request.budget), notes=request.notes, named=False
        )
        try:
            drawing = drawers[kind](picture_request)
        except MeshwrightError as error:  # what is asked of it is the page's, not the user's
            yield Chapter(title=title, blocks=[f"Not drawn: {error}"])
        else:
            command = f"meshwright plot {kind} {request.name}"
            table = [drawing.table] if drawing.table else []
            yield Chapter(title=title, blocks=[*table, Picture(drawing=drawing, command=command)])


def _report_of(plan: AnyPlan, path: Path) -> AnyReport:
    """Load the report of a run of this plan. Raises InputError if it is no report, or of another plan."""
    from meshwright.records.runs import read_any_report
    from planner.plan import plan_text

    report = read_any_report(path)
    ran = getattr(report, "plan", None)
    if ran is not None and plan_text(ran) != plan_text(plan):
        raise InputError(f"`{path}` is of another plan: {ran.model_name}", hint="give the plan that was run")
    return report


def _end(plan: AnyPlan, options: ReportOptions, request: PageRequest) -> Iterator[Chapter]:
    """Chapter on the day training ends, if the number of tokens is known or the end is asked for. Raises
    InputError."""
    from meshwright.pages.chapters import Chapter
    from meshwright.verbs.forecast.forecasted import ask
    from planner.plan import Plan

    if not isinstance(plan, Plan) or not (given_flags(options) or plan.training.tokens is not None):
        return
    request.tell("forecasting")
    try:
        forecast = ask(part_of(replace(options, plan=plan), ForecastOptions))
        request.ends = forecast.facts
    except InfeasibleError as error:
        yield Chapter(title="When it ends", blocks=[str(error)])
        return
    request.forecast = {"forecast": forecast.record()}
    flags = {"--tokens": options.tokens, "--operations": options.operations}
    words = "".join(f" {flag} {value}" for flag, value in flags.items() if value is not None)
    yield forecast.chapter(f"{request.name}{words}")


class Reported(SavedAnswer):
    """Answer of `report`: an HTML page about a plan, which notebooks display."""

    title: str
    chapters: tuple[str, ...]
    """Titles of the page's chapters."""
    html: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    """JSON fields of the plan's price and its forecast."""
    notes: tuple[str, ...] = ()
    """Notes on effects that the page leaves out."""
    file: Path | None = None
    """File to which the page is written."""

    def csv_rows(self) -> list[Mapping[str, Any]]:
        """Row for each chapter of the page."""
        return [{"chapter": one} for one in self.chapters]

    def document(self) -> dict[str, Any]:
        """JSON document: file, title, chapters, size and figures."""
        return {
            "file": None if self.file is None else str(self.file),
            "title": self.title,
            "chapters": list(self.chapters),
            "bytes": len(self.html.encode()),
            **self.figures,
            "notes": list(self.notes),
        }

    def view(self) -> tuple[str, ...]:
        """Text that `meshwright report` prints."""
        return (self.title, *(f"  {one}" for one in self.chapters))

    def save(self, path: str | Path) -> None:
        """Write the page to a file; an incomplete file is never left."""
        from cost_models.files.whole import write_whole

        write_whole(Path(path), self.html)

    def _repr_html_(self) -> str:
        """Page as HTML, for notebooks."""
        return self.html
