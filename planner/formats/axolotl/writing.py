"""axolotl 0.18.0: a plan as the YAML that `axolotl train` takes; model and data are named for the user to change.

Sources: axolotl 0.18.0: src/axolotl/utils/schemas/config.py, fsdp.py, training.py, validation.py.
"""

from __future__ import annotations

from typing import Any

import yaml

from planner.formats import fsdp2
from planner.formats.exporter import NOTHING, Job, Settings, Word, lacks, nested, says
from planner.formats.launching import torchrun_by_hand
from planner.formats.target import Target

VERSION = "0.18.0"
OPTIMIZER = "adamw_torch_fused"
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
        "training.optimizer": lambda job: (
            says(optimizer=OPTIMIZER)
            if job.training.optimizer == "adamw"
            else lacks("only AdamW is priced alike")
        ),
    },
    text=_text,
    usage=_usage,
)
