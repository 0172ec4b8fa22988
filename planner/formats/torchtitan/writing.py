"""torchtitan 0.3.0: a plan as a module whose `plan()` is a `Trainer.Config`, for `--module` and `--config`.

Sources: torchtitan 0.3.0: torchtitan/config/configs.py, config/manager.py, trainer.py, distributed/parallel_dims.py,
distributed/pipeline_parallel.py, distributed/activation_checkpoint.py, models/common/config_utils.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.axes.recompute import policies_in
from cost_models.schedules.registry import schedule_named
from planner.formats import python_text as py
from planner.formats.exporter import NOTHING, Job, Word, lacks, nothing, only, otherwise, says
from planner.formats.launching import torchrun_by_hand
from planner.formats.target import Target
from planner.formats.torchtitan.flavours import MODEL

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


def _set(**settings: object) -> Word:
    return says(**{f"parallelism.{name}": value for name, value in settings.items()})


def _zero(job: Job) -> Word:
    layout = job.layout
    if layout.zero == 0:
        return _set(data_parallel_replicate_degree=layout.dp, data_parallel_shard_degree=1)
    if layout.zero == 1:
        return lacks("it shards weights, gradients and optimizer states together")
    keeps = layout.pp > 1 and job.stack.pipelines_keep_weights
    policy = "never" if layout.zero == 2 else "default" if keeps else "always"
    shard = layout.shard_group // layout.cp
    said = {
        "parallelism.data_parallel_replicate_degree": layout.data_ranks // layout.shard_group,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.fsdp_reshard_after_forward": policy,
    }
    if keeps and layout.zero == 3:
        return otherwise("in a pipeline it keeps weights that it gathered until the step ends", **said)
    return says(**said)


def _context(job: Job) -> Word:
    kind = job.layout.context or job.stack.context_parallel
    return NOTHING if job.layout.cp == 1 or kind == "all-gather" else lacks("its context ranks gather")


def _schedule(job: Job) -> Word:
    if job.layout.pp == 1:
        return NOTHING
    engine = schedule_named(job.layout.schedule).engine
    return _set(pipeline_parallel_schedule=engine.removeprefix("Schedule"))


def stages(layers: tuple[int, ...]) -> list[list[str]]:
    """Names of the modules of every virtual stage."""
    found, first = [], 0
    for count in layers:
        found.append([f"layers.{at}" for at in range(first, first + count)])
        first += count
    found[0].insert(0, "tok_embeddings")
    found[-1] += ["norm", "lm_head"]
    return found


def _layers(job: Job) -> Word:
    return NOTHING if job.layout.pp == 1 else _set(module_fqns_per_model_part=stages(job.layout.layers))


def _mbs(job: Job) -> Word:
    layout, batch = job.layout, job.training.global_batch
    if layout.pp == 1:
        return says(**{"training.local_batch_size": layout.mbs})
    local = {
        "training.local_batch_size": batch // layout.dp,
        "parallelism.pipeline_parallel_microbatch_size": layout.mbs,
    }
    return otherwise("a rank's whole share of the batch, which the pipeline cuts", **local)


def _recompute(job: Job) -> Word:
    mixes = set(job.layout.recompute)
    policies = policies_in(job.layout.recompute[0])
    if len(mixes) > 1 or len(policies) > 1:
        return lacks("it has one policy for all blocks")
    return says(activation_checkpoint=_POLICIES[policies[0]])


def _offload(job: Job) -> Word:
    return says(**{"training.enable_cpu_offload": True}) if any(job.layout.offload) else NOTHING


def _overlap(job: Job) -> Word:
    """Tensor-parallel collectives go inside products of compiled blocks; all others always run behind compute."""
    layout, stack = job.layout, job.stack
    said = layout.overlap
    if said is not None:
        ranks = {"pp": layout.pp, "dp": layout.data_ranks}
        if always := [axis for axis, degree in ranks.items() if degree > 1 and axis not in said]:
            return lacks(f"its {' and '.join(always)} communication always runs behind compute")
    wanted = stack.overlap_tensor_parallel > 0 if said is None else "tp" in said
    if wanted and not stack.compiled:
        return lacks("it overlaps tensor-parallel communication in compiled blocks only")
    return says(**{"compile.enable_async_tensor_parallel": True}) if wanted else NOTHING


def _precision(job: Job) -> Word:
    types = {"bf16": "bfloat16", "fp32": "float32"}
    if job.training.precision not in types:
        return lacks("it trains in bfloat16 or float32 unless its model is converted")
    settings = {"training.dtype": "float32", "training.mixed_precision_param": types[job.training.precision]}
    return says(**settings)


def _tokens(job: Job) -> Word:
    if job.training.tokens is None:
        return NOTHING
    return otherwise(
        "steps", **{"training.steps": max(1, round(job.training.tokens / job.training.tokens_per_step))}
    )


def _attention(job: Job) -> Word:
    """Varlen calls FlashAttention; context ranks and CPUs have FlexAttention only."""
    if not job.stack.attention.startswith("flash"):
        return lacks("its attention is FlexAttention or FlashAttention")
    flex = job.layout.cp > 1 or job.question.cluster.gpu.kind == "cpu"
    return otherwise(
        "FlexAttention" if flex else "FlashAttention over documents", attention="flex" if flex else "varlen"
    )


def _text(job: Job, settings: Mapping[str, Any], name: str) -> str:
    said = dict(settings)
    family, flavour = said.pop("model", ("llama3", "debugmodel"))
    policy = said.pop("activation_checkpoint", None)
    model = py.call("model_registry", flavour, attn_backend=said.pop("attention", "flex"))
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
        **said,
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
    called=f"torchtitan {VERSION}",
    stack="torchtitan",
    table="torchtitan",
    translated={
        **MODEL,
        "layout.vpp": nothing,  # as many stages as `layers` names
        "layout.etp": nothing,  # one where experts are shared, else tp: its rules
        "layout.mbs": _mbs,
        "layout.zero": _zero,
        "layout.shard": nothing,  # said with `zero`
        "layout.overlap": _overlap,
        "layout.schedule": _schedule,
        "layout.order": only("layout.order", "it seats ranks tp-cp-dp-pp", "tp-cp-dp-pp"),
        "layout.context": _context,
        "layout.recompute": _recompute,
        "layout.offload": _offload,
        "layout.ring": only("layout.ring", "it fetches one block ahead", Layout.model_fields["ring"].default),
        "layout.layers": _layers,
        "training.precision": _precision,
        "training.optimizer": only("training.optimizer", "it has Adam and AdamW", "adamw"),
        "training.gradient_dtype": only(
            "training.gradient_dtype", "it reduces gradients in fp32", None, "fp32"
        ),
        "training.state_dtype": only("training.state_dtype", "it keeps weights and moments in fp32", "fp32"),
        "training.moment_dtype": only("training.moment_dtype", "it keeps moments in fp32", None, "fp32"),
        "training.dropout": only("question.dropout", "its models drop nothing", 0),
        "training.tokens": _tokens,
        "stack.attention": _attention,
        "stack.compiles_loss": lambda job: says(
            **{"compile.components": ["model", "loss"] if job.stack.compiles_loss else ["model"]}
        ),
        "stack.experts_in_one_kernel": lambda job: (
            lacks("it captures no part of a step")
            if job.stack.experts_in_one_kernel
            else says(**{"training.disable_cuda_graphs": True})
        ),
        "stack.overlap_tensor_parallel": nothing,  # said with the layout's `overlap`
    },
    text=_text,
    usage=_usage,
)
