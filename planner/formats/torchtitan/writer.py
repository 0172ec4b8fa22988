"""torchtitan 0.3.0: a plan as a module whose `plan()` is a `Trainer.Config`, for `--module` and `--config`.

Sources: torchtitan 0.3.0: torchtitan/config/configs.py, config/manager.py, trainer.py, distributed/parallel_dims.py,
distributed/pipeline_parallel.py, distributed/activation_checkpoint.py, models/common/config_utils.py,
models/{llama3,qwen3,deepseek_v3}/__init__.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from cost_models.axes.layout import Layout
from cost_models.axes.stages import policies_in
from cost_models.files.catalog import load_model
from cost_models.schedules.registry import schedule_named
from cost_models.specs.transformer import TransformerSpec
from planner.formats import python_text as py
from planner.formats.exporter import (
    NO_SETTING,
    FieldExport,
    Job,
    Translate,
    by_value,
    differs,
    lacks,
    no_setting,
    sets,
    supports_only,
)
from planner.formats.target import Target
from planner.formats.torchrun import torchrun_by_hand


class Flavour(NamedTuple):
    """A model that torchtitan ships, by family and name ("flavor")."""

    family: str
    """Module of `torchtitan.models`."""
    name: str
    """Key in its `model_registry`."""


_CATALOGUE_FLAVOURS = {
    "llama3.2-1b": Flavour("llama3", "1B"),
    "llama3.2-3b": Flavour("llama3", "3B"),
    "llama3.1-8b": Flavour("llama3", "8B"),
    "llama3.1-70b": Flavour("llama3", "70B"),
    "llama3.1-405b": Flavour("llama3", "405B"),
    "qwen3-0.6b": Flavour("qwen3", "0.6B"),
    "qwen3-1.7b": Flavour("qwen3", "1.7B"),
    "qwen3-4b": Flavour("qwen3", "4B"),
    "qwen3-8b": Flavour("qwen3", "8B"),
    "qwen3-14b": Flavour("qwen3", "14B"),
    "qwen3-32b": Flavour("qwen3", "32B"),
    "qwen3-30b-a3b": Flavour("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": Flavour("qwen3", "235B-A22B"),
    "deepseek-v2-lite": Flavour("deepseek_v3", "16B"),
    "deepseek-v2": Flavour("deepseek_v3", "236B"),
    "deepseek-v3": Flavour("deepseek_v3", "671B"),
}
"""Name in our catalogue → torchtitan's model of the same shape."""
_KERNEL = re.compile(r"_(?:flex|varlen|fused_qkv|non_fused_qkv)(?:_attn)?$")
"""Ends of names that choose a kernel, not a shape."""
_SHAPE = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "ffn_hidden_size",
    "vocab_size",
    "num_experts",
    "moe_ffn_hidden_size",
    "tied_embeddings",
)
"""Fields that identify a model."""
_ELSEWHERE = frozenset(
    {"kind", "name", "source", "changed", "max_positions", "left_out", "load_balance", "vocab_multiple"}
)


@cache
def _models() -> dict[Flavour, TransformerSpec]:
    models = {flavour: load_model(name) for name, flavour in _CATALOGUE_FLAVOURS.items()}
    small = {
        "name": "llama3-debugmodel",
        "num_layers": 6,
        "hidden_size": 256,
        "num_heads": 16,
        "num_kv_heads": 16,
        "head_dim": 16,
    }
    debug = models[Flavour("llama3", "8B")].model_copy(
        update={**small, "ffn_hidden_size": 768, "vocab_size": 2048}
    )
    return {**models, Flavour("llama3", "debugmodel"): debug}


def model_of(flavour: Flavour) -> TransformerSpec | None:
    """The catalogue's model for a torchtitan flavor, ignoring suffixes of the name that choose a kernel; None
    if unknown."""
    plain = _KERNEL.sub("", flavour.name)
    return next((known for one, known in _models().items() if one == (flavour.family, plain)), None)


def flavours() -> tuple[Flavour, ...]:
    """All torchtitan models that the planner knows."""
    return tuple(_models())


def flavour_of(model: TransformerSpec) -> tuple[Flavour, TransformerSpec] | None:
    """The torchtitan flavor with the model's shape, and the catalogue's model of that flavor; None if there is
    none."""
    for flavour, spec in _models().items():
        if all(getattr(model, name) == getattr(spec, name) for name in _SHAPE):
            return flavour, spec
    return None


def _num_layers(job: Job) -> FieldExport:
    """Export of the model's shape, which no setting expresses; lacking if torchtitan has no model of this
    shape."""
    if flavour_of(job.model) is not None:
        return NO_SETTING
    return lacks("it has no model of this shape; its module `llama3` can be given one by hand")


def _detail(name: str) -> Translate:
    def export(job: Job) -> FieldExport:
        match = flavour_of(job.model)
        if match is None or getattr(job.model, name) == getattr(match[1], name):
            return NO_SETTING
        return lacks(f"its {match[0].family} {match[0].name} has `{getattr(match[1], name)}`")

    return export


def _rotary(job: Job) -> FieldExport:
    match = flavour_of(job.model)
    if match is None or match[0].family != "llama3":
        return _detail("rotary")(job)
    ours, trainer_rotary = job.model.rotary, match[1].rotary
    if ours == trainer_rotary:
        return NO_SETTING
    if (
        ours is not None
        and trainer_rotary is not None
        and ours.model_copy(update={"scaling": trainer_rotary.scaling}) == trainer_rotary
    ):
        return differs("its llama3 scales positions as Llama 3.1 does")
    return _detail("rotary")(job)


def _name(job: Job) -> FieldExport:
    match = flavour_of(job.model)
    return NO_SETTING if match is None else sets(model=tuple(match[0]))


def _left_out(job: Job) -> FieldExport:
    match = flavour_of(job.model)
    if not job.model.left_out or (match is not None and match[1].left_out == job.model.left_out):
        return NO_SETTING
    return lacks(f"nobody read how: {', '.join(job.model.left_out)}")


MODEL: Mapping[str, Translate] = {
    f"model.{name}": no_setting if name in _SHAPE else _detail(name)
    for name in TransformerSpec.model_fields
    if name not in _ELSEWHERE
} | {
    "model.name": _name,
    "model.num_layers": _num_layers,
    "model.max_positions": no_setting,  # its caches are as long as the sequence
    "model.rotary": _rotary,
    "model.left_out": _left_out,
    "model.load_balance": lambda job: (
        differs("its routers have a bias for each expert, moved towards even loads")
        if job.model.has_experts and job.model.load_balance
        else NO_SETTING
    ),
    **supports_only(
        {
            "model.vocab_multiple": ("its vocabulary is not padded", 1),
            "layout.order": ("it seats ranks tp-cp-dp-pp", "tp-cp-dp-pp"),
            "layout.ring": ("it fetches one block ahead", Layout.model_fields["ring"].default),
            "training.optimizer": ("it has Adam and AdamW", "adamw"),
            "training.gradient_dtype": ("it reduces gradients in fp32", None, "fp32"),
            "training.state_dtype": ("it keeps weights and moments in fp32", "fp32"),
            "training.moment_dtype": ("it keeps moments in fp32", None, "fp32"),
        }
    ),
}


VERSION = "0.3.0"
_RATE = 3e-4
_AC = "torchtitan.distributed.activation_checkpoint"
_POLICIES = {"none": None, "full": "FullAC", "selective": "SelectiveAC"}
_IMPORTS = {
    "torchtitan.components.loss": ["CrossEntropyLoss"],
    "torchtitan.components.optimizer": ["default_adamw"],
    "torchtitan.hf_datasets.text_datasets": ["HuggingFaceTextDataLoader"],
    "torchtitan.models.common.config_utils": ["decoder_vocab_size"],
    "torchtitan.trainer": ["Trainer"],
}


def _set(**settings: object) -> FieldExport:
    return sets(**{f"parallelism.{name}": value for name, value in settings.items()})


def _zero(job: Job) -> FieldExport:
    layout = job.layout
    if layout.zero == 0:
        return _set(data_parallel_replicate_degree=layout.dp, data_parallel_shard_degree=1)
    if layout.zero == 1:
        return lacks("it shards weights, gradients and optimizer states together")
    keeps_weights = layout.pp > 1 and job.stack.pipelines_keep_weights
    policy = "never" if layout.zero == 2 else "default" if keeps_weights else "always"
    shard = layout.shard_group // layout.cp
    settings = {
        "parallelism.data_parallel_replicate_degree": layout.data_ranks // layout.shard_group,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.fsdp_reshard_after_forward": policy,
    }
    if keeps_weights and layout.zero == 3:
        return differs("in a pipeline it keeps weights that it gathered until the step ends", **settings)
    return sets(**settings)


def _schedule(job: Job) -> FieldExport:
    if job.layout.pp == 1:
        return NO_SETTING
    engine = schedule_named(job.layout.schedule).engine
    return _set(pipeline_parallel_schedule=engine.removeprefix("Schedule"))


def stages(layers: tuple[int, ...]) -> list[list[str]]:
    """Module names (`tok_embeddings`, `layers.0`, ...) of every virtual stage, given the blocks of each."""
    names, first = [], 0
    for count in layers:
        names.append([f"layers.{at}" for at in range(first, first + count)])
        first += count
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "lm_head"]
    return names


def _layers(job: Job) -> FieldExport:
    return NO_SETTING if job.layout.pp == 1 else _set(module_fqns_per_model_part=stages(job.layout.layers))


def _mbs(job: Job) -> FieldExport:
    layout, batch = job.layout, job.training.global_batch
    if layout.pp == 1:
        return sets(**{"training.local_batch_size": layout.mbs})
    local = {
        "training.local_batch_size": batch // layout.dp,
        "parallelism.pipeline_parallel_microbatch_size": layout.mbs,
    }
    return differs("a rank's whole share of the batch, which the pipeline cuts", **local)


def _recompute(job: Job) -> FieldExport:
    mixes = set(job.layout.recompute)
    policies = policies_in(job.layout.recompute[0])
    if len(mixes) > 1 or len(policies) > 1:
        return lacks("it has one policy for all blocks")
    return sets(activation_checkpoint=_POLICIES[policies[0]])


def _offload(job: Job) -> FieldExport:
    return sets(**{"training.enable_cpu_offload": True}) if any(job.layout.offload) else NO_SETTING


def _overlap(job: Job) -> FieldExport:
    """torchtitan's setting for `layout.overlap`; tensor-parallel overlap needs compiled blocks, all other
    overlap is always on."""
    layout, stack = job.layout, job.stack
    overlap = layout.overlap
    if overlap is not None:
        ranks = {"pp": layout.pp, "dp": layout.data_ranks}
        if always := [axis for axis, degree in ranks.items() if degree > 1 and axis not in overlap]:
            return lacks(f"its {' and '.join(always)} communication always runs behind compute")
    overlaps_tensor = stack.overlap_tensor_parallel > 0 if overlap is None else "tp" in overlap
    if overlaps_tensor and not stack.compiled:
        return lacks("it overlaps tensor-parallel communication in compiled blocks only")
    return sets(**{"compile.enable_async_tensor_parallel": True}) if overlaps_tensor else NO_SETTING


def _tokens(job: Job) -> FieldExport:
    if job.training.tokens is None:
        return NO_SETTING
    return differs(
        "steps", **{"training.steps": max(1, round(job.training.tokens / job.training.tokens_per_step))}
    )


def _attention(job: Job) -> FieldExport:
    """torchtitan's attention kernel; varlen calls FlashAttention, context ranks and CPUs have FlexAttention
    only."""
    if not job.stack.attention.startswith("flash"):
        return lacks("its attention is FlexAttention or FlashAttention")
    flex = job.layout.cp > 1 or job.question.cluster.gpu.kind == "cpu"
    return differs(
        "FlexAttention" if flex else "FlashAttention over documents", attention="flex" if flex else "varlen"
    )


def _text(job: Job, settings: Mapping[str, Any], name: str) -> str:
    fields = dict(settings)
    family, flavour = fields.pop("model", ("llama3", "debugmodel"))
    policy = fields.pop("activation_checkpoint", None)
    model = py.call("model_registry", flavour, attn_backend=fields.pop("attention", "flex"))
    imports = defaultdict(list, {source: list(names) for source, names in _IMPORTS.items()})
    imports[f"torchtitan.models.{family}"].append("model_registry")
    if policy is not None:
        imports[_AC].append(policy)
    vocabulary = py.call("decoder_vocab_size", py.Code("model_spec"))
    values = {
        "loss": py.call("CrossEntropyLoss.Config", global_vocab_size=vocabulary),
        "optimizer": py.call("default_adamw", lr=_RATE),
        "dataloader": py.call("HuggingFaceTextDataLoader.Config"),
        "activation_checkpoint": None if policy is None else py.call(f"{policy}.Config"),
        **fields,
    }
    body = [
        py.assign("model_spec", model),
        py.assign("config", py.call("Trainer.Config", model_spec=py.Code("model_spec"))),
        *(py.assign(f"config.{path}", value) for path, value in values.items()),
    ]
    about = f"{name} for torchtitan {VERSION}, as `meshwright export --to torchtitan` wrote it."
    return py.module(about, imports, body)


def _usage(job: Job, name: str) -> tuple[str, ...]:
    return (
        f"data, tokenizer, learning rate ({_RATE:g} here) and checkpoints are yours, as arguments at its end",
        f"run it as recipe.py: {torchrun_by_hand(job)} -m torchtitan.train --module recipe --config plan",
    )


TARGET = Target(
    name="torchtitan",
    full_name=f"torchtitan {VERSION}",
    stack="torchtitan",
    table="torchtitan",
    translated={
        **MODEL,
        "layout.vpp": no_setting,  # as many stages as `layers` names
        "layout.etp": no_setting,  # one where experts are shared, else tp: its rules
        "layout.mbs": _mbs,
        "layout.zero": _zero,
        "layout.shard": no_setting,  # said with `zero`
        "layout.overlap": _overlap,
        "layout.schedule": _schedule,
        "layout.context": by_value("context", {"": {}, "all-gather": {}}, "its context ranks gather"),
        "layout.recompute": _recompute,
        "layout.offload": _offload,
        "layout.layers": _layers,
        "training.precision": by_value(
            "training.precision",
            {
                name: {"training.dtype": "float32", "training.mixed_precision_param": dtype}
                for name, dtype in (("bf16", "bfloat16"), ("fp32", "float32"))
            },
            "it trains in bfloat16 or float32 unless its model is converted",
        ),
        "training.dropout": lambda job: (
            lacks("its models drop nothing") if job.question.dropout else NO_SETTING
        ),
        "training.tokens": _tokens,
        "stack.attention": _attention,
        "stack.compiles_loss": lambda job: sets(
            **{"compile.components": ["model", "loss"] if job.stack.compiles_loss else ["model"]}
        ),
        "stack.experts_in_one_kernel": lambda job: (
            lacks("it captures no part of a step")
            if job.stack.experts_in_one_kernel
            else sets(**{"training.disable_cuda_graphs": True})
        ),
        "stack.overlap_tensor_parallel": no_setting,  # said with the layout's `overlap`
    },
    text=_text,
    usage=_usage,
)
