"""Verbs that ask a question: the best layout, and the price of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Catalogue name, config.json or YAML.", autocompletion=completion.models
        ),
    ] = "",
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER[,CLUSTER]",
            help="Catalogue name or YAML file; of several the best.",
            autocompletion=completion.clusters,
        ),
    ] = "",
    gpus: o.GpuChoice = None,
    global_batch: o.GlobalBatch = None,
    sequence: o.Sequence = None,
    precision: o.Precisions = None,
    dropout: o.Dropout = None,
    training: o.Training = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    fix: o.Fix = None,
    forbid: o.Forbid = None,
    max_memory: o.MaxMemory = None,
    trainer: o.For = None,
    objective: Annotated[
        str | None,
        o.optional(
            "--objective", "WHAT", "time, mfu, gpu-hours, cost, memory or gpus; default time, or cost."
        ),
    ] = None,
    tokens: o.Tokens = None,
    price: o.Prices = None,
    deadline: o.Deadline = None,
    top: Annotated[int | None, o.optional("--top", "N", "Plans to rank; default 5.", min=1, max=1000)] = None,
    time_limit: o.TimeLimit = o.TIME_LIMIT,
    replay: Annotated[
        Path | None, o.optional("--replay", "PLAN", "Ask a plan file's question.", offers=completion.plans)
    ] = None,
    out: Annotated[Path | None, o.out("Write the best plan.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Find the best layout and prove it."""
    from meshwright.api.goals import Goal
    from meshwright.api.questions import Asked
    from meshwright.cli.verbs import planning

    asked = Asked(
        model=model,
        cluster=cluster,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
        dropout=dropout,
        training=training,
        stack=stack,
        profile=profile,
        trainer=trainer,
    )
    limits = (tuple(fix or ()), tuple(forbid or ()), max_memory)
    goal = Goal(objective=objective, tokens=tokens, price=price, deadline=deadline)
    output = Output(json=json, csv=csv, quiet=quiet)
    if replay is None:
        planning.plan(
            asked,
            limits,
            goal,
            gpus=gpus,
            top=top,
            time_limit=time_limit,
            out=out,
            output=output,
        )
    else:
        planning.nothing_else_asked(asked, limits, goal, gpus)
        planning.replay(replay, top=top, time_limit=time_limit, out=out, output=output)


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
    training: o.Training = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    trainer: o.For = None,
    out: Annotated[Path | None, o.out("Write it as a plan.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Price one layout, part by part."""
    from meshwright.api.questions import Asked
    from meshwright.cli.verbs.estimating import estimate

    asked = Asked(
        model=model,
        cluster=cluster,
        gpus=gpus,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
        dropout=dropout,
        training=training,
        stack=stack,
        profile=profile,
        trainer=trainer,
    )
    if not estimate(asked, layout, out=out, output=Output(json=json, csv=csv, quiet=quiet)):
        raise typer.Exit(1)
