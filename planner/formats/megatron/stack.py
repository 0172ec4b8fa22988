"""Facts of the software stack that Megatron Core's arguments switch, written and read.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py, core/transformer/mlp.py,
core/distributed/distributed_data_parallel_config.py, core/fusions/fused_bias_dropout.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.choices import Overlap
from cost_models.specs.stack import USER_BUFFERS, VOCABULARY_UNIT, StackSpec
from planner.formats.exporter import NO_SETTING, FieldExport, Job, Translate, lacks, no_setting, sets
from planner.formats.megatron.arguments import TABLE, Arguments
from planner.formats.megatron.layout import zero_of
from planner.formats.table import table_of

STACK = "megatron-core"
"""Catalogue name of the software stack of core 0.20."""
_BACKENDS = {"unfused": "unfused", "flash2": "flash", "flash3": "flash", "cudnn": "fused"}
_KERNELS = {"unfused": "unfused", "local": "fused-softmax", "flash": "flash2", "fused": "cudnn"}
_OWN_KERNEL = "cudnn"
"""Kernel of `--attention-backend auto`."""


def _attention(job: Job) -> FieldExport:
    kernel = job.stack.attention
    if kernel == _OWN_KERNEL:
        return sets(attention_backend="auto")
    if kernel not in _BACKENDS:
        return lacks("its attention backends are unfused, flash and fused")
    return sets(attention_backend=_BACKENDS[kernel])


def _overlaps(job: Job, axis: Overlap, *, always: bool) -> bool:
    """Whether communication over an axis overlaps compute, by the layout or, where the layout leaves it open,
    by `always`."""
    return always if job.layout.overlap is None else axis in job.layout.overlap


def _overlap_tensor(job: Job) -> FieldExport:
    layout, stack = job.layout, job.stack
    overlaps = _overlaps(job, "tp", always=stack.overlap_tensor_parallel > 0)
    overlaps = overlaps and job.training.precision in USER_BUFFERS
    return sets(tp_comm_overlap=True) if overlaps and layout.tp > 1 and layout.sp else NO_SETTING


def _overlap_reduce(job: Job) -> FieldExport:
    overlaps = _overlaps(job, "dp", always=job.stack.overlap_gradient_reduce)
    return sets(overlap_grad_reduce=True) if overlaps else NO_SETTING


def _overlap_gather(job: Job) -> FieldExport:
    overlaps = _overlaps(job, "dp", always=job.stack.overlap_parameter_gather)
    if not overlaps or job.layout.zero == 0:
        return NO_SETTING
    if not _overlaps(job, "dp", always=job.stack.overlap_gradient_reduce):
        return lacks("it gathers parameters behind compute only where it reduces gradients so")
    return sets(overlap_param_gather=True)


def _overlap_sends(job: Job) -> FieldExport:
    sends = _overlaps(job, "pp", always=job.stack.overlap_pipeline_sends)
    return NO_SETTING if sends or job.layout.vpp == 1 else sets(overlap_p2p_comm=False)


def _dispatch(job: Job) -> FieldExport:
    if not job.model.has_experts:
        return NO_SETTING
    if job.stack.expert_dispatch == "copies" or job.layout.ep * job.layout.expert_tp == 1:
        return sets(moe_token_dispatcher_type="alltoall", moe_grouped_gemm=True)
    return sets(moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="deepep", moe_grouped_gemm=True)


def _remainders(job: Job) -> FieldExport:
    if not job.stack.master_remainders or job.training.precision == "fp32":
        return NO_SETTING
    if job.layout.zero == 0:
        return lacks("only its distributed optimizer (zero1) keeps master weights so")
    return sets(use_precision_aware_optimizer=True)


def _vocabulary(job: Job) -> FieldExport:
    """Megatron-LM's setting for the multiple of the vocabulary size; plans of earlier releases have it in the
    stack, not the model."""
    multiple = job.model.vocab_multiple
    return sets(
        make_vocab_size_divisible_by=VOCABULARY_UNIT
        if multiple == 1 and job.stack.pads_vocabulary
        else multiple
    )


def _fusions(job: Job) -> FieldExport:
    if job.stack.fused_elementwise:
        return NO_SETTING
    if job.model.activation == "gelu-tanh":
        return lacks("its GELU by tanh is fused with the bias")
    return sets(bias_gelu_fusion=False, bias_swiglu_fusion=False, bias_dropout_fusion=False)


def _overlaps_host(job: Job) -> FieldExport:
    overlaps = job.stack.overlaps_host and job.layout.offload.states
    return sets(overlap_cpu_optimizer_d2h_h2d=True) if overlaps else NO_SETTING


FACTS: Mapping[str, Translate] = {
    "stack.attention": _attention,
    "stack.pads_vocabulary": _vocabulary,
    "stack.gradient_dtype": no_setting,  # the training job's, else this one: said there
    "stack.fused_elementwise": _fusions,
    "stack.master_remainders": _remainders,
    "stack.overlap_gradient_reduce": _overlap_reduce,
    "stack.overlap_parameter_gather": _overlap_gather,
    "stack.overlap_tensor_parallel": _overlap_tensor,
    "stack.expert_dispatch": _dispatch,
    "stack.selective_drops": no_setting,  # said with the layout's `recompute`
    "stack.overlaps_host": _overlaps_host,
    "stack.overlap_pipeline_sends": _overlap_sends,
    "stack.transformer_engine": lambda job: (
        NO_SETTING if job.stack.transformer_engine else sets(transformer_impl="local")
    ),
}
"""Facts of the software stack that Megatron Core switches."""


def stack_of(args: Arguments, base: StackSpec, stack_named: bool, assumed: list[str]) -> StackSpec:
    """Copy of a software stack with the facts that Megatron-LM arguments switch. Missing switches are off,
    unless the user named the stack.

    Raises:
        InputError: an attention backend is not known.
    """
    inside = load_stack(STACK).overlap_tensor_parallel
    precise = args.get("use_precision_aware_optimizer") and not args.get("optimizer_cpu_offload")
    switched = {
        "overlap_grad_reduce": args.get("overlap_grad_reduce"),
        "overlap_param_gather": args.get("overlap_param_gather"),
        "tp_comm_overlap": inside * args.get("tp_comm_overlap"),
        "use_precision_aware_optimizer": bool(precise),
        "deterministic_mode": args.get("deterministic_mode"),
        "overlap_cpu_optimizer_d2h_h2d": args.get("overlap_cpu_optimizer_d2h_h2d"),
    }
    zero = zero_of(args)
    if zero > 1:  # FSDP, which overlaps both
        switched |= {"overlap_grad_reduce": True, "overlap_param_gather": zero == 3}
    changes: dict[str, Any] = {
        table_of(TABLE).arguments[name].field.removeprefix("stack."): value
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
        modules, argument = args.get("recompute_modules"), table_of(TABLE).arguments["recompute_modules"]
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
