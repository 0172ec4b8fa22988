"""Verbs of other trainers' files: a plan written as one, and one priced that is run today."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places

_TRAINERS = "megatron, torchtitan, deepspeed, nemo, torchrun, slurm or torchrec"


def export(
    plan: o.PlanFile,
    to: Annotated[str, typer.Option("--to", metavar="TRAINER", help=f"{_TRAINERS}.", show_default=False)],
    partly: Annotated[
        bool, typer.Option("--partly", help="Leave out what the trainer has no words for, and name it.")
    ] = False,
    out: Annotated[Path | None, o.out("Default: print it.")] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Write a plan as another trainer's file."""
    from cost_models.files.whole import write_whole
    from meshwright.api.exporting import export as write

    output = Output(json=json, csv=None, quiet=quiet)
    check_places(("-o", out))
    exported = write(plan, to, partly=partly)
    fields = [one.record() for one in exported.fields]
    record = {
        "kind": "export",
        "to": to,
        "file": exported.text,
        "fields": fields,
        "remarks": exported.remarks,
    }
    if out is None:
        output.answer(record, fields, exported.text.rstrip())
    else:
        output.answer(record, fields, files=[lambda: write_whole(out, exported.text)])
        output.note(f"Wrote {out}")
    output.remark(exported.remarks)


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="TorchRec's sharding plan.", show_default=False)
    ],
    model: o.Model,
    cluster: o.Cluster,
    gpus: o.Gpus = None,
    global_batch: o.GlobalBatch = None,
    precision: o.Precision = None,
    training: o.Training = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    host_memory: o.HostMemory = None,
    time_limit: o.TimeLimit = o.TIME_LIMIT,
    out: Annotated[Path | None, o.out("Write it as a plan.")] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Price what runs today, beside the best."""
    from meshwright.api.exporting import price_import
    from meshwright.cli.progress import searching
    from meshwright.inputs.questions import Inputs

    output = Output(json=json, csv=None, quiet=quiet)
    check_places(("-o", out))
    inputs = Inputs(
        model=model,
        cluster=cluster,
        gpus=gpus,
        global_batch=global_batch,
        precision=precision,
        training=training,
        stack=stack,
        profile=profile,
        host_memory=host_memory,
    )
    with searching(output, time_limit) as budget:
        answer = price_import(file, inputs, budget)
    output.assumed(answer.assumptions)
    output.show(answer, files=[] if out is None else [lambda: answer.save(out)])
    if out is not None:
        output.note(f"Wrote {out}. Next: meshwright explain {out}")


import_.__name__ = "import"
