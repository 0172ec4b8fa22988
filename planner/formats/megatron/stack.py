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
from planner.formats.exporter import NOTHING, Job, Translate, Word, lacks, nothing, says
from planner.formats.megatron.arguments import TABLE, Arguments
from planner.formats.megatron.layout import zero_of
from planner.formats.table import table_of

STACK = "megatron-core"
"""Catalogue name of the software stack of core 0.20."""
_BACKENDS = {"unfused": "unfused", "flash2": "flash", "flash3": "flash", "cudnn": "fused"}
_KERNELS = {"unfused": "unfused", "local": "fused-softmax", "flash": "flash2", "fused": "cudnn"}
_OWN_KERNEL = "cudnn"
"""What `--attention-backend auto` takes."""


def _attention(job: Job) -> Word:
    kernel = job.stack.attention
    if kernel == _OWN_KERNEL:
        return says(attention_backend="auto")
    if kernel not in _BACKENDS:
        return lacks("its attention backends are unfused, flash and fused")
    return says(attention_backend=_BACKENDS[kernel])


def _overlaps(job: Job, axis: Overlap, *, always: bool) -> bool:
    """Whether communication over an axis runs behind compute, by the layout or else by the stack (`always`)."""
    return always if job.layout.overlap is None else axis in job.layout.overlap


def _overlap_tensor(job: Job) -> Word:
    layout, stack = job.layout, job.stack
    wanted = _overlaps(job, "tp", always=stack.overlap_tensor_parallel > 0)
    wanted = wanted and job.training.precision in USER_BUFFERS
    return says(tp_comm_overlap=True) if wanted and layout.tp > 1 and layout.sp else NOTHING


def _overlap_reduce(job: Job) -> Word:
    wanted = _overlaps(job, "dp", always=job.stack.overlap_gradient_reduce)
    return says(overlap_grad_reduce=True) if wanted else NOTHING


def _overlap_gather(job: Job) -> Word:
    wanted = _overlaps(job, "dp", always=job.stack.overlap_parameter_gather)
    if not wanted or job.layout.zero == 0:
        return NOTHING
    if not _overlaps(job, "dp", always=job.stack.overlap_gradient_reduce):
        return lacks("it gathers parameters behind compute only where it reduces gradients so")
    return says(overlap_param_gather=True)


def _overlap_sends(job: Job) -> Word:
    sends = _overlaps(job, "pp", always=job.stack.overlap_pipeline_sends)
    return NOTHING if sends or job.layout.vpp == 1 else says(overlap_p2p_comm=False)


def _dispatch(job: Job) -> Word:
    if not job.model.has_experts:
        return NOTHING
    if job.stack.expert_dispatch == "copies" or job.layout.ep * job.layout.expert_tp == 1:
        return says(moe_token_dispatcher_type="alltoall", moe_grouped_gemm=True)
    return says(moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="deepep", moe_grouped_gemm=True)


def _remainders(job: Job) -> Word:
    if not job.stack.master_remainders or job.training.precision == "fp32":
        return NOTHING
    if job.layout.zero == 0:
        return lacks("only its distributed optimizer (zero1) keeps master weights so")
    return says(use_precision_aware_optimizer=True)


def _vocabulary(job: Job) -> Word:
    """The model's own multiple, or the stack's, to which plans of earlier releases leave it."""
    own = job.model.vocab_multiple
    return says(
        make_vocab_size_divisible_by=VOCABULARY_UNIT if own == 1 and job.stack.pads_vocabulary else own
    )


def _fusions(job: Job) -> Word:
    if job.stack.fused_elementwise:
        return NOTHING
    if job.model.activation == "gelu-tanh":
        return lacks("its GELU by tanh is fused with the bias")
    return says(bias_gelu_fusion=False, bias_swiglu_fusion=False, bias_dropout_fusion=False)


def _overlaps_host(job: Job) -> Word:
    wanted = job.stack.overlaps_host and job.layout.offload.states
    return says(overlap_cpu_optimizer_d2h_h2d=True) if wanted else NOTHING


FACTS: Mapping[str, Translate] = {
    "stack.attention": _attention,
    "stack.pads_vocabulary": _vocabulary,
    "stack.gradient_dtype": nothing,  # the training job's, else this one: said there
    "stack.fused_elementwise": _fusions,
    "stack.master_remainders": _remainders,
    "stack.overlap_gradient_reduce": _overlap_reduce,
    "stack.overlap_parameter_gather": _overlap_gather,
    "stack.overlap_tensor_parallel": _overlap_tensor,
    "stack.expert_dispatch": _dispatch,
    "stack.selective_drops": nothing,  # said with the layout's `recompute`
    "stack.overlaps_host": _overlaps_host,
    "stack.overlap_pipeline_sends": _overlap_sends,
    "stack.transformer_engine": lambda job: (
        NOTHING if job.stack.transformer_engine else says(transformer_impl="local")
    ),
}
"""Facts of the software stack that Megatron Core switches."""


def stack_of(said: Arguments, base: StackSpec, stack_named: bool, assumed: list[str]) -> StackSpec:
    """A software stack with what the arguments switch. What they leave out is off, unless the user named the stack.

    Raises:
        InputError: an attention backend is not known.
    """
    inside = load_stack(STACK).overlap_tensor_parallel
    precise = said.get("use_precision_aware_optimizer") and not said.get("optimizer_cpu_offload")
    switched = {
        "overlap_grad_reduce": said.get("overlap_grad_reduce"),
        "overlap_param_gather": said.get("overlap_param_gather"),
        "tp_comm_overlap": inside * said.get("tp_comm_overlap"),
        "use_precision_aware_optimizer": bool(precise),
        "deterministic_mode": said.get("deterministic_mode"),
        "overlap_cpu_optimizer_d2h_h2d": said.get("overlap_cpu_optimizer_d2h_h2d"),
    }
    zero = zero_of(said)
    if zero > 1:  # FSDP, which overlaps both
        switched |= {"overlap_grad_reduce": True, "overlap_param_gather": zero == 3}
    changes: dict[str, Any] = {
        table_of(TABLE).arguments[name].field.removeprefix("stack."): value
        for name, value in switched.items()
        if said.has(name) or not stack_named
    }
    if zero > 1:  # core/distributed/fsdp: gradients are scattered, weights gathered for every microbatch
        changes |= {
            "zero_stages": (*base.zero_stages, zero),
            "unsharded_gradients_until_sync": False,
            "zero3_gathers_every_microbatch": True,
        }
    if said.has("make_vocab_size_divisible_by") or not stack_named:
        changes["pads_vocabulary"] = said.get("make_vocab_size_divisible_by") == VOCABULARY_UNIT
    if said.has("padded_vocab_size"):
        changes["pads_vocabulary"] = False
    if said.has("gradient_accumulation_fusion"):
        changes["fused_gradient_accumulation"] = said.get("gradient_accumulation_fusion")
    if _is_unfused(said):
        changes["fused_elementwise"] = False
    if said.get("overlap_p2p_comm") is False:
        changes["overlap_pipeline_sends"] = False
    if said.get("cross_entropy_loss_fusion"):
        changes["extra_loss_copies"] = 1.0
    if said.get("num_experts") and (said.has("moe_token_dispatcher_type") or not stack_named):
        kind = said.get("moe_token_dispatcher_type")
        changes["expert_dispatch"] = "tokens" if kind == "flex" else "copies"
        if kind == "allgather" and said.get("expert_model_parallel_size") > 1:
            assumed.append("tokens go to experts one by one, not gathered everywhere (`allgather`)")
    changes |= _attention_of(said)
    if said.get("recompute_granularity") == "selective":
        modules, known = said.get("recompute_modules"), table_of(TABLE).arguments["recompute_modules"]
        drops = tuple(sorted(known.ours(one) for one in modules))
        changes["selective_drops"] = drops[0] if len(drops) == 1 else drops or "core"
    return base.model_copy(update=changes)


def _is_unfused(said: Arguments) -> bool:
    """Whether a fusion that is switched off would have fused something (transformer/mlp.py, fused_bias_dropout.py)."""
    biases, gated = said.get("add_bias_linear"), said.get("swiglu")
    activates = gated or (biases and not said.get("squared_relu"))
    adds = biases or said.get("hidden_dropout") > 0
    activation = "bias_swiglu_fusion" if gated else "bias_gelu_fusion"
    off = {name: said.get(name) is False for name in (activation, "bias_dropout_fusion")}
    return (activates and off[activation]) or (adds and off["bias_dropout_fusion"])


def _attention_of(said: Arguments) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if said.get("transformer_impl") == "local":
        found = {"transformer_engine": False, "attention": "fused-softmax"}
    if said.get("use_flash_attn"):
        found["attention"] = "flash2"
    backend = said.get("attention_backend")
    if backend in _KERNELS:
        found["attention"] = _KERNELS[backend]
    elif backend != "auto":
        raise InputError(f"`--attention-backend {backend}` is not known here")
    return found
