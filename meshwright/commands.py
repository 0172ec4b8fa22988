"""The surface of the command line: each verb with its flags; the work is imported when the verb is called."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshwright import options as o
from meshwright.output import Output

VERIFY_SECONDS = 600.0
"""A proof is done again from its beginning, so it may take as long as the user lets a search take, and more."""


class PlotKind(StrEnum):
    """What can be drawn."""

    FRONTIER = "frontier"
    SCALING = "scaling"
    TIME = "time"
    MEMORY = "memory"
    TIMELINE = "timeline"
    ACCURACY = "accuracy"


class CatalogKind(StrEnum):
    """What the catalogue holds."""

    MODELS = "models"
    GPUS = "gpus"
    CLUSTERS = "clusters"
    STACKS = "stacks"
    PROFILES = "profiles"
    SCHEMA = "schema"


def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Catalogue name, config.json or YAML.")] = "",
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Catalogue name or YAML file.")] = "",
    gpus: o.GpuChoice = None,
    global_batch: o.GlobalBatch = None,
    sequence: o.Sequence = None,
    precision: o.Precisions = None,
    training: o.Training = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    fix: o.Fix = None,
    forbid: o.Forbid = None,
    max_memory: o.MaxMemory = None,
    trainer: o.For = None,
    objective: Annotated[
        str,
        typer.Option("--objective", metavar="WHAT", help="time, mfu, gpu-hours, cost, memory or gpus."),
    ] = "time",
    tokens: o.Tokens = None,
    price: o.Price = None,
    deadline: o.Deadline = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", metavar="N", min=1, max=1000, help="Plans to rank; default 5.", show_default=False
        ),
    ] = None,
    time_limit: o.TimeLimit = o.TIME_LIMIT,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="PLAN", help="Ask a plan file's question.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write the best plan.", show_default=False),
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Find the best layout and prove it."""
    from meshwright.verbs import planning
    from meshwright.verbs.asking import Asked
    from meshwright.verbs.goals import Goal

    asked = Asked(
        model=model,
        cluster=cluster,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
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
            top=top or planning.TOP,
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
        str, typer.Option("--layout", help='E.g. "tp8 pp8 dp16 mbs1 vpp2 zero1".', show_default=False)
    ],
    gpus: o.Gpus = None,
    global_batch: o.GlobalBatch = None,
    sequence: o.Sequence = None,
    precision: o.Precision = None,
    training: o.Training = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    trainer: o.For = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write it as a plan.", show_default=False),
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Price one layout, part by part."""
    from meshwright.verbs.asking import Asked
    from meshwright.verbs.estimating import estimate

    asked = Asked(
        model=model,
        cluster=cluster,
        gpus=gpus,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
        training=training,
        stack=stack,
        profile=profile,
        trainer=trainer,
    )
    if not estimate(asked, layout, out=out, output=Output(json=json, csv=csv, quiet=quiet)):
        raise typer.Exit(1)


def compare(
    choices: Annotated[
        list[str],
        typer.Argument(
            metavar="PLAN...", help="Plan files; after the first, layouts too.", show_default=False
        ),
    ],
    trainer: o.For = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Set plans side by side, part by part."""
    from meshwright.verbs.comparing import compare

    compare(choices, trainer=trainer, output=Output(json=json, csv=csv, quiet=quiet))


def explain(
    plan: o.PlanFile,
    why_not: Annotated[
        str | None,
        typer.Option("--why-not", metavar="LAYOUT", help="Why this layout lost.", show_default=False),
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Say what binds a plan, why it wins, and what would change it."""
    from meshwright.verbs.explaining import explain

    explain(plan, why_not, output=Output(json=json, csv=csv, quiet=quiet))


def verify(
    plan: o.PlanFile,
    time_limit: o.TimeLimit = VERIFY_SECONDS,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Price a plan again and prove it again; say what is not true."""
    from meshwright.verbs.verifying import verify

    if not verify(plan, time_limit=time_limit, output=Output(json=json, csv=csv, quiet=quiet)):
        raise typer.Exit(1)


def plot(
    kind: Annotated[PlotKind, typer.Argument(help="What to draw.", show_default=False)],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="A plan; for time several; for accuracy run reports.", show_default=False
        ),
    ],
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="N,N,...", help="Also 64..1024, 64..16384x50.", show_default=False),
    ] = None,
    between: Annotated[
        str | None,
        typer.Option(
            "--between", metavar="A,B", help="frontier: two objectives; time,memory.", show_default=False
        ),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option("--points", metavar="N", help="frontier: how many, or all.", show_default=False),
    ] = None,
    kind_of_scaling: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="scaling: strong or weak.", show_default=False),
    ] = None,
    tokens: o.Tokens = None,
    price: o.Price = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", metavar="SECONDS", min=0.001, help="Of all searches; 120.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Default KIND.png; .svg, .pdf.", show_default=False),
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Draw a curve or a breakdown."""
    from meshwright.verbs.plotting import Wanted, plot

    wanted = Wanted(
        gpus=gpus,
        between=between,
        points=points,
        kind=kind_of_scaling,
        tokens=tokens,
        price=price,
        time_limit=time_limit,
    )
    plot(kind.value, files, wanted, out=out, output=Output(json=json, csv=csv, quiet=quiet))


def run(
    plan: o.PlanFile,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Optimizer steps to train.")] = 20,
    backend: Annotated[
        str | None,
        typer.Option("--backend", help="nccl or gloo; default: as the cluster.", show_default=False),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Of the weights and the order of the data.")
    ] = 0,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", metavar="RATE", help="At its highest.")
    ] = 3e-4,
    rate_warm_up: Annotated[
        int, typer.Option("--rate-warm-up", metavar="N", help="Steps in which the rate rises to it.")
    ] = 0,
    rate_decay: Annotated[
        int | None,
        typer.Option(
            "--rate-decay",
            metavar="N",
            help="Step by which it has fallen to a tenth, as a cosine.",
            show_default=False,
        ),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option("--clip", metavar="NORM", help="Largest norm of a step's gradient.", show_default=False),
    ] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile each block with torch.compile.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of run-report.json.")
    ] = Path("run"),
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.json",
            help="Chrome trace of a step: every rank as predicted and as measured.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build every stage without its devices; train nothing.")
    ] = False,
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="A token folder; also: text, random.")
    ] = "text",
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="Save the training state here.", show_default=False),
    ] = None,
    every: Annotated[
        int, typer.Option("--every", metavar="N", min=1, help="Steps from checkpoint to checkpoint.")
    ] = 100,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=1, help="Newest checkpoints that stay.")
    ] = 3,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest whole checkpoint, on this plan.")
    ] = False,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts", metavar="N", min=0, help="With --checkpoint: how often to replace lost ranks."
        ),
    ] = 3,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="A rank that stands still so long hangs."),
    ] = 600,
    nodes: Annotated[
        int, typer.Option("--nodes", metavar="N", min=1, help="Nodes to run on; start it on each of them.")
    ] = 1,
    rendezvous: Annotated[
        str | None,
        typer.Option(
            "--rendezvous", metavar="HOST:PORT", help="Where nodes meet: one of them.", show_default=False
        ),
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Train with a plan here and set measured beside predicted."""
    from functools import partial

    from meshwright import ran
    from meshwright.verbs.running import dry_run as build
    from meshwright.verbs.running import run as show

    output = Output(json=json, csv=csv, quiet=quiet)
    if dry_run:
        build(plan, output=output)
        return
    train = partial(
        ran.run,
        plan,
        steps=steps,
        backend=backend,
        seed=seed,
        learning_rate=learning_rate,
        rate_warm_up=rate_warm_up,
        rate_decay=rate_decay,
        clip=clip,
        compile=compile,
        out=out,
        trace=trace,
        data=data,
        checkpoint=checkpoint,
        every=every,
        keep=keep,
        resume=resume,
        restarts=restarts,
        timeout=timeout,
        nodes=nodes,
        rendezvous=rendezvous,
    )
    show(plan, train, steps=steps, nodes=nodes, compiled=compile, out=out, trace=trace, output=output)


def tokens(
    texts: Annotated[
        list[Path],
        typer.Argument(metavar="TEXT...", help="Text files, or folders of them.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Token folder to write.")],
    bpe: Annotated[
        int | None,
        typer.Option(
            "--bpe", metavar="N", help="Learn N byte pairs; default: a token is a byte.", show_default=False
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like", metavar="DIR", help="Use the tokenizer of a token folder.", show_default=False
        ),
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Make token files from texts, to train on with `run --data`."""
    from meshwright.verbs.tokenizing import tokens

    tokens(texts, out, bpe=bpe, like=like, output=Output(json=json, csv=csv, quiet=quiet))


def emulate(
    plan: o.PlanFile,
    rank: Annotated[int, typer.Option("--rank", metavar="R", help="Which of the plan's ranks.")] = 0,
    fake: Annotated[bool, typer.Option("--fake", help="Memory only, and no device.")] = False,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, help="Steps whose compute is timed.")
    ] = 3,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write a JSON report.", show_default=False),
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Run one rank of a plan alone, for any number of GPUs."""
    from meshwright.verbs.emulating import emulate

    output = Output(json=json, csv=csv, quiet=quiet)
    emulate(plan, rank=rank, steps=steps, fake=fake, out=out, output=output)


def calibrate(
    out: Annotated[
        str, typer.Option("-o", "--out", metavar="FILE", help="Profile to write; for runs also FOLDER/.")
    ] = "profile.yaml",
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="Default: one per device.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats, about half the time.")] = False,
    from_runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--from-runs",
            metavar="FILE.csv",
            help="Fit to timed runs, measure nothing; repeatable.",
            show_default=False,
        ),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option("--stack", metavar="NAME", help="Runs of this stack only.", show_default=False),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="Runs on this GPU only.", show_default=False)
    ] = None,
    cross_validate: Annotated[
        bool, typer.Option("--cross-validate", help="Errors of sources left out of every fit.")
    ] = False,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Write a hardware profile: measured here, or fitted to timed runs."""
    output = Output(json=json, csv=csv, quiet=quiet)
    if from_runs:
        from meshwright.verbs.fitting import Choice, fit_runs

        choice = Choice(stack=stack, gpu=gpu, processes=processes, quick=quick)
        fit_runs(from_runs, choice, cross_validate=cross_validate, out=out, output=output)
        return
    from meshwright.verbs.calibrating import calibrate, nothing_of_runs

    nothing_of_runs(stack=stack, gpu=gpu, cross_validate=cross_validate)
    calibrate(processes, quick=quick, out=Path(out), output=output)


def validate(
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--runs",
            metavar="FILE.csv",
            help="A table of runs; repeatable. Default: the shipped ones.",
            show_default=False,
        ),
    ] = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    anchors: Annotated[
        int, typer.Option("--anchors", metavar="K", min=0, help="Calibrate each sweep on K of its rows.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Write a page with plots.", show_default=False),
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Predict runs that were timed, and say how far off."""
    from meshwright.verbs.validating import validate

    output = Output(json=json, csv=csv, quiet=quiet)
    validate(tuple(runs or ()), stack=stack, profile=profile, anchors=anchors, folder=out, output=output)


def catalog(
    kind: Annotated[CatalogKind, typer.Argument(help="What to list.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Argument(
            help="One entry in full; for schema: model, cluster, training, ...", show_default=False
        ),
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """List what is known, or print a YAML schema."""
    from meshwright.verbs.cataloguing import catalog

    catalog(kind.value, name, output=Output(json=json, csv=csv, quiet=quiet))
