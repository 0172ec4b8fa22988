"""Pages: a plan with its proof, its reasons, pictures, forecast and run in one HTML file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cost_models.errors import InfeasibleError, InputError
from executor.measure.any_report import AnyReport
from meshwright.answers.reported import Reported
from meshwright.api.forecast import forecast
from meshwright.families import verbs_of_plan
from meshwright.families.chapters import USUAL_NAME, PageRequest
from meshwright.families.options import require_options
from meshwright.inputs.plans import HasPlan, any_plan_of
from meshwright.pages.chapters import Chapter, Listing, Picture
from meshwright.pages.html import page
from meshwright.records.run_reports import read_any_report
from meshwright.render.words import lines_of_any_length
from planner.any_plan import AnyPlan, own_version
from planner.plan import Plan
from planner.plan_files import plan_text
from planner.search.budget import Budget

PAGE_SECONDS = 60.0
"""Time limit of all searches of a page, unless the user says otherwise."""


def report(
    plan: AnyPlan | HasPlan | str | Path,
    run: str | Path | None = None,
    *,
    tokens: str | float | None = None,
    operations: str | None = None,
    budget: Budget | None = None,
) -> Reported:
    """A plan as one page of HTML that needs no other file, no script and no network.

    Args:
        plan: a plan, an answer that can be written as one, or a plan file.
        run: the report of a run of the plan, which is set beside what was predicted.
        tokens: to train on, for the day it ends; None: those of the plan's question.
        operations: failures and restarts, a catalogue name or a file; None: `llama3`.
        budget: for the searches of rivals and frontiers.

    Raises:
        InputError: a file or an option that is wrong; the run is of another plan.
    """
    loaded = any_plan_of(plan)
    verbs = verbs_of_plan(loaded)
    given = {"tokens": tokens, "operations": operations}
    require_options(verbs, "report", [name for name, value in given.items() if value is not None])
    measured = None if run is None else _report_of(loaded, Path(run))
    request = PageRequest(
        name=str(plan) if isinstance(plan, (str, Path)) else USUAL_NAME,
        budget=budget or Budget(time_limit=PAGE_SECONDS, keep_on_interrupt=True),
    )
    with lines_of_any_length():
        end = [*_end(loaded, tokens, operations, request)]  # first, as it may be asked wrongly
        chapters = [*verbs.chapters(loaded, request), *end]
        if measured is not None:
            chapters.append(_beside(loaded, measured))
        title = f"{verbs.about(loaded)}: a plan"
    notes = list(dict.fromkeys(request.notes))
    if notes:
        chapters.append(Chapter(title="What it passes over", blocks=notes))
    chapters.append(Chapter(title="The plan itself", blocks=[Listing(text=plan_text(loaded))]))
    html = page(title, chapters, foot=f"Written by Meshwright {own_version()}.")
    return Reported(title=title, chapters=tuple(one.title for one in chapters), html=html, notes=tuple(notes))


def _report_of(plan: AnyPlan, path: Path) -> AnyReport:
    """The report of a run of this plan. Raises InputError where it is none, or of another plan."""
    found = read_any_report(path)
    ran = getattr(found, "plan", None)
    if ran is not None and plan_text(ran) != plan_text(plan):
        raise InputError(f"`{path}` is of another plan: {ran.model_name}", hint="give the plan that was run")
    return found


def _beside(plan: AnyPlan, measured: AnyReport) -> Chapter:
    """What was predicted beside what a run measured."""
    answer = verbs_of_plan(plan).running(plan).told_again(measured)
    return Chapter(title="Predicted beside measured", blocks=[*answer.text])


def _end(
    plan: AnyPlan, tokens: str | float | None, operations: str | None, request: PageRequest
) -> Iterator[Chapter]:
    """The day training ends, where the tokens are known."""
    if not isinstance(plan, Plan) or (tokens is None and plan.training.tokens is None):
        return
    title = "When it ends"
    request.tell("forecasting")
    try:
        found = forecast(plan, tokens, operations=operations)
    except InfeasibleError as error:
        yield Chapter(title=title, blocks=[str(error)])
        return
    asked = {"--tokens": tokens, "--operations": operations}
    words = "".join(f" {flag} {value}" for flag, value in asked.items() if value is not None)
    picture = Picture(drawing=found.plot(), command=f"meshwright plot forecast {request.name}{words}")
    assumed = [f"Assumed: {one}." for one in found.assumptions]
    yield Chapter(title=title, blocks=[*found.text, *assumed, picture])
