"""`meshwright run`: train with a plan on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.cli import options as o
from meshwright.cli.output import Output


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
        int | None, o.optional("--rate-decay", "N", "Step by which it has fallen to a tenth, as a cosine.")
    ] = None,
    clip: Annotated[float | None, o.optional("--clip", "NORM", "Largest norm of a step's gradient.")] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile each block with torch.compile.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of run-report.json.")
    ] = Path("run"),
    trace: Annotated[
        Path | None,
        o.optional(
            "--trace", "FILE.json", "Chrome trace of a step: every rank as predicted and as measured."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build every stage without its devices; train nothing.")
    ] = False,
    drive: Annotated[
        Path | None,
        o.optional("--drive", "DIR", "Folder for states that the plan has on the drive; default: --out."),
    ] = None,
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="A token folder; also: text, random.")
    ] = "text",
    checkpoint: Annotated[
        Path | None, o.optional("--checkpoint", "DIR", "Save the training state here.")
    ] = None,
    every: Annotated[
        str, typer.Option("--every", metavar="N", help="Steps from checkpoint to checkpoint; auto: the best.")
    ] = "100",
    operations: o.Operations = None,
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
        typer.Option(
            "--timeout", metavar="SECONDS", min=1, help="A rank without progress for so long counts as hung."
        ),
    ] = 600,
    nodes: Annotated[
        int, typer.Option("--nodes", metavar="N", min=1, help="Nodes to run on; start it on each of them.")
    ] = 1,
    rendezvous: Annotated[
        str | None, o.optional("--rendezvous", "HOST:PORT", "Where nodes meet: one of them.")
    ] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Train with a plan here and set measured beside predicted."""
    from meshwright.api.run import run
    from meshwright.families import verbs_of_plan
    from meshwright.families.options import require_options
    from planner.plan_files import load_any_plan

    output = Output(json=json, csv=csv, quiet=quiet)
    loaded = load_any_plan(plan)
    verbs = verbs_of_plan(loaded)
    own: dict[str, object] = {
        "rate_warm_up": rate_warm_up,
        "rate_decay": rate_decay,
        "clip": clip,
        "compile": compile,
    }
    own |= {"trace": trace, "dry_run": dry_run}
    require_options(verbs, "run", [name for name, said in own.items() if said])
    running = verbs.running(loaded)
    if dry_run:
        output.show(running.built())
        output.note(f"Next: meshwright run {plan}")
        return
    speaks = os.environ.get("RANK", "0") == "0"  # under torchrun every rank trains, and rank 0 tells of it
    if speaks and (note := running.before(compiled=compile)):
        output.note(note)
    told: list[int] = []

    def tell(step: dict[str, Any]) -> None:
        told.append(step["step"])
        output.note(running.step_line(step))

    earlier = _version(trace)
    answer = run(
        loaded,
        on_step=tell,
        on_note=output.note,
        name=plan.name,
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
        drive=drive,
        data=data,
        checkpoint=checkpoint,
        every=_steps(every),
        operations=operations,
        keep=keep,
        resume=resume,
        restarts=restarts,
        timeout=timeout,
        nodes=nodes,
        rendezvous=rendezvous,
    )
    if not speaks or (nodes > 1 and not told):  # of several nodes the one that has rank 0 tells of it
        return
    output.show(answer)
    written = out / "run-report.json"
    if _version(trace) != earlier:
        output.note(f"Wrote {trace}: open it in ui.perfetto.dev or chrome://tracing")
    output.note(f"Wrote {written}. {running.next_step(answer.report, written)}")


def _steps(every: str) -> int | str:
    """ "100" → 100; `auto` stays."""
    from cost_models.documents import printable
    from cost_models.errors import InputError
    from meshwright.api.run import AUTO

    if every == AUTO:
        return every
    if not (every.isdecimal() and every.isascii() and int(every[:12]) > 0 and len(every) <= 12):
        raise InputError(f"--every: `{printable(every)}` is neither a number of steps nor `{AUTO}`")
    return int(every)


def _version(file: Path | None) -> tuple[int, int] | None:
    """Another one once the file is written again; None where there is none."""
    if file is None or not file.is_file():
        return None
    status = file.stat()
    return status.st_ino, status.st_mtime_ns
