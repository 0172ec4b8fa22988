"""torchtitan 0.3.0: a plan as a module whose `plan()` is a `Trainer.Config`, for `--module` and `--config`.

Sources: torchtitan 0.3.0: torchtitan/config/configs.py, config/manager.py, trainer.py, distributed/parallel_dims.py,
distributed/pipeline_parallel.py, distributed/activation_checkpoint.py, models/common/config_utils.py,
models/{llama3,qwen3,deepseek_v3}/__init__.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from cost_models.axes.layout import Layout
from cost_models.files.catalog import load_model
from cost_models.schedules.registry import schedule_named
from cost_models.specs.transformer import TransformerSpec
from planner.formats import python_text as py
from planner.formats.exporter import Job, JobExport
from planner.formats.target import Target
from planner.formats.torchrun import torchrun_by_hand


class Flavour(NamedTuple):
    """A model that torchtitan ships, by family and name ("flavor")."""

    family: str
    """Module of `torchtitan.models`."""
    name: str
    """Key in its `model_registry`."""


_SIZES = {
    "llama3.2": ("llama3", "1B 3B"),
    "llama3.1": ("llama3", "8B 70B 405B"),
    "qwen3": ("qwen3", "0.6B 1.7B 4B 8B 14B 32B 30B-A3B 235B-A22B"),
}
"""Start of a name in our catalogue → torchtitan's family with the same shapes, and its sizes."""
_DEEPSEEK = {"deepseek-v2-lite": "16B", "deepseek-v2": "236B", "deepseek-v3": "671B"}
"""Name in our catalogue → torchtitan's model of the same shape in `deepseek_v3`."""
_KERNEL = re.compile(r"_(?:flex|varlen|fused_qkv|non_fused_qkv)(?:_attn)?$")
"""Ends of names that choose a kernel, not a shape."""
_SHAPE = "num_layers hidden_size num_heads num_kv_heads ffn_hidden_size vocab_size"
_SHAPE += " num_experts moe_ffn_hidden_size tied_embeddings"
"""Fields that identify a model."""
_ELSEWHERE = "kind name source changed max_positions left_out load_balance vocab_multiple"
"""Fields of models that are no part of a flavor."""


@cache
def _models() -> dict[Flavour, TransformerSpec]:
    names: dict[Flavour, str] = {}
    for start, (family, known) in _SIZES.items():
        names |= {Flavour(family, size): f"{start}-{size.lower()}" for size in known.split()}
    names |= {Flavour("deepseek_v3", size): name for name, size in _DEEPSEEK.items()}
    models = {flavour: load_model(name) for flavour, name in names.items()}
    sizes = {"num_layers": 6, "hidden_size": 256, "num_heads": 16, "num_kv_heads": 16, "head_dim": 16}
    sizes |= {"ffn_hidden_size": 768, "vocab_size": 2048}
    debug = models[Flavour("llama3", "8B")].model_copy(update={"name": "llama3-debugmodel", **sizes})
    return {**models, Flavour("llama3", "debugmodel"): debug}


def model_of(flavour: Flavour) -> TransformerSpec | None:
    """The catalogue's model for a torchtitan flavor, ignoring suffixes of the name that choose a kernel; None
    if unknown."""
    return _models().get(Flavour(flavour.family, _KERNEL.sub("", flavour.name)))


def flavours() -> tuple[Flavour, ...]:
    """All torchtitan models that the planner knows."""
    return tuple(_models())


def flavour_of(model: TransformerSpec) -> tuple[Flavour, TransformerSpec] | None:
    """The torchtitan flavor with the model's shape, and the catalogue's model of that flavor; None if there is
    none."""
    shape = attrgetter(*_SHAPE.split())
    return next((match for match in _models().items() if shape(match[1]) == shape(model)), None)


_FULL_NAME = "torchtitan 0.3.0"
_RATE = 3e-4
_POLICIES = {"none": None, "full": "FullAC", "selective": "SelectiveAC"}
_SOURCES = {
    "CrossEntropyLoss": "torchtitan.components.loss",
    "default_adamw": "torchtitan.components.optimizer",
    **dict.fromkeys(("FullAC", "SelectiveAC"), "torchtitan.distributed.activation_checkpoint"),
    "HuggingFaceTextDataLoader": "torchtitan.hf_datasets.text_datasets",
    "decoder_vocab_size": "torchtitan.models.common.config_utils",
    "Trainer": "torchtitan.trainer",
}
"""Name that modules use → module that it is imported from."""


def stages(layers: tuple[int, ...]) -> list[list[str]]:
    """Module names (`tok_embeddings`, `layers.0`, ...) of every virtual stage, given the blocks of each."""
    blocks = iter(range(sum(layers)))
    names = [[f"layers.{block}" for block in islice(blocks, count)] for count in layers]
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "lm_head"]
    return names


_LIMITS: Mapping[str, tuple[Any, ...]] = {
    "model.vocab_multiple": ("its vocabulary is not padded", 1),
    "layout.order": ("it seats ranks tp-cp-dp-pp", "tp-cp-dp-pp"),
    "layout.ring": ("it fetches one block ahead", Layout.model_fields["ring"].default),
    "training.optimizer": ("it has Adam and AdamW", "adamw"),
    "training.gradient_dtype": ("it reduces gradients in fp32", None, "fp32"),
    "training.state_dtype": ("it keeps weights and moments in fp32", "fp32"),
    "training.moment_dtype": ("it keeps moments in fp32", None, "fp32"),
}
"""Fields of which torchtitan supports some values alone: the reason, and the values."""
FACTS = "attention compiles_loss experts_in_one_kernel overlap_tensor_parallel"
"""Facts of the software stack that settings switch; the last with the layout's `overlap`."""


def _export(export: JobExport) -> None:
    export.supports(_LIMITS)
    _export_model(export)
    _export_layout(export)
    job, training = export.job, export.job.training
    dtypes, path = {"bf16": "bfloat16", "fp32": "float32"}, "training.mixed_precision_param"
    precisions = {name: {"training.dtype": "float32", path: dtype} for name, dtype in dtypes.items()}
    reason = "it trains in bfloat16 or float32 unless its model is converted"
    export.choose("training.precision", training.precision, precisions, reason)
    export.lacks("training.dropout", "its models drop nothing", when=job.question.dropout)
    steps = {"training.steps": max(1, round((training.tokens or 0) / training.tokens_per_step))}
    export.sets("training.tokens", steps, differs="steps", when=training.tokens is not None)
    # varlen calls FlashAttention; context ranks and CPUs have FlexAttention only
    flex = job.layout.cp > 1 or job.question.cluster.gpu.kind == "cpu"
    difference = "FlexAttention" if flex else "FlashAttention over documents"
    export.sets("stack.attention", differs=difference, attention="flex" if flex else "varlen")
    is_flash = job.stack.attention.startswith("flash")
    export.lacks("stack.attention", "its attention is FlexAttention or FlashAttention", when=not is_flash)
    compiled = ["model", "loss"] if job.stack.compiles_loss else ["model"]
    export.sets("stack.compiles_loss", {"compile.components": compiled})
    kernel = "stack.experts_in_one_kernel"
    export.sets(kernel, {"training.disable_cuda_graphs": True})
    export.lacks(kernel, "it captures no part of a step", when=job.stack.experts_in_one_kernel)


def _export_model(export: JobExport) -> None:
    """Name the flavor with the model's shape, and what else differs between the two."""
    model = export.job.model
    flavour, spec = flavour_of(model) or (None, model)
    shipped = " ".join(flavour or ())
    for name in TransformerSpec.model_fields.keys() - _ELSEWHERE.split():
        export.sets(f"model.{name}")
        theirs = f"its {shipped} has `{getattr(spec, name)}`"
        export.lacks(f"model.{name}", theirs, when=getattr(model, name) != getattr(spec, name))
    reason = "it has no model of this shape; its module `llama3` can be given one by hand"
    export.lacks("model.num_layers", reason, when=flavour is None)
    export.sets("model.name", model=tuple(flavour or ()), when=flavour)
    plain = [one.rotary and one.rotary.model_copy(update={"scaling": None}) for one in (model, spec)]
    scales = shipped.startswith("llama3") and plain[0] == plain[1] and model.rotary not in (None, spec.rotary)
    export.sets("model.rotary", differs="its llama3 scales positions as Llama 3.1 does", when=scales)
    unread = model.left_out and (flavour is None or spec.left_out != model.left_out)
    export.lacks("model.left_out", f"nobody read how: {', '.join(model.left_out)}", when=unread)
    difference = "its routers have a bias for each expert, moved towards even loads"
    export.sets("model.load_balance", differs=difference, when=model.has_experts and model.load_balance)


def _export_layout(export: JobExport) -> None:
    job, layout = export.job, export.job.layout
    mesh = "parallelism"
    export.sets("layout.mbs", {"training.local_batch_size": layout.mbs})
    if layout.pp > 1:
        engine = schedule_named(layout.schedule).engine.removeprefix("Schedule")
        export.sets("layout.schedule", {f"{mesh}.pipeline_parallel_schedule": engine})
        export.sets("layout.layers", {f"{mesh}.module_fqns_per_model_part": stages(layout.layers)})
        batch = {"training.local_batch_size": job.training.global_batch // layout.dp}
        batch[f"{mesh}.pipeline_parallel_microbatch_size"] = layout.mbs
        difference = "a rank's whole share of the batch, which the pipeline cuts"
        export.sets("layout.mbs", batch, differs=difference)
    export.choose("layout.context", job.context, {"": {}, "all-gather": {}}, "its context ranks gather")
    export.sets("layout.recompute", activation_checkpoint=_POLICIES[layout.policies[0]])
    export.lacks("layout.recompute", "it has one policy for all blocks", when=len(layout.policies) > 1)
    export.sets("layout.offload", {"training.enable_cpu_offload": True}, when=any(layout.offload))
    replicas = layout.data_ranks // layout.shard_group if layout.zero else layout.dp
    settings: dict[str, Any] = {f"{mesh}.data_parallel_replicate_degree": replicas}
    shard = layout.shard_group // layout.cp if layout.zero else 1
    settings[f"{mesh}.data_parallel_shard_degree"] = shard
    keeps_weights = layout.pp > 1 and job.stack.pipelines_keep_weights
    if layout.zero:
        reshards = "default" if keeps_weights else "always"
        settings[f"{mesh}.fsdp_reshard_after_forward"] = "never" if layout.zero == 2 else reshards
    difference = "in a pipeline it keeps weights that it gathered until the step ends"
    export.sets("layout.zero", settings, differs=difference * (layout.zero == 3 and keeps_weights))
    reason = "it shards weights, gradients and optimizer states together"
    export.lacks("layout.zero", reason, when=layout.zero == 1)
    _export_overlap(export)


def _export_overlap(export: JobExport) -> None:
    """Tensor-parallel communication overlaps in compiled blocks only; all other overlap is always on."""
    layout, stack = export.job.layout, export.job.stack
    overlap, path = layout.overlap, "layout.overlap"
    ranks = {"pp": layout.pp, "dp": layout.data_ranks}
    always = [axis for axis in ranks if overlap is not None and ranks[axis] > 1 and axis not in overlap]
    tensor = stack.overlap_tensor_parallel > 0 if overlap is None else "tp" in overlap
    export.sets(path, {"compile.enable_async_tensor_parallel": True}, when=tensor)
    reason = "it overlaps tensor-parallel communication in compiled blocks only"
    export.lacks(path, reason, when=tensor and not stack.compiled)
    export.lacks(path, f"its {' and '.join(always)} communication always runs behind compute", when=always)


def _text(job: Job, settings: Mapping[str, Any], name: str) -> str:
    fields = dict(settings)
    family, flavour = fields.pop("model", ("llama3", "debugmodel"))
    policy = fields.pop("activation_checkpoint", None)
    model = py.call("model_registry", flavour, attn_backend=fields.pop("attention", "flex"))
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
    about = f"{name} for {_FULL_NAME}, as `meshwright export --to torchtitan` wrote it."
    return py.module(about, {**_SOURCES, "model_registry": f"torchtitan.models.{family}"}, body)


def _usage(job: Job, name: str) -> tuple[str, ...]:
    return (
        f"data, tokenizer, learning rate ({_RATE:g} here) and checkpoints are yours, as arguments at its end",
        f"run it as recipe.py: {torchrun_by_hand(job)} -m torchtitan.train --module recipe --config plan",
    )


TARGET = Target("torchtitan", _FULL_NAME, "torchtitan", _export, FACTS, _text, _usage)
