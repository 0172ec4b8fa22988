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
    if not stack.fused_elementwise and model.activation == "gelu-tanh":
        export.lacks("stack.fused_elementwise", "its GELU by tanh is fused with the bias")
    elif not stack.fused_elementwise:
        fusions = ("bias_gelu_fusion", "bias_swiglu_fusion", "bias_dropout_fusion")
        export.sets("stack.fused_elementwise", dict.fromkeys(fusions, False))
    if stack.master_remainders and job.training.precision != "fp32":
        if layout.zero == 0:
            reason = "only its distributed optimizer (zero1) keeps master weights so"
            export.lacks("stack.master_remainders", reason)
        else:
            export.sets("stack.master_remainders", use_precision_aware_optimizer=True)
    _write_overlaps(export)
    if model.has_experts:
        in_copies = stack.expert_dispatch == "copies" or layout.ep * layout.expert_tp == 1
        dispatcher = {"moe_token_dispatcher_type": "alltoall"}
        if not in_copies:
            dispatcher = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
        export.sets("stack.expert_dispatch", dispatcher, moe_grouped_gemm=True)
    if stack.overlaps_host and layout.offload.states:
        export.sets("stack.overlaps_host", overlap_cpu_optimizer_d2h_h2d=True)
    if not stack.transformer_engine:
        export.sets("stack.transformer_engine", transformer_impl="local")


def _write_overlaps(export: JobExport) -> None:
    """Set what runs behind compute: what the layout names or, where it leaves that open, what the stack always does."""
    layout, stack = export.job.layout, export.job.stack

    def overlaps(axis: Overlap, fact: str) -> bool:
        return getattr(stack, fact) > 0 if layout.overlap is None else axis in layout.overlap

    reduces = overlaps("dp", "overlap_gradient_reduce")
    if reduces:
        export.sets("stack.overlap_gradient_reduce", overlap_grad_reduce=True)
    if overlaps("dp", "overlap_parameter_gather") and layout.zero:
        if reduces:
            export.sets("stack.overlap_parameter_gather", overlap_param_gather=True)
        else:
            reason = "it gathers parameters behind compute only where it reduces gradients so"
            export.lacks("stack.overlap_parameter_gather", reason)
    has_buffers = layout.tp > 1 and layout.sp and export.job.training.precision in USER_BUFFERS
    if has_buffers and overlaps("tp", "overlap_tensor_parallel"):
        export.sets("stack.overlap_tensor_parallel", tp_comm_overlap=True)
    if layout.vpp > 1 and not overlaps("pp", "overlap_pipeline_sends"):
        export.sets("stack.overlap_pipeline_sends", overlap_p2p_comm=False)


def stack_of(args: Arguments, base: StackSpec, stack_named: bool, assumed: list[str]) -> StackSpec:
    """Copy of a software stack with the facts that Megatron-LM arguments switch. Missing switches are off,
    unless the user named the stack.

    Raises:
        InputError: an attention backend is not known.
    """
    inside = load_stack(STACK).overlap_tensor_parallel
    precise = args.get("use_precision_aware_optimizer") and not args.get("optimizer_cpu_offload")
    switches = "overlap_grad_reduce overlap_param_gather deterministic_mode overlap_cpu_optimizer_d2h_h2d"
    switched = {name: args.get(name) for name in switches.split()}
    switched["tp_comm_overlap"] = inside * args.get("tp_comm_overlap")
    switched["use_precision_aware_optimizer"] = bool(precise)
    zero = zero_of(args)
    if zero > 1:  # FSDP, which overlaps both
        switched |= {"overlap_grad_reduce": True, "overlap_param_gather": zero == 3}
    changes: dict[str, Any] = {
        TABLE.arguments[name].field.removeprefix("stack."): value
        for name, value in switched.items()
        if args.has(name) or not stack_named
    }
    if zero > 1:  # core/distributed/fsdp: gradients are scattered, weights gathered for every microbatch
        changes |= {
            "zero_stages": (*base.zero_stages, zero),
            "unsharded_gradients_until_sync": False,
            "zero3_gathers_every_microbatch": True,
        }
    if args.has("make_vocab_size_divisible_by") or not stack_named:
        changes["pads_vocabulary"] = args.get("make_vocab_size_divisible_by") == VOCABULARY_UNIT
    if args.has("padded_vocab_size"):
        changes["pads_vocabulary"] = False
    if args.has("gradient_accumulation_fusion"):
        changes["fused_gradient_accumulation"] = args.get("gradient_accumulation_fusion")
    if _is_unfused(args):
        changes["fused_elementwise"] = False
    if args.get("overlap_p2p_comm") is False:
        changes["overlap_pipeline_sends"] = False
    if args.get("cross_entropy_loss_fusion"):
        changes["extra_loss_copies"] = 1.0
    if args.get("num_experts") and (args.has("moe_token_dispatcher_type") or not stack_named):
        kind = args.get("moe_token_dispatcher_type")
        changes["expert_dispatch"] = "tokens" if kind == "flex" else "copies"
        if kind == "allgather" and args.get("expert_model_parallel_size") > 1:
            assumed.append("tokens go to experts one by one, not gathered everywhere (`allgather`)")
    changes |= _attention_of(args)
    if args.get("recompute_granularity") == "selective":
        modules, argument = args.get("recompute_modules"), TABLE.arguments["recompute_modules"]
        drops = tuple(sorted(argument.plan_value(one) for one in modules))
        changes["selective_drops"] = drops[0] if len(drops) == 1 else drops or "core"
    return base.model_copy(update=changes)


def _is_unfused(args: Arguments) -> bool:
    """Whether the arguments switch off a fusion that would apply to this model (transformer/mlp.py,
    fused_bias_dropout.py)."""
    biases, gated = args.get("add_bias_linear"), args.get("swiglu")
    activates = gated or (biases and not args.get("squared_relu"))
    adds = biases or args.get("hidden_dropout") > 0
    activation = "bias_swiglu_fusion" if gated else "bias_gelu_fusion"
    off = {name: args.get(name) is False for name in (activation, "bias_dropout_fusion")}
    return (activates and off[activation]) or (adds and off["bias_dropout_fusion"])


def _attention_of(args: Arguments) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if args.get("transformer_impl") == "local":
        facts = {"transformer_engine": False, "attention": "fused-softmax"}
    if args.get("use_flash_attn"):
        facts["attention"] = "flash2"
    backend = args.get("attention_backend")
    if backend in _KERNELS:
        facts["attention"] = _KERNELS[backend]
    elif backend != "auto":
        raise InputError(f"`--attention-backend {backend}` is not known here")
    return facts
