"""Facts of the software stack that Megatron Core's arguments switch, written and read.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py, core/transformer/mlp.py,
core/distributed/distributed_data_parallel_config.py, core/fusions/fused_bias_dropout.py.
"""

from __future__ import annotations

from typing import Any

from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.choices import Overlap
from cost_models.specs.stack import USER_BUFFERS, VOCABULARY_UNIT, StackSpec
from planner.formats.exporter import JobExport
from planner.formats.megatron.arguments import TABLE, Arguments
from planner.formats.megatron.layout import zero_of

STACK = "megatron-core"
"""Catalogue name of the software stack of core 0.20."""
_BACKENDS = {"cudnn": "auto", "unfused": "unfused", "flash2": "flash", "flash3": "flash"}
_KERNELS = {"unfused": "unfused", "local": "fused-softmax", "flash": "flash2", "fused": "cudnn"}


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
    multiple = model.vocab_multiple
    if multiple == 1 and stack.pads_vocabulary:  # plans of earlier releases have it in the stack
        multiple = VOCABULARY_UNIT
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
    hides = stack.overlaps_host and layout.offload.states
    export.sets("stack.overlaps_host", overlap_cpu_optimizer_d2h_h2d=True, when=hides)
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
    waits = layout.vpp > 1 and not overlaps("pp", "overlap_pipeline_sends")
    export.sets("stack.overlap_pipeline_sends", overlap_p2p_comm=False, when=waits)


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
        **{name: args.get(name) for name in ("deterministic_mode", "overlap_cpu_optimizer_d2h_h2d")},
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
    if args.has("gradient_accumulation_fusion"):
        facts["fused_gradient_accumulation"] = args.get("gradient_accumulation_fusion")
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
    activates = gated or (biases and not args.get("squared_relu"))
    adds = biases or args.get("hidden_dropout") > 0
    activation = "bias_swiglu_fusion" if gated else "bias_gelu_fusion"
    off = {name: args.get(name) is False for name in (activation, "bias_dropout_fusion")}
    return (activates and off[activation]) or (adds and off["bias_dropout_fusion"])
