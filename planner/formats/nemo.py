"""NeMo: import of NeMo 1's YAML of a GPT, and export and import of recipes of Megatron Bridge.

NeMo 1 has nearly Megatron-LM's names. Sources: NVIDIA/NeMo 2.0:
examples/nlp/language_modeling/conf/megatron_gpt_config.yaml,
nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py, megatron_base_model.py; NVIDIA/dgxc-benchmarking.

A recipe of Megatron Bridge is a module whose `plan()` is a `ConfigContainer`. What is written starts from Bridge's
recipe without a model of its own (`vanilla_gpt_pretrain_config`) and sets Megatron Core's arguments, each in its part
of the container. Sources: NVIDIA-NeMo/Megatron-Bridge 0.6, August 2026: src/megatron/bridge/training/config.py,
training/comm_overlap.py, training/mixed_precision.py, models/gpt_provider.py, models/mla_provider.py,
recipes/gpt/h100/vanilla_gpt.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.units import LARGEST
from planner.formats.exporter import Job, JobExport, Target, Written
from planner.formats.megatron import FACTS, PRECISIONS, reading_of, write_core
from planner.formats.megatron_arguments import TABLE, Arguments
from planner.formats.python import Call, Code, Unknown, built_by, call_source, module_of, module_source
from planner.formats.settings import (
    Argument,
    Fate,
    Reading,
    ReadOptions,
    Settings,
    also_words,
    by_path,
    gpus_of,
    literal,
    without,
)
from planner.formats.torchrun import torchrun_by_hand

_TYPES: dict[str, type | UnionType] = {"switch": bool, "off": bool, "whole": int, "share": int | float}
_TYPES |= {"name": str, "list": list, "pattern": int | list}
"""Python types of the values of an argument of Megatron-LM in a file, by kind of argument."""


@dataclass(slots=True)
class FileArguments(Arguments):
    """Megatron-LM arguments derived from the settings of a NeMo file or recipe."""

    settings: Settings = field(kw_only=True)

    def setting(self, path: str, default: Any = None, row: Argument | None = None) -> Any:
        """Value of a setting. A value that is only known when the program starts is recorded as a problem (of
        the `row`'s argument)."""
        value, reason = self.settings.get(path), ""
        if isinstance(value, Unknown):
            reason = f"only Python knows what `{value}` is"
        elif isinstance(value, str) and "${" in value:
            reason = f"`{value}` is filled in when the program starts"
        if reason:
            self.refuse(path, reason, row)
        return default if value is None or reason else value

    def take(self, path: str, name: str) -> None:
        """Copy the setting at `path` to the Megatron-LM argument `name`, if it is present and of the right
        type."""
        row = TABLE.arguments[name]
        value, kind = self.setting(path, row=row), row.kind
        words = f"{path}: {printable(str(value))}"
        if kind == "whole" and isinstance(value, float) and value.is_integer():
            value = int(value)
        fits = isinstance(value, _TYPES[kind]) and (kind in ("switch", "off")) == isinstance(value, bool)
        if fits and isinstance(value, list):
            fits = bool(value) and all(isinstance(one, int if kind == "pattern" else str) for one in value)
        elif fits and kind in ("whole", "share", "pattern"):
            fits = abs(value) <= LARGEST
        if fits:
            self.assign(name, tuple(value) if isinstance(value, list) else value, words)
        elif value is not None:
            self.refuse(path if row.why else words, "is no value of this setting", row)

    def add_implied(self) -> None:
        """Add arguments that follow from other settings: the fusion of bias and activation, an untied output
        head, and grouped queries."""
        fusion = "bias_swiglu_fusion" if self.get("swiglu") else "bias_gelu_fusion"
        self.take("model.bias_activation_fusion", fusion)
        if not self.setting("model.share_embeddings_and_output_weights", True):
            words = "share_embeddings_and_output_weights: False"
            self.assign("untie_embeddings_and_output_weights", True, words)
        if self.has("num_query_groups"):
            self.assign("group_query_attention", True, self.flags["num_query_groups"])

    def finish(self, source: str, column: str) -> None:
        """Record all unread settings as unused, each with its treatment in the table. A setting is looked up
        by its path in `column`, then by its Megatron-LM name. Raises InputError with all settings of the
        `source` that could not be read."""
        if self.problems:
            hint = '--also "model.KEY=VALUE" says one'
            raise InputError(f"the {source} cannot be read", problems=self.problems, hint=hint)

        def fate(path: str) -> Fate | None:
            """Treatment of an unused setting by its path or Megatron-LM name."""
            return TABLE.fate(path, column) or TABLE.fate(path.partition(".")[2])

        self.unpriced += self.settings.unused(fate)


def overrides(text: str) -> dict[str, Any]:
    """Parse overrides such as `model.fp8=True trainer.num_nodes=4` into values by path."""
    values: dict[str, Any] = {}
    for word in also_words(text):
        path, equals, value = word.lstrip("+").partition("=")
        if not equals or path.startswith(("-", "~")):
            raise InputError(f"--also: `{printable(word)}` is no setting like `model.global_batch_size=512`")
        values[path] = literal(value)
    return values


STACK = "nemo"
_NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}
_GATED, _OTHER_GATES = ("swiglu", "fast-swiglu"), ("geglu", "fast-geglu")
_ACTIVATIONS = {"gelu": {}, "squared-relu": {"squared_relu": True}}
_ACTIVATIONS |= {name: {"swiglu": True} for name in _GATED + _OTHER_GATES}
_PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16"}
_CHOICES: Mapping[tuple[str, str], Mapping[str, Written]] = {
    ("model.normalization", "layernorm1p"): {name: {"normalization": norm} for name, norm in _NORMS.items()},
    ("model.activation", "gelu"): _ACTIVATIONS,
    ("trainer.precision", "32"): {"32": {}} | {name: {kind: True} for name, kind in _PRECISIONS.items()},
}
"""Megatron-LM arguments for each value of a setting, by the setting's path and default."""
_SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
_UNSHARDED = ("fused_adam", "megatron_fused_adam", "adam", "adamw")


def read_nemo(document: Mapping[str, Any], options: ReadOptions) -> Reading:
    """Read a NeMo configuration file as model, training job, layout and stack. Missing settings are as in
    NeMo's `megatron_gpt_config.yaml`.

    Raises:
        InputError: it lacks what a price needs, or contradicts itself.
    """
    values = dict(by_path(document)) | options.also
    file = FileArguments(settings=Settings({path: _resolve(path, values) for path in values}, TABLE))
    for path, name in TABLE.spelled("nemo").items():
        file.take(f"model.{path}", name)
    for (path, default), choices in _CHOICES.items():
        value = str(file.setting(path, default))
        if value not in choices:
            raise InputError(f"`{path}: {value}` is not known here")
        for name, argument in choices[value].items():
            file.assign(name, argument, f"{path}: {value}")
        file.assume(f"`{value}` as swiglu", when=value in _OTHER_GATES)
    file.take("model.num_query_groups", "num_query_groups")
    file.add_implied()
    if not file.has("seq_length") or isinstance(file.settings.get("model.data.seq_length"), int):
        file.take("model.data.seq_length", "seq_length")
    if file.setting("model.fsdp", False):
        raise InputError("`model.fsdp` is not priced here", hint="`import` reads torchtitan's recipes")
    if file.setting("model.fp8", False):
        file.assign("fp8", "hybrid", "model.fp8: True")
    _add_optimizer(file)
    file.take("trainer.max_steps", "train_iters")
    file.tokenizer = str(file.settings.get("model.tokenizer.type"))
    file.settings.read |= {"trainer.num_nodes", "trainer.devices"}
    file.finish("file", "nemo")
    if not file.has("vocab_size") and file.tokenizer != "GPT2BPETokenizer":
        hint = '--also "model.override_vocab_size=128256" says it'
        raise InputError("the file leaves the size of the vocabulary to its tokenizer", hint=hint)
    return reading_of(file, _world(file.settings, options.gpus), load_stack(options.stack or STACK))


def _resolve(path: str, values: Mapping[str, Any]) -> Any:
    """Value at a path; a reference such as `${model.encoder_seq_length}` or `${.encoder_seq_length}` is
    replaced by its value, once."""
    reference = re.fullmatch(r"\$\{(\.*)([\w.]+)\}", str(values[path]), re.ASCII)
    if reference is None:
        return values[path]
    parents = path.split(".")[: -len(reference[1])] if reference[1] else []
    return values.get(".".join([*parents, reference[2]]), values[path])


def _world(settings: Settings, gpus: int | None) -> int:
    """Number of GPUs: the file's nodes times devices, or else the user's."""
    nodes, per_node = settings.integer("trainer.num_nodes"), settings.integer("trainer.devices")
    if nodes is None or per_node is None:
        return gpus_of("file", gpus)
    if gpus not in (None, nodes * per_node):
        fitting = max(1, (gpus or per_node) // per_node)
        hint = f'--also "trainer.num_nodes={fitting}" says another number of nodes'
        raise InputError(f"the file is for {nodes * per_node} GPUs, --gpus says {gpus}", hint=hint)
    return int(nodes * per_node)


def _add_optimizer(file: FileArguments) -> None:
    """Add the optimizer's arguments: sharding of its states, overlap, and type of gradients."""
    optimizer = str(file.setting("model.optim.name", "fused_adam"))
    if optimizer not in (*_SHARDED, *_UNSHARDED):
        raise InputError(f"`model.optim.name: {optimizer}` is not priced here", hint="Adam is")
    is_sharded = optimizer in _SHARDED
    file.assign("use_distributed_optimizer", is_sharded, f"optim.name: {optimizer}")
    for path, name in (("grad_sync", "grad_reduce"), ("param_sync", "param_gather")):
        overlaps = is_sharded and bool(file.setting(f"model.optim.overlap_{path}", False))
        file.assign(f"overlap_{name}", overlaps, f"optim.overlap_{path}")
    if str(file.setting("model.optim.grad_sync_dtype", "")).startswith("bf16"):
        file.assign("grad_reduce_in_bf16", True, "optim.grad_sync_dtype: bf16")
    elif is_sharded:
        file.assign("accumulate_allreduce_grads_in_fp32", True, "optim.grad_sync_dtype")


_BRIDGE = "megatron.bridge"
_BASE = "vanilla_gpt_pretrain_config"
_PARTS = ("model", "train", "ddp", "dist", "optimizer")
"""Parts of the configuration that have Megatron Core's arguments."""
_MIXES = {"fp8": "bf16_with_fp8_delayed_scaling_mixed", "fp4": "bf16_with_nvfp4_mixed"}
_MIXES |= {name: f"{name}_mixed" for name in ("bf16", "fp16")}
_MODELS = {"": False, "GPTModelProvider": False, "MLAModelProvider": True}
"""Whether attention is latent, for each provider of models without preset sizes."""
_FIRST_OF_LIST = ("cp_comm_type", "moe_router_load_balancing_type", "moe_aux_loss_coeff")
"""Arguments that are lists in Megatron-LM and single values in Bridge."""
_WORDS = "optimizer.exp_avg_dtype optimizer.exp_avg_sq_dtype model.attention_backend model.activation_func"
"""Settings whose values are Python names."""

_SOURCES = {_BASE: f"{_BRIDGE}.recipes.gpt", "forward_step": f"{_BRIDGE}.training.gpt_step"}
_SOURCES |= {"pretrain": f"{_BRIDGE}.training.pretrain", "MLAModelProvider": f"{_BRIDGE}.models.mla_provider"}
_SOURCES |= dict.fromkeys(_MIXES.values(), f"{_BRIDGE}.training.mixed_precision")
_SOURCES |= {"CommOverlapConfig": f"{_BRIDGE}.training.comm_overlap", "silu": "torch.nn.functional"}
_SOURCES |= {"AttnBackend": "megatron.core.transformer.enums", "squared_relu": "megatron.core.activations"}
_SOURCES["bfloat16"] = "torch"
"""Module from which each name in recipes is imported."""


_SEVERAL = {
    "seq_length": "model.seq_length dataset.seq_length",
    "vocab_size": "model.vocab_size tokenizer.vocab_size",
    "use_distributed_optimizer": "ddp.use_distributed_optimizer optimizer.use_distributed_optimizer",
}
"""Paths in Bridge of each argument of Megatron Core that has several."""
_SUMS = ("mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32")
_TRANSLATED: Mapping[str, Written] = {
    "accumulate_allreduce_grads_in_fp32": dict.fromkeys(_SUMS, True),
    "grad_reduce_in_bf16": dict.fromkeys(_SUMS, False),
    **{one: {f"optimizer.{one}": Code("bfloat16")} for one in ("exp_avg_dtype", "exp_avg_sq_dtype")},
    "swiglu": {"model.gated_linear_unit": True, "model.activation_func": Code("silu")},
    "squared_relu": {"model.activation_func": Code("squared_relu")},
    "untie_embeddings_and_output_weights": {"model.share_embeddings_and_output_weights": False},
    # by the provider of the model, the numbers of groups and of chunks, and the mixed precision
    "multi_latent_attention": {},
    **{name: {} for name in ("group_query_attention", "num_layers_per_virtual_pipeline_stage", *PRECISIONS)},
    "tp_comm_overlap": {"comm_overlap": call_source("CommOverlapConfig", tp_comm_overlap=True)},
}
"""Settings in Bridge of each argument of Megatron Core for which they are always the same."""


def _bridge_settings(name: str, value: Any) -> Written:
    """Settings of a Megatron Bridge configuration that express one argument of Megatron Core, by path."""
    if name in _TRANSLATED:
        return _TRANSLATED[name]
    match name:
        case "train_samples":
            return {"train.train_iters": None, "train.train_samples": value}
        case "make_vocab_size_divisible_by":
            return {"model.should_pad_vocab": True, "model.make_vocab_size_divisible_by": value}
        case "attention_backend":
            value = Code(f"AttnBackend.{value}")
        case "cp_comm_type":
            value = value[0]
    path = TABLE.arguments[name].spellings.get("bridge", f"model.{name}")
    return dict.fromkeys(_SEVERAL.get(name, path).split(), value)


def _file(job: Job, settings: Written, name: str) -> tuple[str, ...]:
    """Texts of the export: the recipe's source first, then remarks on its use."""
    latent = settings.get("multi_latent_attention")
    values: dict[str, Any] = {"model": call_source("MLAModelProvider")} if latent else {}
    mix = next((mix for precision, mix in _MIXES.items() if settings.get(precision)), None)
    values["mixed_precision"] = mix and call_source(mix)
    if job.layout.vpp > 1:
        values["model.virtual_pipeline_model_parallel_size"] = job.layout.vpp
    for argument, value in settings.items():
        values |= _bridge_settings(argument, value)
    body = [("config", call_source(_BASE)), *((f"config.{path}", value) for path, value in values.items())]
    about = f"{name} for NeMo's Megatron Bridge, as `meshwright export --to nemo` wrote it."
    last = "if __name__ == '__main__':\n    pretrain(plan(), forward_step)"
    return (
        module_source(about, _SOURCES, body, last),
        "data (here mock), tokenizer, learning rate and checkpoints are yours to set: change `config` at its end",
        f"run it as recipe.py: {torchrun_by_hand(job)} recipe.py",
    )


def _export(export: JobExport) -> None:
    """Export the fields that the table of arguments does not write."""
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
    file = FileArguments(settings=Settings(without(values | options.also, options.ignore), TABLE))
    _add_all(file)
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
    """Configuration that the only recipe of a Python file builds. Raises InputError unless it starts from
    `_BASE`."""
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
    """Precision arguments of Megatron-LM for a mixed-precision recipe of Megatron Bridge."""
    name = mix.name if isinstance(mix, Call) else mix
    if str(name).startswith(("bf16_with_fp8", "bf16_with_mxfp8")):
        name = _MIXES["fp8"]
    precision = next((precision for precision, mix in _MIXES.items() if mix == name), "fp32")
    if precision == "fp32" and name is not None:
        raise InputError(f"`mixed_precision: {printable(str(name))}` is not known here")
    return tuple(PRECISIONS[precision])


def _values(config: Call) -> dict[str, Any]:
    """Settings of a recipe by path; of a Python name such as `torch.bfloat16` only the last part."""
    model = config.fields.get("model")
    if isinstance(model, Call) and model.name not in _MODELS:
        hint = "write them out on a `GPTModelProvider`"
        raise InputError(f"`{model.name}` has settings that only Bridge has", hint=hint)
    values: dict[str, Any] = {}
    for part, part_values in config.fields.items():
        if isinstance(part_values, Call):
            for name, value in part_values.fields.items():
                values[f"{part}.{name}"] = Unknown(str(value)) if isinstance(value, Call) else value
        else:
            values[part] = part_values
    if isinstance(model, Call) and _MODELS[model.name]:
        values["model.multi_latent_attention"] = True
    for path in _WORDS.split():
        if isinstance(values.get(path), Unknown):
            values[path] = str(values[path]).rpartition(".")[2].replace("bfloat16", "bf16")
    return values


def _add_all(file: FileArguments) -> None:
    """Add the Megatron-LM arguments that correspond to the settings of a recipe."""
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
    file.add_implied()
