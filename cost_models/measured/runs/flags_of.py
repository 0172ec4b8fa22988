"""Switches of well-known trainers in a row's notes, as changes of its stack and its training job.

A switch counts where it stands alone between semicolons, as `--no-gradient-accumulation-fusion` without its dashes does
in the logs of Megatron-LM. What is not named stays as the stack has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cost_models.measured.runs.row import Row

_INSIDE_PRODUCTS = 0.6
"""Share of tensor-parallel communication that Megatron Core's userbuffers hide, as in its stack."""
_SCATTERS_BEHIND: Mapping[str, Any] = {"reduces_behind_weight_products": True}
_SCATTERS_IN_SIGHT: Mapping[str, Any] = {"reduces_behind_weight_products": False}
_STACK_FLAGS: Mapping[str, Mapping[str, Any]] = {
    "no-gradient-accumulation-fusion": {"fused_gradient_accumulation": False},
    "gradient-accumulation-fusion": {"fused_gradient_accumulation": True},
    "attention-backend=unfused": {"attention": "unfused"},
    "attention-backend=local": {"attention": "fused-softmax"},
    "attention-backend=flash": {"attention": "flash2"},
    "attention-backend=fused": {"attention": "cudnn"},
    "use-flash-attn": {"attention": "flash2"},
    "overlap-grad-reduce": {"overlap_gradient_reduce": True},
    "no-overlap-grad-reduce": {"overlap_gradient_reduce": False},
    "overlap-param-gather": {"overlap_parameter_gather": True},
    "no-overlap-param-gather": {"overlap_parameter_gather": False},
    "grad-reduce-in-bf16": {"gradient_dtype": "bf16"},
    "bf16 main grads": {"gradient_dtype": "bf16"},
    "bf16 main gradients": {"gradient_dtype": "bf16"},
    "main-grads-dtype=bf16": {"gradient_dtype": "bf16"},
    "precision-aware optimizer": {
        "master_remainders": True
    },  # store_param_remainders: Transformer Engine from 2.1 on
    "use-precision-aware-optimizer": {"master_remainders": True},
    "accumulate-allreduce-grads-in-fp32": {"gradient_dtype": "fp32"},
    "tp-comm-overlap": {"overlap_tensor_parallel": _INSIDE_PRODUCTS},
    "no-tp-comm-overlap": {"overlap_tensor_parallel": 0.0},
    "tp_linear_async_communication=true": _SCATTERS_BEHIND,
    "tp_linear_async_communication=false": _SCATTERS_IN_SIGHT,
    "no async TP": _SCATTERS_IN_SIGHT,
    "deterministic mode": {"deterministic": True},
    "deterministic-mode": {"deterministic": True},
    "cross-entropy-loss-fusion": {"extra_loss_copies": 1.0},
    "no-bias-gelu-fusion": {"fused_elementwise": False},
    "no-bias-swiglu-fusion": {"fused_elementwise": False},
}
_DOUBTFUL = re.compile(r"noisy|suspect|inconsistent|regression|_bound\b")
_LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING=1"
_EXPERT_TENSOR = re.compile(r"(?:ETP|expert-tensor-parallel-size)=(\d{1,4})\b")
_DROPOUT = re.compile(r"dropout(?: default)?[ =](?P<share>0(?:\.\d+)?)(?:/[\d.]+)?")
_OPTIMIZER = re.compile(r"optimizer=(?P<name>\w+)")
_OPTIMIZERS = {"sgd": "sgd", "adam": "adamw", "adamw": "adamw"}


def is_doubtful(row: Row) -> bool:
    """Whether the transcriber flagged the row's time: noisy, suspect, or bound by what the row does not say."""
    return _DOUBTFUL.search(row.text("flags").lower()) is not None


def _switches(row: Row) -> tuple[str, ...]:
    """What stands alone in the notes of a row, and in what its transcriber took for granted."""
    words = re.split(r"[;,()]", f"{row.text('notes')};{row.text('assumed_fields')}")
    return tuple(one.strip().lstrip("-") for one in words)


def expert_tensor_parallel(row: Row) -> int | None:
    """Expert tensor parallelism where the row's notes say it; else None."""
    sizes = _EXPERT_TENSOR.findall(row.text("notes"))
    return int(sizes[0]) if sizes else None


def stack_changes(row: Row) -> dict[str, Any]:
    """Field of `StackSpec` → value that the row's switches set."""
    changes: dict[str, Any] = {}
    if _LAUNCH_BLOCKING in row.text("notes"):
        changes["launches_block"] = True
    for switch in _switches(row):
        changes |= _STACK_FLAGS.get(switch, {})
    return changes


def training_changes(row: Row) -> dict[str, Any]:
    """Field of `TrainingSpec` → value that the row's notes set: dropout, optimizer."""
    changes: dict[str, Any] = {}
    for switch in _switches(row):
        if dropout := _DROPOUT.match(switch):
            changes["dropout"] = float(dropout["share"])
        if (optimizer := _OPTIMIZER.match(switch)) and optimizer["name"] in _OPTIMIZERS:
            changes["optimizer"] = _OPTIMIZERS[optimizer["name"]]
    return changes
