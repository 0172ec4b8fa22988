"""`meshwright forecast`: the day a training job ends, failures counted."""

from __future__ import annotations

from typing import Annotated

from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places


def forecast(
    plan: o.PlanFile,
    tokens: o.Tokens = None,
    operations: o.Operations = None,
    mtbf: Annotated[
        str | None, o.optional("--mtbf", "TIME", "GPU-hours between failures, e.g. 50000h.")
    ] = None,
    restart: Annotated[
        str | None, o.optional("--restart", "TIME", "From a detected failure to the first step.")
    ] = None,
    storage: Annotated[
        str | None, o.optional("--storage", "RATE", "For checkpoints, e.g. '200 GB/s'.")
    ] = None,
    spares: Annotated[int | None, o.optional("--spares", "N", "Nodes that stand by.", min=0)] = None,
    every: Annotated[
        int | None, o.optional("--every", "STEPS", "Between checkpoints; default the best.", min=1)
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Say when training ends with failures, and how often to save."""
    from meshwright.api.forecast import ask
    from meshwright.inputs.operations import OperationsInputs
    from planner.plan_files import load_plan

    output = Output(json=json, csv=csv, quiet=quiet)
    check_places(("--csv", csv))
    inputs = OperationsInputs(
        operations=operations, mtbf=mtbf, restart=restart, storage=storage, spares=spares
    )
    question = ask(load_plan(plan), tokens, inputs, every)
    output.assumed(question.assumptions)
    output.show(question.answer())
