"""`meshwright advise`: what to change of what is run today."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places


def advise(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN",
            help="What is run today: a plan file of `estimate -o`.",
            autocompletion=completion.plans,
        ),
    ],
    layout: Annotated[str | None, o.optional("--layout", "LAYOUT", "Run instead of the plan's own.")] = None,
    time_limit: o.TimeLimit = o.TIME_LIMIT,
    out: Annotated[Path | None, o.out("Write the best plan.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Say what to change of what is run today, step by step."""
    from meshwright.api.advise import advise
    from meshwright.cli.progress import searching
    from meshwright.inputs.problems import Problems
    from planner.plan_files import load_any_plan

    output = Output(json=json, csv=csv, quiet=quiet)
    problems = Problems()
    loaded = problems.read(lambda: load_any_plan(plan))
    problems.read(lambda: check_places(("-o", out), ("--csv", csv)))
    problems.require()
    assert loaded is not None
    with searching(output, time_limit) as budget:
        answer = advise(loaded, layout, budget=budget)
    if out is not None:
        answer.save(out)
    output.show(answer)
    for remark in answer.remarks(interrupted=budget.interrupted):
        output.note(remark)
    if out is not None:
        output.note(f"Wrote {out}. Next: meshwright explain {out}")
    if budget.interrupted:
        output.end_interrupted("these are the best so far, and not proved")
