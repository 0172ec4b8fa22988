"""axolotl 0.18.0: a plan as the YAML that `axolotl train` takes; model and data are named for the user to change.

Sources: axolotl 0.18.0: src/axolotl/utils/schemas/config.py, fsdp.py, peft.py, training.py, validation.py,
loaders/adapter.py, loaders/model.py (nf4 with scales quantised once more).
"""

from __future__ import annotations

from typing import Any

import yaml

from cost_models.operators.tuning import target_names
from planner.formats import fsdp2
from planner.formats.exporter import NOTHING, Job, Settings, Word, lacks, nested, otherwise, says
from planner.formats.launching import torchrun_by_hand
from planner.formats.table import table_of
from planner.formats.target import Target

VERSION = "0.18.0"
_RATE = 2e-5
PATHS = fsdp2.Paths(
    version="fsdp_version",
    reshard="fsdp_config.reshard_after_forward",
    strategy="fsdp_config.sharding_strategy",
    offload="fsdp_config.offload_params",
    wrap="fsdp_config.auto_wrap_policy",
    tp="tensor_parallel_size",
    cp="context_parallel_size",
    shard="dp_shard_size",
    replicate="dp_replicate_size",
    recompute="gradient_checkpointing",
    ep="expert_parallel_size",
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
    modules = table_of("axolotl").arguments["lora_target_modules"].values
    said["lora_target_modules"] = sorted(modules[name] for name in wanted)
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
        "training.tuning": _adapters,
    },
    text=_text,
    usage=_usage,
)
