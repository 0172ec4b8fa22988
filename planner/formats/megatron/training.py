"""The training job in Megatron Core's arguments, written and read.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/optimizer/optimizer_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.specs.training import TrainingSpec
from planner.formats.exporter import JobExport, Settings
from planner.formats.megatron.arguments import TABLE, Arguments

_PRECISIONS: Mapping[str, Settings] = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp32": {},
    "fp8": {"bf16": True, "fp8": "hybrid"},
    "fp4": {"bf16": True, "fp4": "e2m1"},
}


def write_training(export: JobExport) -> None:
    """Set Megatron Core's arguments for the fields of the training job that its table does not write."""
    job, training = export.job, export.job.training
    wide = training.precision == "fp32"
    reason = "its products in fp32 are without TF32"
    export.choose("training.precision", training.precision, _PRECISIONS, reason)
    if training.optimizer == "adamw":
        difference = "its Adam decays weights apart from gradients, as AdamW"
        export.sets("training.optimizer", differs=difference, optimizer="adam")
    else:
        choices = {"sgd": {"optimizer": "sgd"}}
        export.choose("training.optimizer", training.optimizer, choices, f"it has no {training.optimizer}")
    if (training.gradient_dtype or job.stack.gradient_dtype) == "fp32" and not wide:
        export.sets("training.gradient_dtype", accumulate_allreduce_grads_in_fp32=True)
    elif not wide and training.precision != "fp16":
        export.sets("training.gradient_dtype", grad_reduce_in_bf16=True)
    export.supports({"training.state_dtype": ("its master weights are in fp32 or fp16", "fp32")})
    narrow_moments = (training.moment_dtype or training.state_dtype) != "fp32"
    if narrow_moments and job.layout.zero == 0:
        export.lacks("training.moment_dtype", "only its distributed optimizer (zero1) keeps moments in bf16")
    elif narrow_moments:
        moments = {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
        export.sets("training.moment_dtype", {"use_precision_aware_optimizer": True} | moments)
    dropout = job.question.dropout
    export.sets("training.dropout", hidden_dropout=dropout, attention_dropout=dropout)
    if training.tokens is not None:
        samples = max(1, int(training.tokens // training.sequence_length))
        export.sets("training.tokens", differs="sequences", train_samples=samples)


def training_of(args: Arguments, layout: Layout, stack_named: bool, assumed: list[str]) -> TrainingSpec:
    """The training job (batch, sequence length, precision, optimizer) that Megatron-LM arguments describe.
    Raises InputError for an optimizer that is not priced here."""
    batch = args.get("global_batch_size")
    if batch is None:
        batch = layout.mbs * layout.dp
        assumed.append(f"a global batch of {batch}: one microbatch on every replica")
    if args.has("rampup_batch_size"):
        assumed.append("the batch as it is after its ramp")
    length = args.get("seq_length")
    samples = args.get("train_samples", args.get("train_iters") * batch)
    fields: dict[str, Any] = {
        "global_batch": batch,
        "sequence_length": length,
        "precision": _precision_of(args, assumed),
        "optimizer": TABLE.arguments["optimizer"].plan_value(args.get("optimizer")),
        "gradient_dtype": _gradients_of(args, stack_named),
        "dropout": _dropout_of(args, assumed),
        **({"tokens": float(samples * length)} if samples else {}),
    }
    if args.get("exp_avg_dtype") in ("bf16", "fp16"):
        fields["moment_dtype"] = "bf16"
    return TrainingSpec(**fields)


def _precision_of(args: Arguments, assumed: list[str]) -> str:
    for precision in ("fp8", "fp4", "bf16", "fp16"):
        if args.get(precision) not in (None, False):
            return precision
    assumed.append("fp32: neither `--bf16` nor `--fp16` is there")
    return "fp32"


def _gradients_of(args: Arguments, stack_named: bool) -> str | None:
    """Gradient dtype by Megatron-LM arguments; fp16 gradients are summed in 16 bits by default, others in fp32
    (`validate_args`)."""
    if args.get("accumulate_allreduce_grads_in_fp32"):
        return "fp32" if stack_named else None
    if args.get("grad_reduce_in_bf16") or args.get("main_grads_dtype") == "bf16":
        return "bf16"
    return "bf16" if args.get("fp16") and not stack_named else None


def _dropout_of(args: Arguments, assumed: list[str]) -> float:
    hidden, attention = args.get("hidden_dropout"), args.get("attention_dropout")
    if not args.has("hidden_dropout"):
        assumed.append(f"dropout {hidden:g}, Megatron-LM's default of `--hidden-dropout`")
    elif hidden != attention:
        assumed.append(f"attention's dropout ({attention:g}) as the hidden one ({hidden:g})")
    return float(hidden)
