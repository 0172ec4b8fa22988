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

PRECISIONS: Mapping[str, Settings] = {
    "fp8": {"bf16": True, "fp8": "hybrid"},
    "fp4": {"bf16": True, "fp4": "e2m1"},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp32": {},
}
"""Precision of a plan → its arguments, those first of which others follow."""


def write_training(export: JobExport) -> None:
    """Set Megatron Core's arguments for the fields of the training job that its table does not write."""
    job, training, precision = export.job, export.job.training, export.job.training.precision
    export.choose("training.precision", precision, PRECISIONS, "its products in fp32 are without TF32")
    TABLE.arguments["optimizer"].export(export)
    decay = "its Adam decays weights apart from gradients, as AdamW"
    export.sets("training.optimizer", differs=decay, optimizer="adam", when=training.optimizer == "adamw")
    path, dtype = "training.gradient_dtype", training.gradient_dtype or job.stack.gradient_dtype
    export.sets(path, accumulate_allreduce_grads_in_fp32=True, when=dtype == "fp32" and precision != "fp32")
    export.sets(path, grad_reduce_in_bf16=True, when=dtype != "fp32" and precision not in ("fp16", "fp32"))
    if (training.moment_dtype or training.state_dtype) != "fp32":
        moments = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
        export.sets("training.moment_dtype", moments)
        reason = "only its distributed optimizer (zero1) keeps moments in bf16"
        export.lacks("training.moment_dtype", reason, when=job.layout.zero == 0)
    dropout = job.question.dropout
    export.sets("training.dropout", hidden_dropout=dropout, attention_dropout=dropout)
    if training.tokens is not None:
        samples = max(1, int(training.tokens // training.sequence_length))
        export.sets("training.tokens", differs="sequences", train_samples=samples)


def training_of(args: Arguments, layout: Layout, stack_named: bool) -> TrainingSpec:
    """The training job (batch, sequence length, precision, optimizer) that Megatron-LM arguments describe.
    Raises InputError for an optimizer that is not priced here."""
    batch, length = args.get("global_batch_size", layout.mbs * layout.dp), args.get("seq_length")
    one_each = f"a global batch of {batch}: one microbatch on every replica"
    args.assume(one_each, when=not args.has("global_batch_size"))
    args.assume("the batch as it is after its ramp", when=args.has("rampup_batch_size"))
    settings = ((name, args.values.get(name)) for name in PRECISIONS)
    precision = next((name for name, value in settings if value not in (None, False)), "fp32")
    args.assume("fp32: neither `--bf16` nor `--fp16` is there", when=precision == "fp32")
    hidden, attention = args.get("hidden_dropout"), args.get("attention_dropout")
    has_dropout = args.has("hidden_dropout")
    args.assume(f"dropout {hidden:g}, Megatron-LM's default of `--hidden-dropout`", when=not has_dropout)
    difference = f"attention's dropout ({attention:g}) as the hidden one ({hidden:g})"
    args.assume(difference, when=has_dropout and hidden != attention)
    samples = args.get("train_samples", args.get("train_iters") * batch)
    fields: dict[str, Any] = {
        "global_batch": batch,
        "sequence_length": length,
        "precision": precision,
        "optimizer": TABLE.arguments["optimizer"].plan_value(args.get("optimizer")),
        "gradient_dtype": _gradients_of(args, stack_named),
        "moment_dtype": "bf16" if args.get("exp_avg_dtype") in ("bf16", "fp16") else None,
        "dropout": float(hidden),
        "tokens": float(samples * length) if samples else None,
    }
    return TrainingSpec(**fields)


def _gradients_of(args: Arguments, stack_named: bool) -> str | None:
    """Gradient dtype by Megatron-LM arguments; fp16 gradients are summed in 16 bits by default, others in fp32
    (`validate_args`)."""
    if args.get("accumulate_allreduce_grads_in_fp32"):
        return "fp32" if stack_named else None
    if args.get("grad_reduce_in_bf16") or args.get("main_grads_dtype") == "bf16":
        return "bf16"
    return "bf16" if args.get("fp16") and not stack_named else None
