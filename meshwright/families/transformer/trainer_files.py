"""`import` for transformers: read the layout and job from another trainer's command or files, without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.defaults import assumed_dropout, complete_question
from cost_models.documents import printable
from cost_models.errors import InputError, Problem, UnknownNameError
from cost_models.files.loading import read_sequence
from cost_models.files.reading import read_document, read_text
from cost_models.specs.cluster import MixedCluster
from meshwright.families.transformer.estimate import Estimated
from meshwright.inputs import questions
from meshwright.inputs.measured import with_measured
from meshwright.inputs.problems import read_flag, refuse, require_given
from meshwright.verbs.contract import option_word
from meshwright.verbs.export import ImportOptions
from planner.formats.deepspeed import read_deepspeed
from planner.formats.fsdp2 import read_accelerate, read_axolotl
from planner.formats.launches import launch_of
from planner.formats.megatron import read_megatron
from planner.formats.nemo import overrides, read_bridge, read_nemo
from planner.formats.registry import MARKS, is_command
from planner.formats.settings import Reading, ReadOptions, also_settings, by_path, without
from planner.formats.torchtitan import read_torchtitan

_REPEATED = ("model", "global_batch", "sequence", "precision", "training")
"""Options of `import` that a trainer's command already states."""
_OF_SETTINGS = {
    "deepspeed": (read_deepspeed, ""),
    "accelerate": (read_accelerate, "deepspeed_config"),
    "axolotl": (read_axolotl, "deepspeed"),
}
"""Trainer with a settings file → its reader, and the key under which the file holds or names a DeepSpeed file."""


def ask_import(kind: str, options: ImportOptions) -> Estimated:
    """Read the command or files of another trainer for transformers, without running it.

    Raises:
        InputError: the source cannot be read, or contradicts itself or what is said beside it.
    """
    reads = {"torchtitan": _torchtitan_recipe, "nemo": _nemo_file, "megatron": _megatron_command}
    reading = _settings_file(kind, options) if kind in _OF_SETTINGS else reads[kind](options)
    layout = reading.layout
    if layout.zero and layout.shard_group == 1:
        idle = f"ZeRO-{layout.zero} shards over a single replica, which is nothing: zero0"
        layout = layout.model_copy(update={"zero": 0, "shard": None})
        reading = replace(reading, assumptions=(*reading.assumptions, idle))
    cluster = questions.cluster_of(options.cluster, layout.num_gpus, options.host_memory)
    if isinstance(cluster, MixedCluster):
        raise InputError("the trainer runs on one kind of GPU, and the cluster has several pools")
    parts = reading.model, cluster, reading.training
    question = complete_question(*parts, stack=reading.stack, profile=options.profile)
    ignored = [f"no effect of `{key}`, which --ignore leaves out of the price" for key in options.ignore]
    assumptions = (*ignored, *reading.assumptions, *assumed_dropout(reading.training, question))
    if options.measured is not None:
        question = with_measured(question, str(layout), options.measured)
    return Estimated(question=question, layout=str(layout), assumptions=assumptions)


def _megatron_command(request: ImportOptions) -> Reading:
    """Read a command that starts Megatron-LM, or a script with that command."""
    _require_unsaid(request, _REPEATED, "command")
    text = str(request.source) if is_command(str(request.source)) else read_text(Path(request.source))
    launch = launch_of(text, request.also or "", {"cluster": request.cluster, "gpus": request.gpus})
    gpus = questions.single_count(request.gpus)
    return read_megatron(launch, gpus=gpus, stack=request.stack, ignore=request.ignore)


def _settings_file(kind: str, request: ImportOptions) -> Reading:
    """Read a settings file of DeepSpeed, accelerate or axolotl, for the given model, else the model that the file
    names."""
    read, place = _OF_SETTINGS[kind]
    stated = ("sequence",) if kind == "axolotl" else ()
    _require_unsaid(request, ("global_batch", "precision", "training", *stated), "file")
    document = _with_file(request, kind, place)
    base: Any = request.model or document.get("base_model")
    flags = {"MODEL": base, "--sequence": request.sequence or bool(stated)}
    hint = "the model goes before the cluster: llama3.1-8b dgx-h100 --sequence 4K"
    require_given(flags, f"{kind}'s file does not say all", hint)
    try:
        model = questions.loaded_model(base)
    except UnknownNameError as error:
        if request.model:
            raise
        hint = "name one of the catalogue before the cluster, or a folder with its config.json"
        raise InputError(f"`base_model: {base}`: {error.headline}", hint=hint) from None
    node = getattr(questions.cluster_of(request.cluster), "gpus_per_node", 1)
    sequence = 0 if stated else int(read_flag("--sequence", request.sequence, read_sequence) or 0)
    options = replace(_options(request, also_settings), node=node, sequence=sequence)
    reading = read(document, model.spec, options)
    training, dropped = questions.with_dropout_of(model, reading.training)
    assumptions = (*model.assumptions, *reading.assumptions, *dropped)
    return replace(reading, training=training, assumptions=assumptions)


def _with_file(request: ImportOptions, kind: str, place: str) -> dict[str, Any]:
    """Settings file as a dictionary, with the DeepSpeed file that it names read into it, and without the keys of
    `--ignore`. The DeepSpeed file lies beside the settings file, or in the working directory.

    Raises:
        InputError: either cannot be read, or --ignore names what is in neither.
    """
    document = _document(request.source, kind)
    if place in request.ignore:
        return without(document, request.ignore)
    inner = document.get(place) or {}
    name = inner.get(f"{place}_file") if isinstance(inner, dict) else inner
    if name:
        places = [Path(request.source).parent / str(name), Path(str(name))]
        if not (files := [one for one in places if one.is_file()]):
            text = f"`{printable(str(name))}`, which `{request.source}` names, is not there"
            raise InputError(text, hint="put it beside that file")
        inner = _document(files[0], "deepspeed")
    paths = [f"{path}." for path, _ in by_path(inner)]
    keys = [key for key in request.ignore if any(path.startswith(f"{key}.") for path in paths)]
    base = {key: value for key, value in document.items() if key != place}
    return without(base, [key for key in request.ignore if key not in keys]) | {place: without(inner, keys)}


def _document(source: str | Path, trainer: str) -> dict[str, Any]:
    """Read a file as a dictionary. Raises InputError if it is no file of the trainer."""
    document = read_document(source).value
    if not isinstance(document, dict):
        raise InputError(f"`{source}` is no file of {trainer}")
    return document


def _options(request: ImportOptions, parse: Callable[[str], dict[str, Any]]) -> ReadOptions:
    """Options given beside a trainer's file; `parse` reads `--also` in the trainer's notation."""
    gpus, also = questions.single_count(request.gpus), parse(request.also or "")
    return ReadOptions(gpus=gpus, also=also, stack=request.stack, ignore=request.ignore)


def _torchtitan_recipe(request: ImportOptions) -> Reading:
    """Read a recipe of torchtitan, a Python file or TOML."""
    _require_unsaid(request, _REPEATED[1:], "recipe")
    text, options = read_text(Path(request.source)), _options(request, also_settings)
    model = questions.loaded_model(request.model) if request.model else None
    reading = read_torchtitan(text, str(request.source), model.spec if model else None, options)
    return replace(reading, assumptions=(*(model.assumptions if model else ()), *reading.assumptions))


def _nemo_file(request: ImportOptions) -> Reading:
    """Read a file of NeMo: YAML of a GPT of NeMo 1, or a recipe of Megatron Bridge."""
    _require_unsaid(request, _REPEATED, "file")
    options = _options(request, overrides)
    if Path(request.source).suffix == ".py":
        return read_bridge(read_text(request.source), options)
    document = without(_document(request.source, "NeMo"), request.ignore)
    if not document.keys() >= MARKS["nemo"]:
        raise InputError(f"`{request.source}` is no file of NeMo", hint="it has `trainer` and `model`")
    return read_nemo(document, options)


def _require_unsaid(request: ImportOptions, names: tuple[str, ...], source: str) -> None:
    """Raise InputError if options are given that the trainer's source already states."""
    twice = [option_word(name) for name in names if getattr(request, name)]
    problems = [Problem(option, f"the {source} says it") for option in twice]
    refuse(f"said beside a {source} that says it", problems, "leave it out")
