"""DeepSpeed 0.19.8: a plan as the JSON that `deepspeed.initialize(config=..)` takes; the model is the program's own.

Sources: DeepSpeed 0.19.8: deepspeed/runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/tensor_parallel/config.py, module_inject/auto_ep_config.py, runtime/precision_config.py.
"""

from __future__ import annotations

import json
from typing import Any

from cost_models.axes.words import EVERY
from cost_models.specs.transformer import TransformerSpec
from planner.formats import fsdp2
from planner.formats.exporter import NOTHING, Job, Word, lacks, nested, nothing, only, otherwise, says
from planner.formats.target import Target

VERSION = "0.19.8"
_RATE = 3e-4
_ZERO = "zero_optimization"
_DRIVE = "/local/nvme"
"""Where drives are mounted, for the user to change."""


def _set(**settings: Any) -> Word:
    return says(**{f"{_ZERO}.{name}": value for name, value in settings.items()})


def _pp(job: Job) -> Word:
    if job.layout.pp == 1:
        return NOTHING
    how = f"the program's model is a `PipelineModule` with `num_stages={job.layout.pp}`"
    return otherwise(how, **{"pipeline.stages": job.layout.pp})


def _cp(job: Job) -> Word:
    if job.layout.cp == 1:
        return NOTHING
    return says(sequence_parallel_size=job.layout.cp, data_parallel_size=job.layout.dp)


def _context(job: Job) -> Word:
    kind = job.layout.context or job.stack.context_parallel
    return NOTHING if job.layout.cp == 1 or kind == "all-to-all" else lacks("its context ranks trade heads")


def _ep(job: Job) -> Word:
    if not job.model.has_experts or job.layout.ep == 1:
        return NOTHING
    settings = {"expert_parallel.enabled": True, "expert_parallel.autoep_size": job.layout.ep}
    return says(**settings, **{"expert_parallel.expert_tensor_parallel_size": job.layout.expert_tp})


def _mbs(job: Job) -> Word:
    steps = job.layout.microbatches(job.training.global_batch)
    return says(train_micro_batch_size_per_gpu=job.layout.mbs, gradient_accumulation_steps=steps)


def _recompute(job: Job) -> Word:
    whole = fsdp2.recompute(job, "whole")
    if not whole.settings:
        return whole
    if job.layout.pp > 1:
        return says(**{"pipeline.activation_checkpoint_interval": 1})
    return otherwise(
        "the program turns it on, as `model.gradient_checkpointing_enable()`",
        **{"activation_checkpointing.partition_activations": False},
    )


def _offload(job: Job) -> Word:
    moved, layout = job.layout.offload, job.layout
    if not any(moved):
        return NOTHING
    settings: dict[str, Any] = {f"{_ZERO}.offload_optimizer.device": "nvme" if moved.drive else "cpu"}
    if moved.drive:
        settings[f"{_ZERO}.offload_optimizer.nvme_path"] = _DRIVE
    if moved.streamed:
        settings[f"{_ZERO}.offload_param.device"] = "cpu"
    if moved.streamed or moved.states >= EVERY:
        return says(**settings)
    share = round(moved.states / min(layout.layers), 6)
    return otherwise(
        "a share of a rank's parameters", **settings, **{f"{_ZERO}.offload_optimizer.ratio": share}
    )


def _stage(job: Job) -> Word:
    """ZeRO's stage; what one replica offloads is ZeRO-3's there, which shards nothing of it."""
    layout = job.layout
    return _set(stage=3 if layout.data_ranks == 1 and any(layout.offload) else layout.zero)


def _layers(job: Job) -> Word:
    if job.layout.pp == 1:
        return NOTHING
    if len(set(job.layout.layers)) > 1:
        return lacks("it divides blocks evenly, by parameters or by type")
    return says(**{"pipeline.partition": "uniform"})


def _overlap(job: Job) -> Word:
    layout = job.layout
    if layout.overlap is not None and layout.pp > 1 and "pp" not in layout.overlap:
        return lacks("its stages always send behind compute")
    wanted = job.stack.overlap_gradient_reduce if layout.overlap is None else "dp" in layout.overlap
    return _set(overlap_comm=wanted) if layout.zero else NOTHING


def _precision(job: Job) -> Word:
    match job.training.precision:
        case "bf16" | "fp16" as name:
            return says(**{f"{name}.enabled": True})
        case "fp32":
            return NOTHING
    return lacks("it trains in bf16, fp16 or fp32")


def _optimizer(job: Job) -> Word:
    names = {"adamw": "AdamW", "sgd": "SGD", "lamb": "Lamb"}
    name = names.get(job.training.optimizer)
    if name is None:
        return lacks(f"it has no {job.training.optimizer}")
    return says(**{"optimizer.type": name, "optimizer.params.lr": _RATE})


def _gradients(job: Job) -> Word:
    dtype = job.training.gradient_dtype or job.stack.gradient_dtype
    if job.training.precision not in ("bf16", "fp16"):
        return NOTHING
    wide = "fp32" if dtype == "fp32" else job.training.precision
    return says(**{"data_types.grad_accum_dtype": wide})


def _states(job: Job) -> Word:
    if job.training.state_dtype == "fp32":
        return NOTHING
    if job.layout.zero == 0 or job.training.precision != "bf16":
        return lacks("it keeps all states in bf16 from zero1 on, beside bf16 weights")
    return says(**{"bf16.bf16_master_weights_and_grads": True, "bf16.bf16_optimizer_states": True})


def _moments(job: Job) -> Word:
    same = job.training.moment_dtype in (None, job.training.state_dtype)
    return NOTHING if same else lacks("its moments have the type of its master weights")


def _buckets(job: Job) -> Word:
    size = job.stack.collective_buffers
    if size is None or not job.layout.zero:
        return NOTHING
    elements = int(size / 4)  # one bucket to reduce and one to gather, of two bytes each
    return _set(reduce_bucket_size=elements, allgather_bucket_size=elements)


def _group(job: Job) -> Word:
    size = job.stack.update_group
    return NOTHING if size is None or job.layout.zero < 3 else _set(sub_group_size=size)


def _drive(job: Job) -> Word:
    if not job.layout.offload.drive:
        return NOTHING
    drive = job.stack.drive
    settings = {
        "offload_optimizer.buffer_count": drive.buffers,
        "offload_optimizer.pipeline_read": drive.overlaps,
        "offload_optimizer.pipeline_write": drive.overlaps,
    }
    return _set(**settings)


def _usage(job: Job, name: str) -> tuple[str, ...]:
    layout = job.layout
    tied = [f"tp{layout.tp}" if layout.tp > 1 else "", f"ep{layout.ep}" if layout.ep > 1 else ""]
    split = " and ".join(filter(None, tied))
    how = f"; it splits a Hugging Face model for {split} by itself" if split else ""
    return (
        f"the model (`{job.model.name}`), its data and sequences of {job.training.sequence_length:,} are your "
        f"program's{how}",
        f"use it as deepspeed.initialize(model=.., config='ds.json'), with {layout.num_gpus:,} processes",
        *([f"drives are taken to be mounted at {_DRIVE}"] if layout.offload.drive else []),
    )


TARGET = Target(
    name="deepspeed",
    called=f"DeepSpeed {VERSION}",
    stack="deepspeed",
    table="deepspeed",
    translated={
        **{f"model.{field}": nothing for field in TransformerSpec.model_fields},  # the program's
        "layout.pp": _pp,
        "layout.vpp": nothing,  # one: its rules
        "layout.cp": _cp,
        "layout.ep": _ep,
        "layout.etp": nothing,  # said with `ep`
        "layout.mbs": _mbs,
        "layout.zero": _stage,
        "layout.shard": nothing,  # all: its rules
        "layout.sp": only("layout.sp", "its tensor ranks have whole sequences", False),
        "layout.schedule": nothing,  # 1f1b: its rules
        "layout.order": only("layout.order", "its order is tp-cp-dp-pp", "tp-cp-dp-pp"),
        "layout.context": _context,
        "layout.recompute": _recompute,
        "layout.offload": _offload,
        "layout.ring": nothing,  # how far it fetches ahead is in parameters
        "layout.overlap": _overlap,
        "layout.layers": _layers,
        "training.sequence_length": lambda job: otherwise("what the program feeds it"),
        "training.precision": _precision,
        "training.optimizer": _optimizer,
        "training.gradient_dtype": _gradients,
        "training.state_dtype": _states,
        "training.moment_dtype": _moments,
        "training.dropout": lambda job: (
            otherwise("of the program's model") if job.question.dropout else NOTHING
        ),
        "training.tokens": fsdp2.tokens,
        "stack.gradient_dtype": nothing,  # said with the training job's
        "stack.overlap_gradient_reduce": nothing,  # said with the layout's `overlap`
        "stack.collective_buffers": _buckets,
        "stack.update_group": _group,
        "stack.selective_drops": nothing,  # it recomputes whole blocks
        "stack.drive": _drive,
    },
    text=lambda job, settings, name: json.dumps(nested(settings), indent=2) + "\n",
    usage=_usage,
)
