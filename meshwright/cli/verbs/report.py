"""`meshwright report`: a plan as one page to read and to send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places
from meshwright.cli.printing import say


def report(
    plan: o.PlanFile,
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[REPORT]", help="Of a run of the plan: run-report.json.", show_default=False),
    ] = None,
    tokens: o.Tokens = None,
    operations: o.Operations = None,
    time_limit: Annotated[
        float | None, o.optional("--time-limit", "SECONDS", "Of all searches; 60.", min=0.001)
    ] = None,
    out: Annotated[Path | None, o.out("Default: the plan's name with .html.")] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Write a plan as one HTML page: answer, proof, why, pictures."""
    from dataclasses import replace

    from meshwright.api.report import PAGE_SECONDS
    from meshwright.api.report import report as write
    from meshwright.cli.progress import searching

    output = Output(json=json, csv=None, quiet=quiet)
    path = out or plan.with_suffix(".html")
    check_places(("-o", path))
    with searching(output, time_limit or PAGE_SECONDS) as budget:
        answer = write(plan, run, tokens=tokens, operations=operations, budget=budget)
    output.show(replace(answer, file=path), files=[lambda: answer.save(path)])
    if not json:
        say(f"Wrote {path}")
    if budget.interrupted:
        output.end_interrupted("not every picture was searched for")
