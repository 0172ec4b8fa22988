"""NeMo's Megatron Bridge: a plan as a recipe, a module whose `plan()` is a `ConfigContainer`, and such a recipe read.

It starts from Bridge's recipe without a model of its own (`vanilla_gpt_pretrain_config`) and sets Megatron Core's
arguments, each in its part of the container. Sources: NVIDIA-NeMo/Megatron-Bridge 0.6, August 2026:
src/megatron/bridge/training/config.py, training/comm_overlap.py, training/mixed_precision.py, models/gpt_provider.py,
models/mla_provider.py, recipes/gpt/h100/vanilla_gpt.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from planner.formats import python as py
from planner.formats.exporter import Job, JobExport, Settings
from planner.formats.megatron.arguments import TABLE
from planner.formats.megatron.job import FACTS, PRECISIONS
from planner.formats.megatron.script import reading_of, write_core
from planner.formats.nemo.config_file import STACK, FileArguments
from planner.formats.python import Call, Unknown, built_by, module_of
from planner.formats.settings import Reading, ReadOptions, gpus_of, without
from planner.formats.settings import Settings as Paths
from planner.formats.target import Target
from planner.formats.torchrun import torchrun_by_hand

MARK = "megatron.bridge"
"""Package that every recipe of Bridge imports from."""
_BASE = "vanilla_gpt_pretrain_config"
_PARTS = ("model", "train", "ddp", "dist", "optimizer")
"""Parts of the container that have Megatron Core's arguments."""
_MIXES = {"fp8": "bf16_with_fp8_delayed_scaling_mixed", "fp4": "bf16_with_nvfp4_mixed"}
_MIXES |= {name: f"{name}_mixed" for name in ("bf16", "fp16")}
_MODELS = {"": False, "GPTModelProvider": False, "MLAModelProvider": True}
"""Provider of a model without settings of its own → whether its attention is latent."""
_FIRST_OF_LIST = ("cp_comm_type", "moe_router_load_balancing_type", "moe_aux_loss_coeff")
"""Arguments of Megatron-LM that take a list, and one value in Bridge."""
_WORDS = "optimizer.exp_avg_dtype optimizer.exp_avg_sq_dtype model.attention_backend model.activation_func"
"""Settings whose values are names of Python."""

_SOURCES = {_BASE: f"{MARK}.recipes.gpt", "forward_step": f"{MARK}.training.gpt_step"}
_SOURCES |= {"pretrain": f"{MARK}.training.pretrain", "MLAModelProvider": f"{MARK}.models.mla_provider"}
_SOURCES |= dict.fromkeys(_MIXES.values(), f"{MARK}.training.mixed_precision")
_SOURCES |= {"CommOverlapConfig": f"{MARK}.training.comm_overlap", "silu": "torch.nn.functional"}
_SOURCES |= {"AttnBackend": "megatron.core.transformer.enums", "squared_relu": "megatron.core.activations"}
_SOURCES["bfloat16"] = "torch"
"""Name that recipes use → module that it is imported from."""


_SEVERAL = {
    "seq_length": "model.seq_length dataset.seq_length",
    "vocab_size": "model.vocab_size tokenizer.vocab_size",
    "use_distributed_optimizer": "ddp.use_distributed_optimizer optimizer.use_distributed_optimizer",
}
"""Argument of Megatron Core → its paths in Bridge, where it has several."""
_SUMS = ("mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32")
_TRANSLATED: Mapping[str, Settings] = {
    "accumulate_allreduce_grads_in_fp32": dict.fromkeys(_SUMS, True),
    "grad_reduce_in_bf16": dict.fromkeys(_SUMS, False),
    **{one: {f"optimizer.{one}": py.Code("bfloat16")} for one in ("exp_avg_dtype", "exp_avg_sq_dtype")},
    "swiglu": {"model.gated_linear_unit": True, "model.activation_func": py.Code("silu")},
    "squared_relu": {"model.activation_func": py.Code("squared_relu")},
    "untie_embeddings_and_output_weights": {"model.share_embeddings_and_output_weights": False},
    # by the provider of the model, the numbers of groups and of chunks, and the mixed precision
    "multi_latent_attention": {},
    **{name: {} for name in ("group_query_attention", "num_layers_per_virtual_pipeline_stage", *PRECISIONS)},
    "tp_comm_overlap": {"comm_overlap": py.call("CommOverlapConfig", tp_comm_overlap=True)},
}
"""Argument of Megatron Core → settings in Bridge, where its value decides nothing more."""


def _bridge_settings(name: str, value: Any) -> Settings:
    """Settings of a Megatron Bridge configuration, path → value, for one argument of Megatron Core."""
    if name in _TRANSLATED:
        return _TRANSLATED[name]
    match name:
        case "train_samples":
            return {"train.train_iters": None, "train.train_samples": value}
        case "make_vocab_size_divisible_by":
            return {"model.should_pad_vocab": True, "model.make_vocab_size_divisible_by": value}
        case "attention_backend":
            value = py.Code(f"AttnBackend.{value}")
        case "cp_comm_type":
            value = value[0]
    path = TABLE.arguments[name].spellings.get("bridge", f"model.{name}")
    return dict.fromkeys(_SEVERAL.get(name, path).split(), value)


def _file(job: Job, settings: Settings, name: str) -> tuple[str, ...]:
    latent = settings.get("multi_latent_attention")
    values: dict[str, Any] = {"model": py.call("MLAModelProvider")} if latent else {}
    mix = next((mix for precision, mix in _MIXES.items() if settings.get(precision)), None)
    values["mixed_precision"] = mix and py.call(mix)
    if job.layout.vpp > 1:
        values["model.virtual_pipeline_model_parallel_size"] = job.layout.vpp
    for argument, value in settings.items():
        values |= _bridge_settings(argument, value)
    body = [("config", py.call(_BASE)), *((f"config.{path}", value) for path, value in values.items())]
    about = f"{name} for NeMo's Megatron Bridge, as `meshwright export --to nemo` wrote it."
    return (
        py.module(about, _SOURCES, body, "if __name__ == '__main__':\n    pretrain(plan(), forward_step)"),
        "data (here mock), tokenizer, learning rate and checkpoints are yours: change `config` at its end",
        f"run it as recipe.py: {torchrun_by_hand(job)} recipe.py",
    )


def _export(export: JobExport) -> None:
    write_core(export)
    model, length = export.job.model, export.job.training.sequence_length
    difference = f"its table of positions is as long as a sequence, {length:,}"
    is_shorter = model.positions == "learned" and length != model.max_positions
    export.sets("model.max_positions", differs=difference if is_shorter else "")
    export.supports({"model.positions": ("it has learned and rotary positions", "learned", "rotary")})


TARGET = Target("nemo", "NeMo (Megatron Bridge 0.6)", _export, FACTS, _file, "megatron")


def read_bridge(text: str, options: ReadOptions) -> Reading:
    """Read a Megatron Bridge recipe as model, training job, layout and stack.

    Raises:
        InputError: the file has no recipe, or one that starts from what only Bridge knows, or contradicts itself.
    """
    world, config = gpus_of("recipe", options.gpus), _recipe(text)
    mix, values = _mix(config.fields.pop("mixed_precision", "bf16_mixed")), _values(config)
    file = FileArguments(settings=Paths(without(values | options.also, options.ignore), TABLE))
    _take_all(file)
    for name in mix:
        file.assign(name, {"fp8": "hybrid", "fp4": "nvfp4"}.get(name, True), "mixed_precision")
    for name in ("overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer"):
        file.values.setdefault(name, False)
    overlaps = config.fields.get("comm_overlap")
    inside = isinstance(overlaps, Call) and overlaps.fields.get("tp_comm_overlap") is True
    file.assign("tp_comm_overlap", inside, "comm_overlap")
    in_fp32 = values.get("mixed_precision.grad_reduce_in_fp32", values.get("ddp.grad_reduce_in_fp32", True))
    name = "accumulate_allreduce_grads_in_fp32" if in_fp32 else "grad_reduce_in_bf16"
    file.assign(name, True, "grad_reduce_in_fp32")
    file.finish("recipe", "bridge")
    return reading_of(file, world, load_stack(options.stack or STACK))


def _recipe(text: str) -> Call:
    module = module_of(text)
    built = {name: built_by(module, name) for name, node in module.functions.items() if not node.args.args}
    calls = ((name, call) for name, call in built.items() if isinstance(call, Call))
    recipes = [(name, call) for name, call in calls if call.name.endswith("_config")]
    if len(recipes) != 1:
        count = f"{len(recipes) or 'no'} recipe{'s' if len(recipes) > 1 else ''}"
        hint = "a function that starts from one of its recipes and returns it"
        raise InputError(f"the file has {count} of Megatron Bridge", hint=hint)
    ((name, recipe),) = recipes
    if recipe.name != _BASE:
        hint = f"start from `{_BASE}` and write out what the other sets"
        raise InputError(f"`{name}` starts from `{recipe.name}`, whose settings only Bridge has", hint=hint)
    return recipe


def _mix(mix: Any) -> tuple[str, ...]:
    """Megatron-LM precisions ("bf16", "fp8", ...) of a Megatron Bridge mixed-precision recipe."""
    name = mix.name if isinstance(mix, Call) else mix
    if str(name).startswith(("bf16_with_fp8", "bf16_with_mxfp8")):
        name = _MIXES["fp8"]
    precision = next((precision for precision, mix in _MIXES.items() if mix == name), "fp32")
    if precision == "fp32" and name is not None:
        raise InputError(f"`mixed_precision: {printable(str(name))}` is not known here")
    return tuple(PRECISIONS[precision])


def _values(config: Call) -> dict[str, Any]:
    """Settings of a recipe by path; a Python name such as `torch.bfloat16` is reduced to the last part."""
    model = config.fields.get("model")
    if isinstance(model, Call) and model.name not in _MODELS:
        hint = "write them out on a `GPTModelProvider`"
        raise InputError(f"`{model.name}` has settings that only Bridge has", hint=hint)
    values: dict[str, Any] = {}
    for part, part_values in config.fields.items():
        if isinstance(part_values, Call):
            values |= {f"{part}.{name}": _plain(value) for name, value in part_values.fields.items()}
        else:
            values[part] = part_values
    if isinstance(model, Call) and _MODELS[model.name]:
        values["model.multi_latent_attention"] = True
    for path in _WORDS.split():
        if isinstance(values.get(path), Unknown):
            values[path] = str(values[path]).rpartition(".")[2].replace("bfloat16", "bf16")
    return values


def _plain(value: Any) -> Any:
    return Unknown(f"{value.name}(..)") if isinstance(value, Call) else value


def _take_all(file: FileArguments) -> None:
    if (kind := file.setting("model.activation_func")) == "squared_relu":
        file.assign("squared_relu", True, "activation_func: squared_relu")
    elif kind not in (None, "silu", "gelu"):
        raise InputError(f"`model.activation_func: {printable(str(kind))}` is not known here")
    renamed = {path.rpartition(".")[2]: name for path, name in TABLE.spelled("bridge").items()}
    del renamed["bias_activation_fusion"]  # one of two arguments, by the activation
    for path, value in file.settings.values.items():
        part, _, name = path.partition(".")
        name = renamed.get(name, name)
        if part not in _PARTS or TABLE.fate(path, "bridge") is not None or name in file.values:
            continue
        if name in _FIRST_OF_LIST and not isinstance(value, list | Unknown | None):
            file.assign(name, (str(file.setting(path)),), f"{path}: {value}")
        elif name in TABLE.arguments:
            file.take(path, name)
    file.take_implied()
