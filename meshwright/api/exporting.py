"""Plans as other trainers' files, and what those trainers run today priced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import overload

from cost_models.errors import InputError
from cost_models.files.models import read_once
from cost_models.files.recommenders import resolve_recommender
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.recommender.model import RecommenderSpec
from meshwright.answers.estimated import Estimated
from meshwright.families.recommender.imported import Imported
from meshwright.families.transformer.importing import ask_import_of
from meshwright.inputs.questions import Inputs
from planner.any_plan import AnyPlan
from planner.formats.exporter import Exported
from planner.formats.registry import exporter_named, reader_of
from planner.formats.torchrec import import_sharding
from planner.plan_files import load_any_plan
from planner.search.budget import Budget


def export(plan: str | Path | AnyPlan, to: str, *, partly: bool = False) -> Exported:
    """A plan as another trainer's file; what that has no words for is left out if a part of the plan is enough.

    Raises:
        UnknownNameError: there is no such trainer.
        InputError: the plan cannot be read, is of another kind, or has what the trainer cannot run.
        InfeasibleError: the trainer refuses the layout, or has no words for some of the plan.
    """
    exporter = exporter_named(to)
    read = plan if isinstance(plan, AnyPlan) else load_any_plan(plan)
    if (kind := type(read).model_fields["kind"].default) != exporter.plan_kind:
        raise InputError(f"`{to}` takes {exporter.noun}, not a `{kind}`")
    return exporter.write(read, "plan.yaml" if isinstance(plan, AnyPlan) else str(plan), partly)


@overload
def import_plan(
    source: str | Path,
    model: None,
    cluster: str | ClusterSpec,
    *,
    gpus: int | None = None,
    also: str = "",
    stack: str | None = None,
    profile: str | None = None,
    trainer: str | None = None,
) -> Estimated: ...


@overload
def import_plan(
    source: str | Path,
    model: RecommenderSpec,
    cluster: str | ClusterSpec,
    *,
    gpus: int | None = None,
    global_batch: int | str | None = None,
    training: str | Path | None = None,
    stack: str | None = None,
    trainer: str | None = None,
    time_limit: float = 60.0,
) -> Imported: ...


@overload
def import_plan(
    source: str | Path,
    model: str,
    cluster: str | ClusterSpec,
    *,
    gpus: int | None = None,
    global_batch: int | str | None = None,
    sequence: int | str | None = None,
    training: str | Path | None = None,
    stack: str | None = None,
    profile: str | None = None,
    trainer: str | None = None,
    time_limit: float = 60.0,
) -> Imported | Estimated: ...


def import_plan(
    source: str | Path,
    model: str | RecommenderSpec | None,
    cluster: str | ClusterSpec,
    *,
    gpus: int | None = None,
    global_batch: int | str | None = None,
    sequence: int | str | None = None,
    also: str = "",
    training: str | Path | None = None,
    stack: str | None = None,
    profile: str | None = None,
    trainer: str | None = None,
    time_limit: float = 60.0,
) -> Imported | Estimated:
    """Price what runs today.

    Without a model, `source` is a command line that starts Megatron-LM or a script that holds it, or a recipe of
    torchtitan (Python or TOML; `gpus` is to be said), never run: the answer is the estimate of what it says, with
    every assumption; `also` are further arguments. With a transformer, it is DeepSpeed's JSON, and `gpus` and
    `sequence` are to be said, or a recipe whose model is not known here. With a recommender, it is TorchRec's sharding
    plan, priced beside the best one of the same question. `gpus`, where it is said, must be as many as the source is
    for.
    `trainer` says whose it is where neither name nor words tell.

    Raises:
        InputError: the source, or what is said beside it, is wrong.
    """
    kind = reader_of(str(source), trainer)
    if kind == "torchrec" and model is None:
        raise InputError("TorchRec's plan has no model", hint="name it: `import plan.json MODEL CLUSTER`")
    inputs = Inputs(
        model=model or "",
        cluster=cluster,
        gpus=gpus,
        global_batch=global_batch,
        sequence=sequence,
        training=training,
        stack=stack,
        profile=profile,
    )
    if kind != "torchrec":
        return ask_import_of(kind, source, inputs, also).answer()
    return price_import(source, inputs, Budget(time_limit=time_limit, keep_on_interrupt=True))


def price_import(file: str | Path, inputs: Inputs, budget: Budget | None = None) -> Imported:
    """Price a sharding that runs today, and search for the best one of the same question.

    Raises:
        InputError: the file, or what is said beside it, is wrong.
    """
    from meshwright.families.recommender.asking import ask, ask_estimate
    from meshwright.inputs.goals import Goal
    from meshwright.inputs.limits import Limits
    from meshwright.inputs.plan_inputs import PlanInputs

    model = (
        inputs.model
        if isinstance(inputs.model, RecommenderSpec)
        else resolve_recommender(read_once(str(inputs.model)))
    )
    sharding, world = import_sharding(file, model)
    if inputs.gpus not in (None, world):
        raise InputError(f"`{file}` is for {world} GPUs, --gpus says {inputs.gpus}", hint="leave out --gpus")
    asked = replace(inputs, model=model, gpus=world)
    given = ask_estimate(asked, str(sharding))
    best = ask(PlanInputs(inputs=asked, gpus=str(world), limits=Limits(), goal=Goal())).answer(
        None, budget or Budget(time_limit=60.0, keep_on_interrupt=True)
    )
    return Imported(today=given.answer(), best=best, assumptions=given.assumptions)
