"""Megatron Core's words for the training job, and for facts of the software stack that it switches.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/optimizer/optimizer_config.py, core/distributed/distributed_data_parallel_config.py,
core/transformer/transformer_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.specs.choices import Overlap
from cost_models.specs.stack import VOCABULARY_UNIT
from planner.formats.megatron.model import nothing
from planner.formats.words import NOTHING, Asked, Translate, Word, lacks, otherwise, says

_ATTENTION = {"unfused": "unfused", "flash2": "flash", "flash3": "flash", "cudnn": "fused"}


def _precision(asked: Asked) -> Word:
    match asked.training.precision:
        case "bf16":
            return says(bf16=True)
        case "fp16":
            return says(fp16=True)
        case "fp32":
            return NOTHING
        case "fp8":
            return says(bf16=True, fp8="hybrid")
        case "fp4":
            return says(bf16=True, fp4="e2m1")


def _optimizer(asked: Asked) -> Word:
    match asked.training.optimizer:
        case "adamw":
            return otherwise("its Adam decays weights apart from gradients, as AdamW", optimizer="adam")
        case "sgd":
            return says(optimizer="sgd")
        case other:
            return lacks(f"it has no {other}")


def _gradients(asked: Asked) -> Word:
    dtype = asked.training.gradient_dtype or asked.stack.gradient_dtype
    if asked.training.precision == "fp32":
        return NOTHING
    if dtype == "fp32":
        return says(accumulate_allreduce_grads_in_fp32=True)
    return says(grad_reduce_in_bf16=True) if asked.training.precision != "fp16" else NOTHING


def _states(asked: Asked) -> Word:
    return (
        NOTHING if asked.training.state_dtype == "fp32" else lacks("its master weights are in fp32 or fp16")
    )


def _moments(asked: Asked) -> Word:
    if (asked.training.moment_dtype or asked.training.state_dtype) == "fp32":
        return NOTHING
    if asked.layout.zero == 0:
        return lacks("only its distributed optimizer (zero1) keeps moments in bf16")
    return says(use_precision_aware_optimizer=True, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16")


def _dropout(asked: Asked) -> Word:
    share = asked.question.dropout
    return says(hidden_dropout=share, attention_dropout=share)


def _tokens(asked: Asked) -> Word:
    if asked.training.tokens is None:
        return NOTHING
    return otherwise(
        "sequences", train_samples=max(1, int(asked.training.tokens // asked.training.sequence_length))
    )


TRAINING: Mapping[str, Translate] = {
    "kind": nothing,
    "global_batch": lambda asked: says(global_batch_size=asked.training.global_batch),
    "sequence_length": lambda asked: says(seq_length=asked.training.sequence_length),
    "precision": _precision,
    "optimizer": _optimizer,
    "gradient_dtype": _gradients,
    "state_dtype": _states,
    "moment_dtype": _moments,
    "dropout": _dropout,
    "recompute": nothing,  # what the search may use
    "tokens": _tokens,
}


def _attention(own: str) -> Translate:
    def word(asked: Asked) -> Word:
        kernel = asked.stack.attention
        if kernel == own:
            return says(attention_backend="auto")
        if kernel not in _ATTENTION:
            return lacks("its attention backends are unfused, flash and fused")
        return says(attention_backend=_ATTENTION[kernel])

    return word


def _overlaps(asked: Asked, axis: Overlap, *, always: bool) -> bool:
    """Whether communication over an axis runs behind compute: the layout says it, else the stack does it always."""
    return always if asked.layout.overlap is None else axis in asked.layout.overlap


def _overlap_tensor(asked: Asked) -> Word:
    layout, stack = asked.layout, asked.stack
    wanted = _overlaps(asked, "tp", always=stack.overlap_tensor_parallel > 0)
    wanted = wanted and asked.training.precision in stack.overlaps_tensor_parallel_in
    return says(tp_comm_overlap=True) if wanted and layout.tp > 1 and layout.sp else NOTHING


def _overlap_reduce(asked: Asked) -> Word:
    wanted = _overlaps(asked, "dp", always=asked.stack.overlap_gradient_reduce)
    return says(overlap_grad_reduce=True) if wanted else NOTHING


def _overlap_gather(asked: Asked) -> Word:
    wanted = _overlaps(asked, "dp", always=asked.stack.overlap_parameter_gather)
    if not wanted or asked.layout.zero == 0:
        return NOTHING
    if not _overlaps(asked, "dp", always=asked.stack.overlap_gradient_reduce):
        return lacks("it gathers parameters behind compute only where it reduces gradients so")
    return says(overlap_param_gather=True)


def _dispatch(asked: Asked) -> Word:
    if not asked.model.has_experts:
        return NOTHING
    if asked.stack.expert_dispatch == "copies" or asked.layout.ep * asked.layout.expert_tp == 1:
        return says(moe_token_dispatcher_type="alltoall", moe_grouped_gemm=True)
    return says(moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="deepep", moe_grouped_gemm=True)


def _remainders(asked: Asked) -> Word:
    if not asked.stack.master_remainders or asked.training.precision == "fp32":
        return NOTHING
    if asked.layout.zero == 0:
        return lacks("only its distributed optimizer (zero1) keeps master weights so")
    return says(use_precision_aware_optimizer=True)


def _vocabulary_unit(asked: Asked) -> int:
    """What the model says itself goes before the stack's habit, which plans of old leave to the stack."""
    own = asked.model.vocab_multiple
    return VOCABULARY_UNIT if own == 1 and asked.stack.pads_vocabulary else own


def stack_words(own_attention: str) -> dict[str, Translate]:
    """Facts of the stack that Megatron Core switches, where its own attention is this one."""
    return {
        "attention": _attention(own_attention),
        "pads_vocabulary": lambda asked: says(make_vocab_size_divisible_by=_vocabulary_unit(asked)),
        "gradient_dtype": nothing,  # the training job's, else this one: said there
        "fused_elementwise": lambda asked: (
            NOTHING
            if asked.stack.fused_elementwise
            else says(bias_gelu_fusion=False, bias_swiglu_fusion=False, bias_dropout_fusion=False)
        ),
        "fused_gradient_accumulation": lambda asked: (
            NOTHING if asked.stack.fused_gradient_accumulation else says(gradient_accumulation_fusion=False)
        ),
        "master_remainders": _remainders,
        "overlap_gradient_reduce": _overlap_reduce,
        "overlap_parameter_gather": _overlap_gather,
        "overlap_tensor_parallel": _overlap_tensor,
        "context_parallel": nothing,  # said with the layout's `context`
        "expert_dispatch": _dispatch,
        "selective_drops": nothing,  # said with the layout's `recompute`
        "overlaps_host": lambda asked: (
            says(overlap_cpu_optimizer_d2h_h2d=True)
            if asked.stack.overlaps_host and asked.layout.offload.states
            else NOTHING
        ),
        "overlap_pipeline_sends": lambda asked: (
            NOTHING
            if _overlaps(asked, "pp", always=asked.stack.overlap_pipeline_sends) or asked.layout.vpp == 1
            else says(overlap_p2p_comm=False)
        ),
        "deterministic": lambda asked: (
            says(deterministic_mode=True) if asked.stack.deterministic else NOTHING
        ),
        "transformer_engine": lambda asked: (
            NOTHING if asked.stack.transformer_engine else says(transformer_impl="local")
        ),
    }
