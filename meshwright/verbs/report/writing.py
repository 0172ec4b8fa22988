"""A plan as a page: its proof, its reasons, pictures, forecast and run in one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cost_models.errors import InfeasibleError, InputError, MeshwrightError
from cost_models.files.whole import write_whole
from cost_models.flags import given_flags, part_of
from executor.measure.report import AnyReport
from meshwright.pages.chapters import Chapter, Listing, Picture
from meshwright.pages.html import page
from meshwright.plots.drawing import Draw, PictureRequest, PlotOptions
from meshwright.records.runs import read_any_report
from meshwright.render.words import Fact, lines_of_any_length
from meshwright.terminal.answers import SavedAnswer
from meshwright.verbs.contract import read_plan
from meshwright.verbs.forecast import ForecastOptions
from meshwright.verbs.forecast.forecasted import ask
from meshwright.verbs.report import PAGE_SECONDS, ReportOptions
from planner.plan import AnyPlan, Plan, package_version, plan_text
from planner.search.search import Budget

USUAL_NAME = "plan.yaml"
_POINTS = "8"
"""Points of a frontier; each point is a search."""


@dataclass(slots=True, kw_only=True)
class PageRequest:
    """How the plan is called, the time for searches, and the notes met on the way."""

    name: str = USUAL_NAME
    """The plan's file, as commands on the page name it."""
    budget: Budget = field(default_factory=Budget)
    """For the searches of the page."""
    ends: tuple[Fact, ...] = ()
    """Facts on the end of training and its cost; empty if the tokens are not known."""
    forecast: Mapping[str, Any] = field(default_factory=dict)
    """Document of `forecast`, under the key `forecast`."""
    notes: list[str] = field(default_factory=list)
    """Notes on effects that the page leaves out."""

    def tell(self, doing: str) -> None:
        """Tell the user the work that begins now."""
        if self.budget.on_status is not None:
            self.budget.on_status(doing)


def pictures(
    plan: AnyPlan, request: PageRequest, kinds: Sequence[tuple[str, str]], drawers: Mapping[str, Draw]
) -> Iterator[Chapter]:
    """Chapter for each (title, kind of plot). A chapter that cannot be drawn says why."""
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


def write_page(options: ReportOptions) -> Reported:
    """Write the page. Raises InputError."""
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
            compared = verbs.running(loaded).answer(measured).text
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


def _report_of(plan: AnyPlan, path: Path) -> AnyReport:
    """The report of a run of this plan. Raises InputError where it is none, or of another plan."""
    report = read_any_report(path)
    ran = getattr(report, "plan", None)
    if ran is not None and plan_text(ran) != plan_text(plan):
        raise InputError(f"`{path}` is of another plan: {ran.model_name}", hint="give the plan that was run")
    return report


def _end(plan: AnyPlan, options: ReportOptions, request: PageRequest) -> Iterator[Chapter]:
    """The day training ends, where it is asked for or the tokens are known. Raises InputError."""
    if not isinstance(plan, Plan) or not (given_flags(options) or plan.training.tokens is not None):
        return
    title = "When it ends"
    request.tell("forecasting")
    try:
        forecast = ask(part_of(replace(options, plan=plan), ForecastOptions))
        request.ends = forecast.facts
    except InfeasibleError as error:
        yield Chapter(title=title, blocks=[str(error)])
        return
    request.forecast = {"forecast": forecast.record()}
    flags = {"--tokens": options.tokens, "--operations": options.operations}
    words = "".join(f" {flag} {value}" for flag, value in flags.items() if value is not None)
    picture = Picture(drawing=forecast.plot(), command=f"meshwright plot forecast {request.name}{words}")
    assumed = [f"Assumed: {one}." for one in forecast.assumptions]
    yield Chapter(title=title, blocks=[*forecast.text, *assumed, picture])


class Reported(SavedAnswer):
    """A page about a plan; notebooks show it."""

    title: str
    chapters: tuple[str, ...]
    """Titles of the page's chapters."""
    html: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the plan and of its forecast, as other verbs write them in JSON."""
    notes: tuple[str, ...] = ()
    """Notes on effects that the page leaves out."""
    file: Path | None = None
    """File to which the page is written."""

    def csv_rows(self) -> list[Mapping[str, Any]]:
        """A row for each chapter."""
        return [{"chapter": one} for one in self.chapters]

    def document(self) -> dict[str, Any]:
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
        """Write the page, whole or not at all."""
        write_whole(Path(path), self.html)

    def _repr_html_(self) -> str:
        return self.html
