"""The training job and the facts of the software stack in Megatron Core's arguments, written and read.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/optimizer/optimizer_config.py, core/transformer/mlp.py, core/distributed/distributed_data_parallel_config.py,
core/fusions/fused_bias_dropout.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.choices import Overlap
from cost_models.specs.stack import USER_BUFFERS, VOCABULARY_UNIT, StackSpec
from cost_models.specs.training import TrainingSpec
from planner.formats.exporter import JobExport, Settings
from planner.formats.megatron.arguments import TABLE, Arguments
from planner.formats.megatron.layout import zero_of

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
        "optimizer": args.plan_value("optimizer"),
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


STACK = "megatron-core"
"""Catalogue name of the software stack of core 0.20."""
_BACKENDS = {"cudnn": "auto", "unfused": "unfused", "flash2": "flash", "flash3": "flash"}
_KERNELS = {"unfused": "unfused", "local": "fused-softmax", "flash": "flash2", "fused": "cudnn"}
_SWITCHES = "deterministic_mode overlap_cpu_optimizer_d2h_h2d gradient_accumulation_fusion"
"""Arguments of which each is a fact of the software stack."""


FACTS = """
    attention pads_vocabulary gradient_dtype fused_elementwise master_remainders overlap_gradient_reduce
    overlap_parameter_gather overlap_tensor_parallel expert_dispatch selective_drops overlaps_host
    overlap_pipeline_sends transformer_engine
"""
"""Facts of the software stack that Megatron Core switches; `gradient_dtype` with the training job's, `selective_drops`
with the layout's `recompute`."""


def write_facts(export: JobExport) -> None:
    """Set Megatron Core's arguments for the facts of the software stack that they switch."""
    job, layout, stack, model = export.job, export.job.layout, export.job.stack, export.job.model
    backends = {kernel: {"attention_backend": name} for kernel, name in _BACKENDS.items()}
    reason = "its attention backends are unfused, flash and fused"
    export.choose("stack.attention", stack.attention, backends, reason)
    in_stack = model.vocab_multiple == 1 and stack.pads_vocabulary  # as in plans of earlier releases
    multiple = VOCABULARY_UNIT if in_stack else model.vocab_multiple
    export.sets("stack.pads_vocabulary", make_vocab_size_divisible_by=multiple)
    if not stack.fused_elementwise:
        fusions = ("bias_gelu_fusion", "bias_swiglu_fusion", "bias_dropout_fusion")
        export.sets("stack.fused_elementwise", dict.fromkeys(fusions, False))
        reason = "its GELU by tanh is fused with the bias"
        export.lacks("stack.fused_elementwise", reason, when=model.activation == "gelu-tanh")
    if stack.master_remainders and job.training.precision != "fp32":
        export.sets("stack.master_remainders", use_precision_aware_optimizer=True)
        reason = "only its distributed optimizer (zero1) keeps master weights so"
        export.lacks("stack.master_remainders", reason, when=layout.zero == 0)
    _write_overlaps(export)
    if model.has_experts:
        dispatcher = {"moe_token_dispatcher_type": "alltoall"}
        if stack.expert_dispatch != "copies" and layout.ep * layout.expert_tp > 1:
            dispatcher = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
        export.sets("stack.expert_dispatch", dispatcher, moe_grouped_gemm=True)
    hides_host = stack.overlaps_host and layout.offload.states
    export.sets("stack.overlaps_host", overlap_cpu_optimizer_d2h_h2d=True, when=hides_host)
    export.sets("stack.transformer_engine", transformer_impl="local", when=not stack.transformer_engine)


def _write_overlaps(export: JobExport) -> None:
    """Set what runs behind compute: what the layout names or, where it leaves that open, what the stack always does."""
    layout, stack = export.job.layout, export.job.stack

    def overlaps(axis: Overlap, fact: str) -> bool:
        return getattr(stack, fact) > 0 if layout.overlap is None else axis in layout.overlap

    reduces = overlaps("dp", "overlap_gradient_reduce")
    export.sets("stack.overlap_gradient_reduce", overlap_grad_reduce=True, when=reduces)
    if overlaps("dp", "overlap_parameter_gather") and layout.zero:
        export.sets("stack.overlap_parameter_gather", overlap_param_gather=True)
        reason = "it gathers parameters behind compute only where it reduces gradients so"
        export.lacks("stack.overlap_parameter_gather", reason, when=not reduces)
    has_buffers = layout.tp > 1 and layout.sp and export.job.training.precision in USER_BUFFERS
    inside = has_buffers and overlaps("tp", "overlap_tensor_parallel")
    export.sets("stack.overlap_tensor_parallel", tp_comm_overlap=True, when=inside)
    sends_late = layout.vpp > 1 and not overlaps("pp", "overlap_pipeline_sends")
    export.sets("stack.overlap_pipeline_sends", overlap_p2p_comm=False, when=sends_late)


def stack_of(args: Arguments, base: StackSpec, stack_named: bool) -> StackSpec:
    """Copy of a software stack with the facts that Megatron-LM arguments switch. Missing switches are off,
    unless the user named the stack.

    Raises:
        InputError: an attention backend is not known.
    """
    zero, experts = zero_of(args), args.get("num_experts")
    dispatcher, backend = args.get("moe_token_dispatcher_type"), args.get("attention_backend")
    gathers = dispatcher == "allgather" and args.get("expert_model_parallel_size") > 1
    precise = args.get("use_precision_aware_optimizer") and not args.get("optimizer_cpu_offload")
    switches = {
        # FSDP overlaps both
        "overlap_grad_reduce": zero > 1 or args.get("overlap_grad_reduce"),
        "overlap_param_gather": zero == 3 if zero > 1 else args.get("overlap_param_gather"),
        "tp_comm_overlap": load_stack(STACK).overlap_tensor_parallel * args.get("tp_comm_overlap"),
        "use_precision_aware_optimizer": bool(precise),
        **({"moe_token_dispatcher_type": "tokens" if dispatcher == "flex" else "copies"} if experts else {}),
        **{name: args.get(name) for name in _SWITCHES.split()},
    }
    facts: dict[str, Any] = {
        TABLE.arguments[name].field.removeprefix("stack."): value
        for name, value in switches.items()
        if args.has(name) or not stack_named
    }
    tokens = "tokens go to experts one by one, not gathered everywhere (`allgather`)"
    args.assume(tokens, when="expert_dispatch" in facts and gathers)
    if zero > 1:  # core/distributed/fsdp: gradients are scattered, weights gathered for every microbatch
        facts |= {"zero_stages": (*base.zero_stages, zero), "unsharded_gradients_until_sync": False}
        facts["zero3_gathers_every_microbatch"] = True
    if args.has("make_vocab_size_divisible_by") or args.has("padded_vocab_size") or not stack_named:
        is_unit = args.get("make_vocab_size_divisible_by") == VOCABULARY_UNIT
        facts["pads_vocabulary"] = is_unit and not args.has("padded_vocab_size")
    if _is_unfused(args):
        facts["fused_elementwise"] = False
    if args.get("overlap_p2p_comm") is False:
        facts["overlap_pipeline_sends"] = False
    if args.get("cross_entropy_loss_fusion"):
        facts["extra_loss_copies"] = 1.0
    if args.get("recompute_granularity") == "selective":
        modules, argument = args.get("recompute_modules"), TABLE.arguments["recompute_modules"]
        drops = tuple(sorted(argument.plan_value(one) for one in modules))
        facts["selective_drops"] = drops[0] if len(drops) == 1 else drops or "core"
    if args.get("transformer_impl") == "local":
        facts |= {"transformer_engine": False, "attention": "fused-softmax"}
    if args.get("use_flash_attn"):
        facts["attention"] = "flash2"
    if backend not in (*_KERNELS, "auto"):
        raise InputError(f"`--attention-backend {backend}` is not known here")
    facts |= {"attention": _KERNELS[backend]} if backend in _KERNELS else {}
    return base.model_copy(update=facts)


def _is_unfused(args: Arguments) -> bool:
    """Whether the arguments switch off a fusion that would apply to this model (transformer/mlp.py,
    fused_bias_dropout.py)."""
    biases, gated = args.get("add_bias_linear"), args.get("swiglu")
    activation = "bias_swiglu_fusion" if gated else "bias_gelu_fusion"
    activates = (gated or (biases and not args.get("squared_relu"))) and args.get(activation) is False
    adds = (biases or args.get("hidden_dropout") > 0) and args.get("bias_dropout_fusion") is False
    return bool(activates or adds)
