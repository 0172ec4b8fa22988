"""Verbs of other trainers' files: a plan written as one, and one priced that is run today."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places

if TYPE_CHECKING:
    from meshwright.inputs.questions import Inputs

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
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Megatron-LM's command or script; torchtitan's recipe; NeMo's YAML; DeepSpeed's, TorchRec's JSON.",
            show_default=False,
        ),
    ],
    nouns: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] CLUSTER",
            help="Where it runs; before it the model, where the source has none.",
            autocompletion=completion.clusters,
            show_default=False,
        ),
    ],
    trainer: Annotated[
        str | None,
        o.optional("--from", "TRAINER", "megatron, torchtitan, nemo, deepspeed, torchrec."),
    ] = None,
    also: Annotated[
        str | None, o.optional("--also", "WORDS", "Arguments that the source leaves out.")
    ] = None,
    gpus: o.Gpus = None,
    global_batch: o.GlobalBatch = None,
    sequence: o.Sequence = None,
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
    """Price what runs today."""
    from cost_models.errors import InputError
    from meshwright.inputs.questions import Inputs
    from planner.formats.registry import reader_of

    output = Output(json=json, csv=None, quiet=quiet)
    check_places(("-o", out))
    kind = reader_of(source, trainer)
    if len(nouns) > 2:
        raise InputError(f"{len(nouns)} words behind the source", hint="it takes MODEL CLUSTER, or CLUSTER")
    inputs = Inputs(
        model=nouns[0] if len(nouns) == 2 else "",
        cluster=nouns[-1],
        gpus=gpus,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
        training=training,
        stack=stack,
        profile=profile,
        host_memory=host_memory,
    )
    if also is not None and kind not in ("megatron", "torchtitan", "nemo"):
        raise InputError("--also: a file of settings takes no arguments", hint="leave it out")
    if sequence is not None and kind == "torchrec":
        raise InputError("--sequence: a recommender has no sequences", hint="leave it out")
    if kind != "torchrec":
        _import_training(kind, source, inputs, also, out, output)
    else:
        _import_sharding(source, inputs, time_limit, out, output)


def _import_training(
    kind: str, source: str, inputs: Inputs, also: str | None, out: Path | None, output: Output
) -> None:
    from meshwright.families.transformer.importing import ask_import_of

    question = ask_import_of(kind, source, inputs, also or "")
    output.assumed(question.assumptions)
    output.remark(question.notes)
    answer = question.answer()
    output.show(answer, files=[] if out is None else [lambda: answer.save(out)])
    if out is not None:
        output.note(f"Wrote {out}. Next: {answer.next_commands(out)}")
    if not answer.fits:
        raise typer.Exit(1)


def _import_sharding(
    source: str, inputs: Inputs, time_limit: float, out: Path | None, output: Output
) -> None:
    from cost_models.errors import InputError
    from meshwright.api.exporting import price_import
    from meshwright.cli.progress import searching

    if not inputs.model:
        raise InputError("TorchRec's plan has no model", hint="name it: `import plan.json MODEL CLUSTER`")
    with searching(output, time_limit) as budget:
        answer = price_import(source, inputs, budget)
    output.assumed(answer.assumptions)
    output.show(answer, files=[] if out is None else [lambda: answer.save(out)])
    if out is not None:
        output.note(f"Wrote {out}. Next: meshwright explain {out}")


import_.__name__ = "import"
