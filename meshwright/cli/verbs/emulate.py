"""`meshwright emulate`: one rank of a plan alone on this machine, or without a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places


def emulate(
    plan: o.PlanFile,
    rank: Annotated[int, typer.Option("--rank", metavar="R", help="Which of the plan's ranks.")] = 0,
    fake: Annotated[bool, typer.Option("--fake", help="Memory only, and no device.")] = False,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, help="Steps whose compute is timed.")
    ] = 3,
    out: Annotated[Path | None, o.out("Write a JSON report.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Run one rank of a plan alone, for any number of GPUs."""
    from meshwright.api.emulate import emulate

    output = Output(json=json, csv=csv, quiet=quiet)
    check_places(("-o", out), ("--csv", csv))
    answer = emulate(plan, rank, steps=steps, fake=fake)
    output.show(answer)
    if out is not None:
        answer.save(out)
        output.note(f"Wrote {out}")
