"""`meshwright estimate`: the price of one layout, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places


def estimate(
    model: o.Model,
    cluster: o.Cluster,
    layout: Annotated[
        str,
        typer.Option("--layout", help='E.g. "tp8 pp3 dp16 mbs1 zero1 layers=11,11,10".', show_default=False),
    ],
    gpus: o.Gpus = None,
    global_batch: o.GlobalBatch = None,
    sequence: o.Sequence = None,
    precision: o.Precision = None,
    dropout: o.Dropout = None,
    optimizer: o.Optimizer = None,
    training: o.Training = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    confidence: o.Confidence = None,
    host_memory: o.HostMemory = None,
    trainer: o.For = None,
    out: Annotated[Path | None, o.out("Write it as a plan.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Price one layout, part by part."""
    from cost_models.files.models import read_once
    from meshwright.families import verbs_of_model
    from meshwright.families.options import require_options
    from meshwright.inputs.plan_inputs import given
    from meshwright.inputs.problems import Problems
    from meshwright.inputs.questions import Inputs

    output = Output(json=json, csv=csv, quiet=quiet)
    inputs = Inputs(
        model=read_once(model),
        cluster=cluster,
        gpus=gpus,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
        dropout=dropout,
        optimizer=optimizer,
        training=training,
        stack=stack,
        profile=profile,
        trainer=trainer,
        confidence=confidence,
        host_memory=host_memory,
    )
    problems = Problems()
    verbs = verbs_of_model(inputs.model)
    require_options(verbs, "estimate", given(inputs))
    question = problems.read(lambda: verbs.ask_estimate(inputs, layout))
    problems.read(lambda: check_places(("-o", out), ("--csv", csv)))
    problems.require()
    assert question is not None
    output.assumed(question.assumptions)
    output.remark(question.notes)
    answer = question.answer()
    output.show(answer, files=[] if out is None else [lambda: answer.save(out)])
    if out is not None:
        output.note(f"Wrote {out}. Next: {answer.next_commands(out)}")
    if not answer.fits:
        raise typer.Exit(1)
