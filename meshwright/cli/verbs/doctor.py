"""`meshwright doctor`: look at every device and link before a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places


def doctor(
    plan: Annotated[
        Path | None, o.optional("--plan", "PLAN", "Compare with what it assumes.", offers=completion.plans)
    ] = None,
    processes: Annotated[
        int | None, o.optional("--processes", "N", "Default: one per device, or the plan's.", min=1)
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Look for slow devices and links before a job."""
    from meshwright.api.doctor import doctor
    from meshwright.cli.progress import progress
    from planner.plan_files import load_any_plan

    output = Output(json=json, csv=csv, quiet=quiet)
    check_places(("--csv", csv))
    loaded = None if plan is None else load_any_plan(plan)
    with progress(output) as reporter:
        reporter.say("examining devices and links")
        answer = doctor(loaded, processes=processes)
    if os.environ.get("RANK", "0") == "0":  # under torchrun every rank examines, and rank 0 tells of it
        output.show(answer)
    if not answer.passed:
        raise typer.Exit(1)
