"""`report`: a plan with its proof, its reasons, pictures, forecast and run as one page to read and to send."""

from __future__ import annotations

from dataclasses import KW_ONLY, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.flags import argument, as_keywords, flag, plan_file
from meshwright.inputs.options import Ending, tokens_flag
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from meshwright.inputs.plans import HasPlan
    from meshwright.terminal.output import Output
    from meshwright.verbs.report.writing import Reported
    from planner.plan import AnyPlan
    from planner.search.search import Budget

PAGE_SECONDS = 60.0
"""Time limit of all searches of a page, unless the user says otherwise."""


class ReportOptions(Ending):
    """Options of `report`."""

    plan: AnyPlan | HasPlan | str | Path = field(metadata=plan_file())
    run: str | Path | None = field(default=None, metadata=argument("[REPORT]", kind=Path))
    """Of a run of the plan: run-report.json.

    Set beside what was predicted.
    """
    _: KW_ONLY
    tokens: str | float | None = tokens_flag()
    budget: Budget | None = None
    """For the searches of rivals and frontiers."""


@as_keywords(ReportOptions)
def report(options: ReportOptions) -> Reported:
    """A plan as one page of HTML that needs no other file, no script and no network.

    With `tokens`, its own or the plan's, it opens with the end of training; with `start` that is a date, and with a
    `price` of a GPU-hour its cost stands beside it.

    Raises:
        InputError: a file or an option that is wrong; the run is of another plan.
    """
    from meshwright.verbs.report.writing import write_page

    return write_page(options)


class ReportFlags(ReportOptions, kw_only=True):
    """Options of `meshwright report`."""

    time_limit: float | None = flag("SECONDS", minimum=0.001)
    """Time limit of all searches; default 60."""


@command(ReportFlags, shows=("json", "quiet"), out="Default: the plan's name with .html.")
def report_command(options: ReportFlags, output: Output) -> None:
    """Write a plan as one HTML page: answer, proof, why, pictures."""
    from meshwright.terminal.output import say
    from meshwright.terminal.progress import searching
    from meshwright.verbs.report.writing import write_page

    path = output.out or Path(str(options.plan)).with_suffix(".html")
    output.check_places(path)
    with searching(output, options.time_limit or PAGE_SECONDS) as budget:
        answer = write_page(replace(options, budget=budget))
    output.show(replace(answer, file=path), path)
    if not output.json:
        say(f"Wrote {path}")
    if budget.interrupted:
        output.end_interrupted("not every picture was searched for")
