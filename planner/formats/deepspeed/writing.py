"""DeepSpeed 0.19.8: a plan as the JSON that `deepspeed.initialize(config=..)` takes; the model is the program's own.

Sources: DeepSpeed 0.19.8: deepspeed/runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
runtime/tensor_parallel/config.py, module_inject/auto_ep_config.py, runtime/precision_config.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cost_models.axes.recompute import policies_in
from cost_models.axes.words import EVERY
from cost_models.specs.transformer import TransformerSpec
from planner.formats.target import Target
from planner.formats.words import NOTHING, Asked, Settings, Translate, Word, lacks, otherwise, says

VERSION = "0.19.8"
_RATE = 3e-4
_ZERO = "zero_optimization"
_DRIVE = "/local/nvme"
"""Where drives are mounted, for the user to change."""


def _nothing(asked: Asked) -> Word:
    return NOTHING


def _set(**settings: Any) -> Word:
    """Settings of `zero_optimization`."""
    return says(**{f"{_ZERO}.{name}": value for name, value in settings.items()})


def _tp(asked: Asked) -> Word:
    if asked.layout.tp == 1:
        return NOTHING
    return says(**{"tensor_parallel.autotp_size": asked.layout.tp})


def _pp(asked: Asked) -> Word:
    if asked.layout.pp == 1:
        return NOTHING
    how = f"the program's model is a `PipelineModule` with `num_stages={asked.layout.pp}`"
    return otherwise(how, **{"pipeline.stages": asked.layout.pp})


def _cp(asked: Asked) -> Word:
    if asked.layout.cp == 1:
        return NOTHING
    return says(sequence_parallel_size=asked.layout.cp, data_parallel_size=asked.layout.dp)


def _context(asked: Asked) -> Word:
    kind = asked.layout.context or asked.stack.context_parallel
    return NOTHING if asked.layout.cp == 1 or kind == "all-to-all" else lacks("its context ranks trade heads")


def _ep(asked: Asked) -> Word:
    if not asked.model.has_experts or asked.layout.ep == 1:
        return NOTHING
    settings = {"expert_parallel.enabled": True, "expert_parallel.autoep_size": asked.layout.ep}
    return says(**settings, **{"expert_parallel.expert_tensor_parallel_size": asked.layout.expert_tp})


def _mbs(asked: Asked) -> Word:
    steps = asked.layout.microbatches(asked.training.global_batch)
    return says(train_micro_batch_size_per_gpu=asked.layout.mbs, gradient_accumulation_steps=steps)


def _recompute(asked: Asked) -> Word:
    policies = {policy for mix in asked.layout.recompute for policy in policies_in(mix)}
    if policies == {"none"}:
        return NOTHING
    if policies != {"full"}:
        return lacks("it recomputes whole blocks, of all or of none")
    if asked.layout.pp > 1:
        return says(**{"pipeline.activation_checkpoint_interval": 1})
    return otherwise(
        "the program turns it on, as `model.gradient_checkpointing_enable()`",
        **{"activation_checkpointing.partition_activations": False},
    )


def _offload(asked: Asked) -> Word:
    moved, layout = asked.layout.offload, asked.layout
    if not any(moved):
        return NOTHING
    if moved.parked or moved.activations:
        return lacks("it keeps states or weights on the host, and updates them there")
    if layout.zero == 0:
        return lacks("it offloads from zero1 on")
    settings: dict[str, Any] = {f"{_ZERO}.offload_optimizer.device": "nvme" if moved.drive else "cpu"}
    if moved.drive:
        settings[f"{_ZERO}.offload_optimizer.nvme_path"] = _DRIVE
    if moved.streamed:
        if layout.zero < 3 or moved.streamed < EVERY:
            return lacks("it streams the weights of all blocks, under zero3")
        return says(**settings, **{f"{_ZERO}.offload_param.device": "cpu"})
    if moved.states >= EVERY:
        return says(**settings)
    if layout.zero < 3:
        return lacks("it keeps the states of all blocks on the host, or with zero3 a share of them")
    share = round(moved.states / min(layout.layers), 6)
    return otherwise(
        "a share of a rank's parameters", **settings, **{f"{_ZERO}.offload_optimizer.ratio": share}
    )


def _layers(asked: Asked) -> Word:
    if asked.layout.pp == 1:
        return NOTHING
    if len(set(asked.layout.layers)) > 1:
        return lacks("it divides blocks evenly, by parameters or by type")
    return says(**{"pipeline.partition": "uniform"})


def _overlap(asked: Asked) -> Word:
    layout = asked.layout
    if layout.overlap is not None and layout.pp > 1 and "pp" not in layout.overlap:
        return lacks("its stages always send behind compute")
    wanted = asked.stack.overlap_gradient_reduce if layout.overlap is None else "dp" in layout.overlap
    return _set(overlap_comm=wanted) if layout.zero else NOTHING


LAYOUT: Mapping[str, Translate] = {
    "tp": _tp,
    "pp": _pp,
    "vpp": _nothing,  # one: its rules
    "cp": _cp,
    "dp": _nothing,  # what is left of the processes
    "ep": _ep,
    "etp": _nothing,  # said with `ep`
    "mbs": _mbs,
    "zero": lambda asked: _set(stage=asked.layout.zero),
    "shard": _nothing,  # all: its rules
    "sp": lambda asked: lacks("its tensor ranks have whole sequences") if asked.layout.sp else NOTHING,
    "schedule": _nothing,  # 1f1b: its rules
    "order": lambda asked: (
        NOTHING if asked.layout.order == "tp-cp-dp-pp" else lacks("its order is tp-cp-dp-pp")
    ),
    "context": _context,
    "recompute": _recompute,
    "offload": _offload,
    "ring": _nothing,  # how far it fetches ahead is in parameters
    "overlap": _overlap,
    "layers": _layers,
    "pools": lambda asked: lacks("all its ranks are of one kind") if asked.layout.pools else NOTHING,
    "replicas": lambda asked: lacks("replicas take equal shares") if asked.layout.replicas else NOTHING,
}


def _precision(asked: Asked) -> Word:
    match asked.training.precision:
        case "bf16" | "fp16" as name:
            return says(**{f"{name}.enabled": True})
        case "fp32":
            return NOTHING
    return lacks("it trains in bf16, fp16 or fp32")


def _optimizer(asked: Asked) -> Word:
    names = {"adamw": "AdamW", "sgd": "SGD", "lamb": "Lamb"}
    name = names.get(asked.training.optimizer)
    if name is None:
        return lacks(f"it has no {asked.training.optimizer}")
    return says(**{"optimizer.type": name, "optimizer.params.lr": _RATE})


def _gradients(asked: Asked) -> Word:
    dtype = asked.training.gradient_dtype or asked.stack.gradient_dtype
    if asked.training.precision not in ("bf16", "fp16"):
        return NOTHING
    wide = "fp32" if dtype == "fp32" else asked.training.precision
    return says(**{"data_types.grad_accum_dtype": wide})


def _states(asked: Asked) -> Word:
    if asked.training.state_dtype == "fp32":
        return NOTHING
    if asked.layout.zero == 0 or asked.training.precision != "bf16":
        return lacks("it keeps all states in bf16 from zero1 on, beside bf16 weights")
    return says(**{"bf16.bf16_master_weights_and_grads": True, "bf16.bf16_optimizer_states": True})


def _moments(asked: Asked) -> Word:
    same = asked.training.moment_dtype in (None, asked.training.state_dtype)
    return NOTHING if same else lacks("its moments have the type of its master weights")


TRAINING: Mapping[str, Translate] = {
    "kind": _nothing,
    "global_batch": lambda asked: says(train_batch_size=asked.training.global_batch),
    "sequence_length": lambda asked: otherwise("what the program feeds it"),
    "precision": _precision,
    "optimizer": _optimizer,
    "gradient_dtype": _gradients,
    "state_dtype": _states,
    "moment_dtype": _moments,
    "dropout": lambda asked: otherwise("of the program's model") if asked.question.dropout else NOTHING,
    "recompute": _nothing,  # what the search may use
    "tokens": lambda asked: (
        NOTHING if asked.training.tokens is None else otherwise("as many steps as the program does")
    ),
}


def _buckets(asked: Asked) -> Word:
    size = asked.stack.collective_buffers
    if size is None or not asked.layout.zero:
        return NOTHING
    elements = int(size / 4)  # one bucket to reduce and one to gather, of two bytes each
    return _set(reduce_bucket_size=elements, allgather_bucket_size=elements)


def _group(asked: Asked) -> Word:
    size = asked.stack.update_group
    return NOTHING if size is None or asked.layout.zero < 3 else _set(sub_group_size=size)


def _drive(asked: Asked) -> Word:
    if not asked.layout.offload.drive:
        return NOTHING
    drive = asked.stack.drive
    settings = {
        "offload_optimizer.buffer_count": drive.buffers,
        "offload_optimizer.pipeline_read": drive.overlaps,
        "offload_optimizer.pipeline_write": drive.overlaps,
    }
    return _set(**settings)


STACK: Mapping[str, Translate] = {
    "gradient_dtype": _nothing,  # said with the training job's
    "overlap_gradient_reduce": _nothing,  # said with the layout's `overlap`
    "collective_buffers": _buckets,
    "update_group": _group,
    "context_parallel": _nothing,  # said with the layout's `context`
    "selective_drops": _nothing,  # it recomputes whole blocks
    "drive": _drive,
}


def document(settings: Settings) -> dict[str, Any]:
    """Settings by their paths as the nested document of the file."""
    found: dict[str, Any] = {}
    for path, value in settings.items():
        *parts, last = path.split(".")
        place = found
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def _usage(asked: Asked, name: str) -> tuple[str, ...]:
    layout = asked.layout
    tied = [f"tp{layout.tp}" if layout.tp > 1 else "", f"ep{layout.ep}" if layout.ep > 1 else ""]
    split = " and ".join(filter(None, tied))
    how = f"; it splits a Hugging Face model for {split} by itself" if split else ""
    return (
        f"the model (`{asked.model.name}`), its data and sequences of {asked.training.sequence_length:,} are your "
        f"program's{how}",
        f"use it as deepspeed.initialize(model=.., config='ds.json'), with {layout.num_gpus:,} processes",
        *([f"drives are taken to be mounted at {_DRIVE}"] if layout.offload.drive else []),
    )


TARGET = Target(
    name="deepspeed",
    called=f"DeepSpeed {VERSION}",
    stack="deepspeed",
    words={
        **{f"layout.{field}": word for field, word in LAYOUT.items()},
        **{f"training.{field}": word for field, word in TRAINING.items()},
        **{f"model.{field}": _nothing for field in TransformerSpec.model_fields},  # the program's
        **{f"stack.{field}": word for field, word in STACK.items()},
    },
    text=lambda asked, settings, name: json.dumps(document(settings), indent=2) + "\n",
    usage=_usage,
)
