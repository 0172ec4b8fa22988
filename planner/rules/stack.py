"""Rules on layouts that software stacks or the project's executor cannot run, although the cost model prices
them.

The executor runs the stacks of `OWN_STACKS`; limits beyond their files are in `RUNNABLE`. It refuses layouts
that break one of these rules, and no such layout is planned for it (`require_runnable`).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import TypeVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints, indivisible
from cost_models.axes.columns import LayoutColumns, context_ways, is_scheduled, places_ranks_as
from cost_models.axes.layout import AXES, Layout
from cost_models.axes.offload.residency import offloads
from cost_models.axes.rule import Row, Rule, Words, objections, raise_problems, rules
from cost_models.defaults import OWN_COMPILED, OWN_STACK, OWN_STACKS, complete_question
from cost_models.errors import InfeasibleError, either
from cost_models.estimate import Estimate
from cost_models.files.catalog import load_stack
from cost_models.operators.block import block_operators
from cost_models.operators.parameters import matrix_names, target_names
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN, SPLIT_BACKWARD
from cost_models.specs.choices import CONTEXTS, ORDERS, OVERLAPS, Overlap
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import NF4_BLOCK, TrainingSpec
from cost_models.units import format_bytes
from planner.rules.pools import holds_replicas

Degree = TypeVar("Degree", int, Ints)

IN_16_BITS = "plan with --precision bf16"
"""Hint for the user where the executor does not support a plan's precision."""
_PRECISIONS = ("fp32", "bf16", "fp8")
_OPTIMIZERS = ("adamw", "lamb", "sgd")
FP8_SIDE = 16
"""Number that must divide every dimension of a matrix product in fp8: 16 bytes at one byte per element."""


def _precision_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for a training precision that the executor lacks."""
    text = f"the executor trains in fp32, bf16 or fp8, not in {question.training.precision}"
    reason = ", whose gradients vanish without loss scaling" if question.training.precision == "fp16" else ""
    return Words(text + reason, IN_16_BITS)


def _adapts_unsupported_matrices(question: Question) -> bool:
    """Whether the question trains adapters (LoRA) that the executor lacks: in fp8, in a model with parts such
    as experts, or on matrices other than those of attention and dense MLPs."""
    model, tuning = question.model, question.training.tuning
    if tuning is None:
        return False
    of_states = {"in_proj", "out_proj"}.intersection(target_names(tuning), matrix_names(model))
    fp8 = question.training.precision == "fp8"
    return any((fp8, model.has_experts, model.latent_attention, model.tower, of_states))


def _has_narrow_states(training: TrainingSpec) -> bool:
    """Whether gradients, moments or optimizer states of a training job have fewer bits than fp32."""
    return not {training.state_dtype, training.moment_dtype, training.gradient_dtype} <= {None, "fp32"}


def _fp8_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for fp8 products whose sizes are no multiples of the required unit."""
    sides = _dims(question, LayoutColumns.of([layout]))
    odd = dict.fromkeys(f"{side[0]:g}" for side in sides if side[0] % FP8_SIDE)
    degrees = f"tp{layout.tp} cp{layout.cp}" if layout.cp > 1 else f"tp{layout.tp}"
    text = f"products in fp8 take sides of whole sixteens, and with {degrees} some are {', '.join(odd)}"
    return Words(text, f"choose other degrees, or {IN_16_BITS}")


def _dims(question: Question, x: LayoutColumns) -> list[Array]:
    """Dimensions of all matrix products of one tensor-parallel rank in a dense block, each an array over
    layouts, (N,)."""
    gemms = [one.gemm for one in block_operators(question.model) if one.gemm is not None]
    dense = [gemm for gemm in gemms if not (gemm.routed or gemm.router)]
    tokens = question.training.sequence_length / x.cp
    if any(gemm.split == "whole" for gemm in dense):  # latents, of a rank's part of the tokens
        tokens = tokens / np.where(x.sp == 1, x.tp, 1.0)
    sides = [(gemm.inputs, gemm.split == "rows") for gemm in dense]
    sides += [(width, gemm.split == "columns") for gemm in dense for width in gemm.outputs]
    return [*(size / (x.tp if split else np.ones(len(x))) for size, split in sides), tokens]


def _untrained_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for a model that the executor cannot train."""
    model = question.model
    features = either([*model.left_out, *model.not_in_executor])
    text = f"the executor's blocks have no {features}: it would train another model than"
    hint = "a YAML file of the model without `left_out` (and `attention_sinks`) trains the rest of it"
    other_kind = model.recurrence or model.stacks or model.tower or model.diffusion
    return Words(f"{text} `{model.name}`", "" if other_kind else hint)


def _positions_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for a sequence longer than the model's learned positions."""
    model, length = question.model, question.training.sequence_length
    text = f"`{model.name}` has {model.longest_sequence:,} learned positions; sequences have"
    needed = length + model.max_positions - model.longest_sequence
    hint = f"shorten the sequence, or write `max_positions: {needed}` in a model file of yours"
    return Words(f"{text} {length:,} tokens", hint)


def _parallel_block_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for tensor parallelism in parallel blocks."""
    part = "experts" if question.model.has_experts else "latent attention"
    text = f"the executor cannot split {part} over tp{layout.tp} in blocks that run attention and MLP side by side"
    return Words(text, "use tp1")


def split_rows(question: Question, tp: Degree, etp: Degree) -> list[tuple[str, int, Degree]]:
    """Weight matrices stored in nf4 whose rows tensor parallelism splits, as (name, length of a row, number
    of ranks). Splits between rows are always possible."""
    model, tuning = question.model, question.training.tuning
    if tuning is None or tuning.base != "nf4":
        return []
    widths = [
        ("o", model.attended_size, tp),
        ("out_proj", model.recurrence.value_size if model.recurrence else 0, tp),
        ("down", model.ffn_hidden_size if model.dense_share else 0, tp),
        ("experts", model.moe_ffn_hidden_size if model.moe_share else 0, etp),
        ("down", model.shared_expert_ffn_hidden_size, tp),
    ]
    return [row for row in widths if row[1]]


def _nf4_block_crosses_rows(question: Question) -> bool:
    """Whether some nf4 quantisation block extends from one row of a weight matrix into the next."""
    cut = [width for _, width, _ in split_rows(question, 1, 1)]
    return bool(cut) and any(width % NF4_BLOCK for width in (question.model.hidden_size, *cut))


def _pipeline_sends_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for an overlap that the stack always has or lacks."""
    text = f"PyTorch runs `schedule={layout.schedule}` off a table, which posts sends ahead"
    axes = ",".join(axis for axis in OVERLAPS if axis == "pp" or axis in (layout.overlap or ()))
    return Words(f"{text} whatever a layout says", f"write `overlap={axes}`, or leave `overlap` out")


_RUNNABLE: dict[str, Row] = {
    "no part is missing": (lambda q, x: bool(q.model.left_out or q.model.not_in_executor), _untrained_words),
    "learned positions reach the sequence": (
        lambda q, x: (
            (q.model.positions == "learned") & (q.training.sequence_length > q.model.longest_sequence)
        ),
        _positions_words,
    ),
    "one kind of GPU": (
        lambda q, x: q.has_pools & ~holds_replicas(q, x),
        "the executor trains on one kind of GPU, and `{question.cluster.name}` has several pools",
        "whole replicas in each run: plan with `--allow replicas`",
    ),
    "a precision the executor has": (lambda q, x: q.training.precision not in _PRECISIONS, _precision_words),
    "states in fp32": (
        lambda q, x: _has_narrow_states(q.training),
        "the executor keeps gradients, moments and master weights in fp32, and the plan does not",
    ),
    "adapters of dense blocks": (
        lambda q, x: _adapts_unsupported_matrices(q),
        "the executor has adapters for attention and dense MLPs in fp32 and bf16, without latent attention or a tower",
        "name matrices with --targets q,k,v,o,gate,up,down",
    ),
    "adapters have whole backward passes": (
        lambda q, x: (
            (q.training.tuning is not None)
            & (is_scheduled(x, SPLIT_BACKWARD) | (x.overlap_tp == 1) | (x.overlap_dp == 1))
        ),
        "the executor trains adapters neither under a schedule that splits backward passes nor with `overlap`",
    ),
    "tensor ranks drop the same of an adapter's input": (
        lambda q, x: (x.tp > 1) & (q.training.tuning is not None and q.training.tuning.dropout > 0),
        "the executor drops no inputs of adapters that are split over tp{layout.tp}",
        "leave out `tuning.dropout`, or use tp1",
    ),
    "updates follow the backward pass": (
        lambda q, x: q.training.optimizer_in_backward,
        "the executor updates when all gradients are there, and the plan in the backward pass",
        "plan without --optimizer-in-backward",
    ),
    "one model is trained": (
        lambda q, x: q.training.reference is not None or q.training.reward,
        "the executor trains to predict the next token, and the plan on pairs (dpo, reward)",
    ),
    "frozen parts have whole backward passes": (
        lambda q, x: bool(q.training.freeze) & is_scheduled(x, SPLIT_BACKWARD),
        "the executor freezes nothing under `schedule={layout.schedule}`, which splits backward passes",
    ),
    "sequences are whole": (
        lambda q, x: q.training.lengths is not None,
        "the executor trains on whole sequences, and the plan on documents of unlike length",
        "plan without --lengths",
    ),
    "the loss counts every token": (
        lambda q, x: q.training.answers is not None,
        "the executor's loss counts every token, and the plan's those of answers",
        "plan without --answers",
    ),
    "an optimizer the executor has": (
        lambda q, x: q.training.optimizer not in _OPTIMIZERS,
        "the executor has adamw, lamb and sgd, not {question.training.optimizer}",
        "plan with --optimizer adamw",
    ),
    "rows of whole blocks of nf4": (
        lambda q, x: _nf4_block_crosses_rows(q),
        "the executor's blocks of 64 elements that share a scale of nf4 lie inside rows, and"
        " `{question.model.name}` has rows of other lengths",
        "plan with --base-precision int8",
    ),
    "split backward passes meet shared weights once": (
        lambda q, x: is_scheduled(x, SPLIT_BACKWARD) & (q.model.stacks is not None),
        "blocks of `{model.name}` share tables of biases and what its encoder returns, and PyTorch splits no backward"
        " pass through these, as `schedule={layout.schedule}` asks",
        "use another schedule",
    ),
    "fp8 keeps blocks on the device": (
        lambda q, x: (q.training.precision == "fp8") & offloads(x),
        "the executor's fp8 products keep their weights on the device",
        "leave out `offload`, or plan with --precision bf16",
    ),
    "offload runs backward passes whole": (
        lambda q, x: offloads(x) & is_scheduled(x, SPLIT_BACKWARD),
        "`schedule={layout.schedule}` splits backward passes, and between the halves a block would come and go for"
        " each of its weights",
        "use another schedule, or leave out `offload`",
    ),
    "symmetric memory is of GPUs": (
        lambda q, x: (x.overlap_tp == 1) & (q.cluster.gpu.kind == "cpu"),
        "`overlap=tp` sends through the symmetric memory of GPUs (torch.distributed._symmetric_memory), and"
        " `{question.cluster.name}` has none",
        "leave `tp` out of `overlap`",
    ),
    "schedules off tables send ahead": (
        lambda q, x: (x.overlap_pp == 0) & (x.pp > 1) & ~is_scheduled(x, PLAIN),
        _pipeline_sends_words,
    ),
    "blocks in host memory have buffers of their own": (
        lambda q, x: (x.overlap_dp == 1) & offloads(x),
        "the executor reduces gradients of blocks in host memory as they come down, not behind compute",
        "leave out `offload`, or `overlap=dp`",
    ),
    "experts in fp8": (
        lambda q, x: (q.training.precision == "fp8") & q.model.has_experts,
        "the executor's experts do not multiply in fp8",
        IN_16_BITS,
    ),
    "fp8 runs backward passes whole": (
        lambda q, x: (q.training.precision == "fp8") & is_scheduled(x, SPLIT_BACKWARD),
        "each half of a backward pass that `schedule={layout.schedule}` splits would run all products in fp8",
        "use another schedule",
    ),
    "products in fp8 have whole sides": (
        lambda q, x: (q.training.precision == "fp8") & np.any(np.mod(_dims(q, x), FP8_SIDE), axis=0),
        _fp8_words,
    ),
    "tp divides the tokens it routes": (
        lambda q, x: q.model.has_experts & (x.sp == 0) & indivisible(q.training.sequence_length, x.cp, x.tp),
        "the executor has each of tp{layout.tp} ranks route its part of a sequence; {layout.sequence_ranks} does not"
        " divide {training.sequence_length} tokens",
    ),
    "norms over all heads have all heads": (
        lambda q, x: (x.tp > 1) & (q.model.qk_norm_over == "all"),
        "the executor cannot split a norm over all heads (`qk_norm_over: all`) over tp{layout.tp}",
        "use tp1",
    ),
    "split experts and latents follow one another": (
        lambda q, x: (
            (x.tp > 1) & q.model.parallel_block & (q.model.has_experts or bool(q.model.latent_attention))
        ),
        _parallel_block_words,
    ),
}
RUNNABLE = rules(_RUNNABLE)
"""Rules of the project's executor, which runs fewer models, precisions and layouts than the cost model
prices."""


def _context_missing(question: Question, x: LayoutColumns) -> Bools:
    """Whether the software stack lacks the kind of context parallelism (ring, all-gather, ...) of each
    layout, (N,). The default is always available (a stack without any has a separate rule)."""
    stack = question.stack
    offered = [CONTEXTS.index(way) for way in (*stack.context_kinds, stack.context_parallel)]
    return (x.cp > 1) & bool(stack.context_kinds) & ~np.isin(context_ways(question, x), offered)


def _lacks(x: LayoutColumns, axis: str, offered: Container[str]) -> Bools:
    """Whether each layout uses a part of an axis, such as the states of `offload`, that is not in `offered`,
    (N,)."""
    parts = [name for name in AXES[axis].columns(axis) if name.removeprefix(f"{axis}_") not in offered]
    lacks: Bools = np.any([getattr(x, name) > 0 for name in parts], axis=0)
    return lacks


def _offload_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for kinds of offload that the stack lacks."""
    stack, has = question.stack, question.stack.residencies
    offered = either([f"`{one}`" for one in has]) if has else "nothing"
    lacking = [part for part, count in layout.offload._asdict().items() if count and part not in has]
    if lacking == ["drive"]:
        text = f"software stack `{stack.name}` cannot keep states on a drive"
        return Words(text, "leave out `drive`; `--stack` names another")
    parts = " and ".join(f"`{part}`" for part in lacking)
    text = f"software stack `{stack.name}` cannot keep {parts} of a block in host memory"
    return Words(text, f"it keeps {offered} there; `--stack` names another")


def overlappable_axes(stack: StackSpec) -> tuple[Overlap, ...]:
    """Axes (tp, pp, dp) whose communication a software stack can overlap with compute."""
    always: dict[Overlap, bool] = {
        "tp": stack.overlap_tensor_parallel > 0,
        "pp": stack.overlap_pipeline_sends,
        "dp": stack.overlap_gradient_reduce or stack.overlap_parameter_gather,
    }
    return tuple(axis for axis in OVERLAPS if always[axis] or axis in stack.overlaps)


def _overlap_words(question: Question, layout: Layout) -> Words:
    """Sentence and hint for overlaps that the stack lacks."""
    stack, has = question.stack, overlappable_axes(question.stack)
    lacks = [axis for axis in layout.overlap or () if axis not in has]
    hint = f"it can with {either([f'`overlap={axis}`' for axis in has])}" if has else "leave out `overlap`"
    text = f"software stack `{stack.name}` cannot run {' and '.join(lacks)} communication behind compute"
    return Words(text, f"{hint}; `--stack` names another")


def _for_executor_only(rule: Rule) -> Rule:
    """Copy of a rule that only the software stacks of the project's own executor must obey."""
    return replace(rule, broken=lambda q, x: q.stack.name in OWN_STACKS and rule.broken(q, x))


_STACK_RULES: dict[str, Row] = {
    "the stack has this ZeRO stage": (
        lambda q, x: ~np.isin(x.zero, q.stack.zero_stages),
        "software stack `{stack.name}` cannot run `zero{layout.zero}`",
        "it has {stack.zero_stages:zero*}; `--stack` names another",
    ),
    "the stack has this schedule": (
        lambda q, x: ~is_scheduled(x, q.stack.schedules),
        "software stack `{stack.name}` cannot run `schedule={layout.schedule}`",
        "it has {stack.schedules:*}; `--stack` names another",
    ),
    "a split backward pass finds its weights": (
        lambda q, x: (x.zero == 3) & q.stack.zero3_gathers_every_microbatch & is_scheduled(x, SPLIT_BACKWARD),
        "`zero{layout.zero}` gathers weights again for each backward pass, and `schedule={layout.schedule}` splits"
        " that pass: PyTorch trains wrong without a word",
        "use zero2, or another schedule",
    ),
    "the stack has context parallelism": (
        lambda q, x: (x.cp > 1) & (not q.stack.context_kinds),
        "software stack `{stack.name}` cannot split a sequence over ranks (`cp{layout.cp}`)",
        "use cp1; `--stack` names another",
    ),
    "the stack has this way of context parallelism": (
        _context_missing,
        "software stack `{stack.name}` has no `context={layout.context}`",
        "it has {stack.context_kinds:context=*}; `--stack` names another",
    ),
    "the stack has this order": (
        lambda q, x: ~places_ranks_as(x, map(ORDERS.index, q.stack.axis_orders)),
        "software stack `{stack.name}` cannot seat its ranks in `order={layout.order}`",
        "it has {stack.axis_orders:order=*}; `--stack` names another",
    ),
    "the stack splits experts otherwise": (
        lambda q, x: q.model.has_experts & (not q.stack.expert_tensor_parallel) & (x.etp != x.tp),
        "software stack `{stack.name}` splits experts as the rest of the model: `etp{layout.etp}` is not"
        " tp{layout.tp}",
        "leave out `etp`; `--stack` names another",
    ),
    "the stack shards in groups": (
        lambda q, x: (x.shard != x.replicas) & (not q.stack.hybrid_shard),
        "software stack `{stack.name}` shards over all {layout.data_ranks:,} ranks of dp x cp, not over"
        " `shard{layout.shard}`",
        "leave out `shard`; `--stack` names another",
    ),
    "the stack splits scans over ranks": (
        lambda q, x: (x.cp > 1) & (q.model.recurrence is not None) & q.stack.torch_context_parallel,
        "software stack `{stack.name}` splits attention alone over ranks (`cp{layout.cp}`): no state passes"
        " from one rank's tokens to the next's",
        "use cp1; `--stack` names another",
    ),
    "the stack offloads": (lambda q, x: _lacks(x, "offload", q.stack.residencies), _offload_words),
    "the stack uses drives under this ZeRO stage": (
        lambda q, x: (x.offload_drive > 0) & (x.replicas > 1) & ~np.isin(x.zero, q.stack.drive.zero_stages),
        "software stack `{stack.name}` keeps states on the drive under {stack.drive.zero_stages:`zero*`} only",
        "use {stack.drive.zero_stages:`zero*`}, or leave out `drive`",
    ),
    "the stack overlaps": (lambda q, x: _lacks(x, "overlap", overlappable_axes(q.stack)), _overlap_words),
    "the stack overlaps under this ZeRO stage": (
        lambda q, x: (x.overlap_dp == 1) & ~np.isin(x.zero, q.stack.overlaps_gradient_reduce_at),
        "software stack `{stack.name}` has `overlap=dp` under {stack.overlaps_gradient_reduce_at:`zero*`} only",
        "use {stack.overlaps_gradient_reduce_at:`zero*`}, or leave `dp` out",
    ),
}
STACK_RULES = (*rules(_STACK_RULES), *map(_for_executor_only, RUNNABLE))


def question_objections(question: Question) -> list[Words]:
    """Sentences on the parts of a question that the project's executor cannot run under any layout; empty for
    other software stacks."""
    return objections(RUNNABLE, question, Layout()) if question.stack.name in OWN_STACKS else []


def require_runnable(question: Question, layout: Layout) -> None:
    """Raise InputError unless the project's executor can run a layout, even if it was planned for another
    software stack.

    Raises:
        InputError: with every reason why it cannot, and the hint of the first.
    """
    own_stack = load_stack(OWN_COMPILED if question.stack.compiled else OWN_STACK)
    broken = objections(STACK_RULES, replace(question, stack=own_stack), layout)
    raise_problems(broken, f"the executor cannot run `{layout}`: {len(broken)} reasons")


def estimate_as_executed(question: Question, layout: Layout) -> Estimate:
    """Estimate of a layout as the project's executor runs it, also where it was planned for another software stack.

    Raises:
        InputError: as `require_runnable`.
        InfeasibleError: it does not fit in memory there.
    """
    require_runnable(question, layout)
    if question.stack.name not in OWN_STACKS:
        stack = OWN_COMPILED if question.stack.compiled else OWN_STACK
        question = complete_question(question.model, question.cluster, question.training, stack=stack)
    executed = estimate(question, layout)
    if not executed.fits:
        sizes = f"{format_bytes(executed.peak_bytes)} of {format_bytes(executed.memory_limit)} per GPU"
        hint = f"plan for the executor: --stack {question.stack.name}"
        raise InfeasibleError(f"`{layout.brief}` does not fit as the executor runs it: {sizes}", hint=hint)
    return executed
