"""The training job in Megatron Core's arguments, written and read.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/optimizer/optimizer_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.specs.training import TrainingSpec
from planner.formats.exporter import NOTHING, Job, Translate, Word, lacks, only, otherwise, says
from planner.formats.megatron.arguments import TABLE, Arguments
from planner.formats.table import table_of


def _precision(job: Job) -> Word:
    match job.training.precision:
        case "bf16" | "fp16" as name:
            return says(**{name: True})
        case "fp32":
            return NOTHING
        case "fp8":
            return says(bf16=True, fp8="hybrid")
        case "fp4":
            return says(bf16=True, fp4="e2m1")
    return lacks("its products in fp32 are without TF32")


def _optimizer(job: Job) -> Word:
    match job.training.optimizer:
        case "adamw":
            return otherwise("its Adam decays weights apart from gradients, as AdamW", optimizer="adam")
        case "sgd":
            return says(optimizer="sgd")
        case other:
            return lacks(f"it has no {other}")


def _gradients(job: Job) -> Word:
    dtype = job.training.gradient_dtype or job.stack.gradient_dtype
    if job.training.precision == "fp32":
        return NOTHING
    if dtype == "fp32":
        return says(accumulate_allreduce_grads_in_fp32=True)
    return says(grad_reduce_in_bf16=True) if job.training.precision != "fp16" else NOTHING


def _moments(job: Job) -> Word:
    if (job.training.moment_dtype or job.training.state_dtype) == "fp32":
        return NOTHING
    if job.layout.zero == 0:
        return lacks("only its distributed optimizer (zero1) keeps moments in bf16")
    return says(use_precision_aware_optimizer=True, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16")


def _tokens(job: Job) -> Word:
    if job.training.tokens is None:
        return NOTHING
    samples = max(1, int(job.training.tokens // job.training.sequence_length))
    return otherwise("sequences", train_samples=samples)


TRAINING: Mapping[str, Translate] = {
    "training.precision": _precision,
    "training.optimizer": _optimizer,
    "training.gradient_dtype": _gradients,
    "training.state_dtype": only("training.state_dtype", "its master weights are in fp32 or fp16", "fp32"),
    "training.moment_dtype": _moments,
    "training.dropout": lambda job: says(
        hidden_dropout=job.question.dropout, attention_dropout=job.question.dropout
    ),
    "training.tokens": _tokens,
}


def training_of(said: Arguments, layout: Layout, stack_named: bool, assumed: list[str]) -> TrainingSpec:
    """The training job that arguments describe. Raises InputError for an optimizer that is not priced here."""
    batch = said.get("global_batch_size")
    if batch is None:
        batch = layout.mbs * layout.dp
        assumed.append(f"a global batch of {batch}: one microbatch on every replica")
    if said.has("rampup_batch_size"):
        assumed.append("the batch as it is after its ramp")
    length = said.get("seq_length")
    samples = said.get("train_samples", said.get("train_iters") * batch)
    optimizer, known = said.get("optimizer"), table_of(TABLE).arguments["optimizer"]
    fields: dict[str, Any] = {
        "global_batch": batch,
        "sequence_length": length,
        "precision": _precision_of(said, assumed),
        "optimizer": known.ours(optimizer),
        "gradient_dtype": _gradients_of(said, stack_named),
        "dropout": _dropout_of(said, assumed),
        **({"tokens": float(samples * length)} if samples else {}),
    }
    if said.get("exp_avg_dtype") in ("bf16", "fp16"):
        fields["moment_dtype"] = "bf16"
    return TrainingSpec(**fields)


def _precision_of(said: Arguments, assumed: list[str]) -> str:
    for low in ("fp8", "fp4"):
        if said.has(low):
            return low
    wide = "bf16" if said.get("bf16") else "fp16" if said.get("fp16") else "fp32"
    if wide == "fp32":
        assumed.append("fp32: neither `--bf16` nor `--fp16` is there")
    return wide


def _gradients_of(said: Arguments, stack_named: bool) -> str | None:
    """fp16 gradients are summed in 16 bits unless the command says fp32, all others in fp32 (`validate_args`)."""
    if said.get("accumulate_allreduce_grads_in_fp32"):
        return "fp32" if stack_named else None
    if said.get("grad_reduce_in_bf16") or said.get("main_grads_dtype") == "bf16":
        return "bf16"
    return "bf16" if said.get("fp16") and not stack_named else None


def _dropout_of(said: Arguments, assumed: list[str]) -> float:
    hidden, attention = said.get("hidden_dropout"), said.get("attention_dropout")
    if not said.has("hidden_dropout"):
        assumed.append(f"dropout {hidden:g}, Megatron-LM's default of `--hidden-dropout`")
    elif hidden != attention:
        assumed.append(f"attention's dropout ({attention:g}) as the hidden one ({hidden:g})")
    return float(hidden)
