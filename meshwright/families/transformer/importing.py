"""Transformers that another trainer runs today: what its command says, as a question and a layout to price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.defaults import assumed_dropout, complete_question
from cost_models.documents import Document
from cost_models.errors import InputError, Problem
from cost_models.files.amounts import read_sequence
from cost_models.files.models import LoadedModel, resolve_model
from cost_models.files.reading import read_document, read_text
from cost_models.question import Question
from cost_models.specs.pools import MixedCluster
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.transformer import TransformerSpec
from meshwright.families.transformer.estimate import EstimateQuestion
from meshwright.inputs import questions
from meshwright.verbs.export import ImportOptions
from planner.formats.accelerate.reading import read_accelerate
from planner.formats.axolotl.reading import read_axolotl
from planner.formats.deepspeed.reading import read_deepspeed
from planner.formats.megatron.launches import launch_of
from planner.formats.megatron.script import read_megatron
from planner.formats.nemo.config_file import KEYS, read_nemo
from planner.formats.nemo.recipe import read_bridge
from planner.formats.reading.settings import Reading, without
from planner.formats.registry import is_command
from planner.formats.torchtitan.reading import read_torchtitan
from planner.formats.torchtitan.recipes import read_recipe

_SAID = {
    "model": "MODEL",
    "global_batch": "--global-batch",
    "sequence": "--sequence",
    "precision": "--precision",
    "training": "--training",
}
"""What the command itself says."""


def ask_import(kind: str, options: ImportOptions) -> EstimateQuestion:
    """Read what a trainer of transformers runs; nothing of it is run.

    Raises:
        InputError: the source, or what is said beside it, is wrong.
    """
    if options.also is not None and kind in ("deepspeed", "axolotl"):
        raise InputError("--also: a file of settings takes no arguments", hint="leave it out")
    reads = {
        "deepspeed": _deepspeed_config,
        "accelerate": _accelerate_config,
        "axolotl": _axolotl_config,
        "torchtitan": _torchtitan_recipe,
        "nemo": _nemo_file,
    }
    return reads.get(kind, _megatron_command)(options)


def _megatron_command(request: ImportOptions) -> EstimateQuestion:
    """Read a command that starts Megatron-LM, or the script that holds it; nothing of it is run.

    Raises:
        InputError: the command cannot be read, contradicts itself or what is said beside it.
    """
    _require_unsaid(request, tuple(_SAID), "command")
    text = str(request.source) if is_command(str(request.source)) else read_text(Path(request.source))
    reading = read_megatron(
        launch_of(text, request.also or "", {"cluster": request.cluster, "gpus": request.gpus}),
        gpus=questions.single_count(request.gpus),
        stack=request.stack,
        ignore=request.ignore,
    )
    return _asked(reading, request)


def _deepspeed_config(request: ImportOptions) -> EstimateQuestion:
    """Read DeepSpeed's JSON for the model that is named.

    Raises:
        InputError: the file cannot be read or contradicts itself; what it does not have is not said.
    """
    _require_unsaid(request, ("global_batch", "precision", "training"), "file")
    gpus = questions.single_count(request.gpus)
    _require_said(request, "DeepSpeed", ("model", "sequence", "gpus"))
    assert gpus is not None
    return _with_model(
        request,
        lambda model: read_deepspeed(
            _document(request, "DeepSpeed"),
            model,
            gpus=gpus,
            sequence=_sequence(request),
            stack=request.stack,
        ),
    )


def _accelerate_config(request: ImportOptions) -> EstimateQuestion:
    """Read accelerate's YAML for the model that is named, with arguments of its program.

    Raises:
        InputError: the file cannot be read or contradicts itself; what it does not have is not said.
    """
    _require_unsaid(request, ("global_batch", "precision", "training"), "file")
    _require_said(request, "accelerate", ("model", "sequence"))
    return _with_model(
        request,
        lambda model: read_accelerate(
            _document(request, "accelerate"),
            model,
            sequence=_sequence(request),
            also=request.also or "",
            stack=request.stack,
        ),
    )


def _axolotl_config(request: ImportOptions) -> EstimateQuestion:
    """Read axolotl's YAML for the model that is named.

    Raises:
        InputError: the file cannot be read or contradicts itself; what it does not have is not said.
    """
    _require_unsaid(request, ("global_batch", "sequence", "precision", "training"), "file")
    gpus = questions.single_count(request.gpus)
    _require_said(request, "axolotl", ("model", "gpus"))
    assert gpus is not None
    document = _document(request, "axolotl")
    return _with_model(request, lambda model: read_axolotl(document, model, gpus=gpus, stack=request.stack))


def _require_said(request: ImportOptions, trainer: str, names: tuple[str, ...]) -> None:
    """Raise InputError for what the trainer's file does not say and nobody else did."""
    flags = {"model": "MODEL", "sequence": "--sequence", "gpus": "--gpus"}
    if missing := [Problem(flags[name], "missing") for name in names if not getattr(request, name)]:
        raise InputError(f"{trainer}'s file does not say all", problems=missing)


def _document(request: ImportOptions, trainer: str) -> dict[str, Any]:
    document = read_document(request.source).value
    if not isinstance(document, dict):
        raise InputError(f"`{request.source}` is no file of {trainer}")
    return without(document, request.ignore)


def _sequence(request: ImportOptions) -> int:
    assert request.sequence is not None
    try:
        return int(read_sequence(request.sequence))
    except ValueError as error:
        raise InputError(f"--sequence: {error}") from None


def _with_model(request: ImportOptions, read: Callable[[TransformerSpec], Reading]) -> EstimateQuestion:
    """What a file says of the model that is named beside it, with the dropout of that model."""
    assert not isinstance(request.model, RecommenderSpec), "the file is of a transformer"
    named = request.model
    assert named is not None
    model = resolve_model(named) if isinstance(named, (str, Document)) else LoadedModel(spec=named)
    reading = read(model.spec)
    training, dropped = questions.with_dropout_of(model, reading.training)
    assumptions = (*model.assumptions, *reading.assumptions, *dropped)
    return _asked(replace(reading, training=training, assumptions=assumptions), request)


def _torchtitan_recipe(request: ImportOptions) -> EstimateQuestion:
    """Read a recipe of torchtitan, a Python file or TOML; nothing of it is run.

    Raises:
        InputError: it cannot be read, contradicts itself or what is said beside it.
    """
    said = tuple(name for name in _SAID if name != "model")
    _require_unsaid(request, said, "recipe")
    recipe = read_recipe(read_text(Path(request.source)), str(request.source), request.also or "")
    recipe = replace(recipe, settings=without(recipe.settings, request.ignore))
    named = request.model
    assert not isinstance(named, RecommenderSpec), "torchtitan trains transformers"
    model = resolve_model(named) if isinstance(named, str) and named else None
    spec = model.spec if model is not None else named if isinstance(named, TransformerSpec) else None
    reading = read_torchtitan(
        recipe, gpus=questions.single_count(request.gpus), stack=request.stack, model=spec
    )
    first = model.assumptions if model is not None else ()
    return _asked(replace(reading, assumptions=(*first, *reading.assumptions)), request)


def _nemo_file(request: ImportOptions) -> EstimateQuestion:
    """Read what NeMo trains: the YAML of a GPT of NeMo 1, or a recipe of Megatron Bridge, which is not run.

    Raises:
        InputError: it cannot be read, contradicts itself or what is said beside it.
    """
    _require_unsaid(request, tuple(_SAID), "file")
    gpus, also = questions.single_count(request.gpus), request.also or ""
    if Path(request.source).suffix == ".py":
        recipe = read_bridge(
            read_text(request.source),
            gpus=questions.single_count(request.gpus),
            stack=request.stack,
            also=request.also or "",
            ignore=request.ignore,
        )
        return _asked(recipe, request)
    document = _document(request, "NeMo")
    if not document.keys() >= KEYS:
        raise InputError(f"`{request.source}` is no file of NeMo", hint="it has `trainer` and `model`")
    return _asked(
        read_nemo(document, gpus=gpus, stack=request.stack, also=also),
        request,
    )


def _require_unsaid(request: ImportOptions, names: tuple[str, ...], what: str) -> None:
    if twice := [_SAID[name] for name in names if getattr(request, name)]:
        problems = [Problem(one, f"the {what} says it") for one in twice]
        raise InputError(f"said beside a {what} that says it", problems=problems, hint="leave it out")


def _asked(reading: Reading, request: ImportOptions) -> EstimateQuestion:
    cluster = questions.cluster_of(request.cluster, reading.layout.num_gpus)
    if isinstance(cluster, MixedCluster):
        raise InputError("the trainer runs on one kind of GPU, and the cluster has several pools")
    cluster = questions.with_host_memory(cluster, questions.read_host_memory(request.host_memory))
    question: Question = complete_question(
        reading.model, cluster, reading.training, stack=reading.stack, profile=request.profile
    )
    ignored = [f"no effect of `{key}`, which --ignore leaves out of the price" for key in request.ignore]
    assumptions = (*ignored, *reading.assumptions, *assumed_dropout(reading.training, question))
    return EstimateQuestion(question=question, layout=str(reading.layout), assumptions=assumptions)
