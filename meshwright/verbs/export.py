"""`export` and `import`: write plans as other trainers' files, and price what those trainers run today."""

from __future__ import annotations

from dataclasses import MISSING, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError
from cost_models.flags import Options, argument, as_keywords, flag, plan_file, switch
from meshwright.inputs.options import TUNING, Request, Searching
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from cost_models.specs.cluster import ClusterSpec
    from cost_models.specs.recommender.model import RecommenderSpec
    from cost_models.specs.transformer import TransformerSpec
    from meshwright.terminal.output import Output
    from meshwright.verbs.contract import PlanAnswer, PlanningQuestion
    from planner.formats.exporter import Exported
    from planner.plan import AnyPlan

_TRAINERS = "megatron, nemo, torchtitan, deepspeed, accelerate, axolotl, torchrun, slurm, torchrec"


class ExportOptions(Options):
    """Options of `export`: the plan, the trainer, and whether parts that the trainer cannot express may be left
    out."""

    plan: str | Path | AnyPlan = field(metadata=plan_file())
    """Plan file written by `meshwright plan -o`."""
    to: str = flag("TRAINER", f"{_TRAINERS}.", default=MISSING)
    partly: bool = switch()
    """Leave out what the trainer cannot express, and name it."""


@as_keywords(ExportOptions)
def export(options: ExportOptions) -> Exported:
    """Write a plan as the text of another trainer's file; parts that the trainer cannot express are left out if
    `partly`, else refused.

    Raises:
        UnknownNameError: there is no such trainer.
        InputError: the plan cannot be read, is of another kind, or has what the trainer cannot run.
        InfeasibleError: the trainer refuses the layout, or has no words for some of the plan.
    """
    from meshwright.inputs.plans import any_plan_of
    from planner.formats.registry import exporter_named
    from planner.plan import AnyPlan

    exporter, plan = exporter_named(options.to), options.plan
    read = any_plan_of(plan)
    if (kind := type(read).model_fields["kind"].default) != exporter.plan_kind:
        raise InputError(f"`{options.to}` takes {exporter.noun}, not a `{kind}`")
    exported = exporter.write(read, "plan.yaml" if isinstance(plan, AnyPlan) else str(plan), options.partly)
    return replace(exported, remarks=(*read.notes, *exported.remarks))


@command(ExportOptions, shows=("json", "quiet"), out="Default: print it.")
def export_command(options: ExportOptions, output: Output) -> None:
    """Write a plan as another trainer's file."""
    output.check_places()
    exported = export(options.plan, options.to, options.partly)
    fields = [one.record() for one in exported.fields]
    record = {"kind": "export", "to": options.to, "file": exported.text, "fields": fields}
    output.show_text(record | {"remarks": exported.remarks}, fields, exported.text, output.out)
    output.remark(exported.remarks)


class _Source(Options):
    """Options that name another trainer's command or file."""

    source: str | Path = field(metadata=argument("SOURCE"))
    """Megatron-LM command, torchtitan recipe, YAML of NeMo, accelerate, axolotl, JSON of DeepSpeed, TorchRec."""


class ImportOptions(Searching, Request, _Source):
    """Options of `import`: another trainer's command or file, model and cluster, and settings to add or ignore."""

    model: str | TransformerSpec | RecommenderSpec | None = None  # type: ignore[assignment]
    """Model; None if the source names it."""
    cluster: str | ClusterSpec = ""
    trainer: str | None = flag("TRAINER", names=("--from",), panel="subject", kw_only=True)
    """megatron, torchtitan, nemo, deepspeed, accelerate, axolotl, torchrec.

    Whose the source is, where neither name nor words tell.
    """
    also: str | None = flag("WORDS", panel="subject", kw_only=True)
    """Further arguments of the source, as one text."""
    ignore: tuple[str, ...] = flag("KEY", kind=list[str], panel="subject", kw_only=True, default=())
    """Ignore a setting of the source."""
    measured: str | float | None = flag("STEP", panel="job", kw_only=True)
    """Step that it takes: 21.4s, '38% MFU' or the job's log."""

    def question(self) -> PlanningQuestion:
        """Read the trainer's command or file as a question. Raises InputError if it, or an option beside it, is
        wrong."""
        from planner.formats.registry import reader_of

        options = {name: getattr(self, name) for name in ("model", "cluster", "gpus")}
        kind = reader_of(str(self.source), self.trainer, options)
        if kind == "torchrec":
            from meshwright.families.recommender.plan import ask_import as ask_sharding

            return ask_sharding(self)
        from meshwright.families.transformer.trainer_files import ask_import

        return ask_import(kind, self)


@as_keywords(ImportOptions)
def import_plan(options: ImportOptions) -> PlanAnswer:
    """Price the layout and job of another trainer's command or file, which is read but never run.

    Without a model, `source` is a command that starts Megatron-LM, a script with such a command, or a recipe of
    torchtitan (Python or TOML; needs `gpus`). With a transformer, it is DeepSpeed's JSON (needs `gpus` and
    `sequence`), or a recipe whose model is not in the catalogue. With a recommender, it is TorchRec's sharding plan,
    which is priced beside the best sharding of the same question.

    The answer lists every assumption. `also` are further arguments of the source. `gpus`, if given, must be the
    number of GPUs that the source is for. A setting that could change layout or memory and has no price is an error
    unless `ignore` names it. `trainer` names the trainer if neither the file's name nor its contents tell it.

    Raises:
        InputError: the source, or what is said beside it, is wrong.
    """
    return options.question().answer(options.spending)


class ImportFlags(ImportOptions, kw_only=True):
    """Options of `meshwright import`, where model and cluster are words after the source."""

    nouns: tuple[str, ...] = field(
        default=(),
        metadata=argument("[MODEL] CLUSTER", kind=list[str], command_default=MISSING, completion="clusters"),
    )
    """Cluster to price it on; before it the model, if the source names none."""


_HIDDEN = ("model", "cluster", "dropout", "optimizer", "optimizer_in_backward", "state_dtype", "confidence")


@command(ImportFlags, shows=("json", "quiet"), hides=(*_HIDDEN, *TUNING), out="Write it as a plan.")
def import_command(options: ImportFlags, output: Output) -> None:
    """Price what runs today."""
    from meshwright.terminal.progress import searching

    output.check_places()
    nouns = options.nouns
    if len(nouns) > 2:
        raise InputError(f"{len(nouns)} words behind the source", hint="it takes MODEL CLUSTER, or CLUSTER")
    question = replace(options, model=nouns[0] if len(nouns) == 2 else None, cluster=nouns[-1]).question()
    output.print_notes(question)
    with searching(output, options.time_limit) as budget:
        answer = question.answer(budget)
    output.finish(answer)
