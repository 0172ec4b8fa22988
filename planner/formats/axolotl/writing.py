"""axolotl 0.18.0: a plan as the YAML that `axolotl train` takes; model and data are named for the user to change.

Sources: axolotl 0.18.0: src/axolotl/utils/schemas/config.py, fsdp.py, peft.py, training.py, validation.py,
loaders/adapter.py, loaders/model.py (nf4 with scales quantised once more).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from cost_models.operators.tuning import target_names
from cost_models.specs.training import OptimizerName
from planner.formats import fsdp2
from planner.formats.exporter import NOTHING, Job, Settings, Word, lacks, nested, otherwise, says
from planner.formats.launching import torchrun_by_hand
from planner.formats.target import Target

VERSION = "0.18.0"
OPTIMIZERS: Mapping[OptimizerName, str] = {
    "adamw": "adamw_torch_fused",
    "adamw-8bit": "adamw_torch_8bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
}
_PROJ = ("q", "k", "v", "o", "gate", "up", "down", "q_a", "q_b", "kv_b")
MODULES = {name: f"{name}_proj" for name in _PROJ} | {
    "kv_a": "kv_a_proj_with_mqa",
    "in_proj": "in_proj",
    "out_proj": "out_proj",
}
"""Usual name of a matrix → the module that Llama, DeepSeek and most others have for it."""
_RATE = 2e-5
PATHS = fsdp2.Paths(
    version="fsdp_version",
    reshard="fsdp_config.reshard_after_forward",
    offload="fsdp_config.offload_params",
    wrap="fsdp_config.auto_wrap_policy",
    tp="tensor_parallel_size",
    cp="context_parallel_size",
    shard="dp_shard_size",
    replicate="dp_replicate_size",
    recompute="gradient_checkpointing",
)


def _context(job: Job) -> Word:
    if job.layout.cp == 1:
        return NOTHING
    kind = job.layout.context or job.stack.context_parallel
    return (
        says(ring_attn_func="batch_ring")
        if kind == "ring"
        else lacks("its context ranks pass keys in a ring")
    )


def _precision(job: Job) -> Word:
    match job.training.precision:
        case "bf16" | "fp16" as name:
            return says(**{name: True})
        case "fp32":
            return says(bf16=False)
    return lacks("it trains in bf16, fp16 or fp32")


def _optimizer(job: Job) -> Word:
    name = job.training.optimizer
    if name not in OPTIMIZERS:
        return lacks("it is not priced alike")
    return says(optimizer=OPTIMIZERS[name])


def _adapters(job: Job) -> Word:
    tuning = job.training.tuning
    if tuning is None:
        return NOTHING
    alpha = tuning.scale * tuning.rank
    said: dict[str, Any] = {
        "adapter": "qlora" if tuning.base == "nf4" else "lora",
        "lora_r": tuning.rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": tuning.dropout,
    }
    if tuning.base:
        said["load_in_4bit" if tuning.base == "nf4" else "load_in_8bit"] = True
    if "all-linear" in tuning.targets:
        said["lora_target_linear"] = True
        return otherwise("on routers, too", **said) if job.model.has_experts else says(**said)
    if "experts" in (wanted := target_names(tuning)):
        return lacks("its adapters beside experts alone are named by the model")
    said["lora_target_modules"] = sorted(MODULES[name] for name in wanted)
    return otherwise("modules have the names of Llama's", **said)


def _text(job: Job, settings: Settings, name: str) -> str:
    own: dict[str, Any] = {
        "base_model": f"./{job.model.name}",
        "datasets": [{"path": "data.jsonl", "type": "completion"}],
        "output_dir": "./out",
        "attn_implementation": "flash_attention_2",
        "learning_rate": _RATE,
        "num_epochs": 1,
    }
    head = (
        f"axolotl train axolotl.yaml --launcher torchrun -- {torchrun_by_hand(job).removeprefix('torchrun ')}"
    )
    return f"# {head}\n{yaml.safe_dump(own | nested(settings), sort_keys=False)}"


def _usage(job: Job, name: str) -> tuple[str, ...]:
    words = torchrun_by_hand(job).removeprefix("torchrun ")
    return (
        "`base_model`, `datasets` and `output_dir` are yours: name the checkpoint and its data",
        f"use it as axolotl train axolotl.yaml --launcher torchrun -- {words}",
    )


TARGET = Target(
    name="axolotl",
    called=f"axolotl {VERSION}",
    stack=fsdp2.STACK,
    table="axolotl",
    translated={
        **fsdp2.translated(PATHS),
        "layout.context": _context,
        "training.global_batch": lambda job: says(
            gradient_accumulation_steps=job.layout.microbatches(job.training.global_batch)
        ),
        "training.precision": _precision,
        "training.optimizer": _optimizer,
        "training.tuning": _adapters,
    },
    text=_text,
    usage=_usage,
)
