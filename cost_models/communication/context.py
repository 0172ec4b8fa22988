"""Context-parallel communication of a block: what attention needs from the other ranks of a sequence.

Each of the c ranks has the queries of b·s/c tokens and must see every key and value, 2·b·s·kv/t elements in all.

    ring        c − 1 steps; each passes on the keys and values of one rank while attention works on those before.
                Backward their gradients travel along: twice the bytes (Liu et al. 2023; TransformerEngine's `p2p`).
    all-gather  all keys and values at once, again in backward, where their gradients are reduced and scattered
                (Llama 3, arXiv 2407.21783, section 3.3.2).
    all-to-all  tokens are traded for heads before the kernel and back after it (Jacobs et al. 2023, Ulysses).

A recurrence trades tokens for heads as well, whatever attention does (Megatron Core, ssm/mamba_context_parallel.py).
States passed on from rank to rank would be fewer bytes, but every rank waits for the one before it.

A layout names its way (`context=`) or leaves it to the software stack. Tokens are dealt so that causal attention is the
same work for every rank and step: two pieces, one from either end of the sequence; where heads are traded a rank sees
all of it. Ring steps run behind the kernel of the step before, which they hold up as all that overlaps does
(`overlap_slowdown`); the others are exposed.

PyTorch's own `context_parallel` (torch/distributed/tensor/experimental/_attention.py) attends step by step whichever
way keys and values come, so that a gather runs behind the first step. Their gradients go all the way round in fp32: c
steps, of which nothing hides the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array, Bools, Ints, multiplied
from cost_models.axes.columns import LayoutColumns, context_ways
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.data import exposed
from cost_models.communication.topology import Groups
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, Context
from cost_models.specs.training import STATE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSeconds:
    """Seconds per block and microbatch, each (N,); zero where cp is 1."""

    forward: Array
    """Exposed."""
    backward: Array
    forward_hidden: Array
    """Behind the attention kernel."""
    backward_hidden: Array


def attention_calls(question: Question, columns: LayoutColumns) -> Ints:
    """(N,) calls of the attention kernel a pass: one a step of a ring, one a piece of a gathered sequence, else one."""
    gathers = (columns.cp > 1) & (context_ways(question, columns) == CONTEXTS.index("all-gather"))
    return np.select([attends_in_steps(question, columns), gathers], [columns.cp, 2], default=1)


def attends_in_steps(question: Question, columns: LayoutColumns) -> Bools:
    """(N,) whether attention works on the keys and values of one rank at a time."""
    way = context_ways(question, columns)
    gathers = (way == CONTEXTS.index("all-gather")) & question.stack.torch_context_parallel
    steps: Bools = (columns.cp > 1) & (gathers | (way == CONTEXTS.index("ring")))
    return steps


def attended_width(question: Question) -> int:
    """Columns of the keys and values that attention is given, and context ranks exchange, of the whole model."""
    model = question.model
    width = model.kv_size + model.value_size
    return width * model.num_heads // model.num_kv_heads if question.stack.torch_context_parallel else width


def gathered_elements(question: Question, columns: LayoutColumns) -> Array:
    """(N,) elements of the keys and values of a whole sequence that a rank holds for a block while it attends, and
    again of their gradients in the backward pass; zero where they are not gathered."""
    gathers = (columns.cp > 1) & (context_ways(question, columns) == CONTEXTS.index("all-gather"))
    whole = columns.cp * columns.tokens(question.training.sequence_length) / columns.tp
    return np.where(gathers, whole * attended_width(question), 0.0)


def context_seconds(
    question: Question, columns: LayoutColumns, group: Groups, core_forward: Array, core_backward: Array
) -> ContextSeconds:
    """Costs over the context-parallel groups, given the (N,) seconds of the attention kernels to hide behind."""
    sent, hidden = np.zeros((2, 2, len(columns)))  # forward and backward, (2, N) each
    way = context_ways(question, columns)
    for index, name in enumerate(CONTEXTS):
        rows = (way == index) & (columns.cp > 1)
        if not rows.any():
            continue
        passes = _PASSES[name](question, columns, group)
        for number, (messages, kernels) in enumerate(zip(passes, (core_forward, core_backward), strict=True)):
            # of the blocks that have attention
            parts = [(question.model.attention_share * seconds, share) for seconds, share in messages]
            behind = [
                seconds - exposed(seconds, share * kernels, question.hardware, overlapped=True)
                for seconds, share in parts
            ]
            sent[number] = np.where(rows, sum(seconds for seconds, _ in parts), sent[number])
            hidden[number] = np.where(rows, np.sum(behind, axis=0), hidden[number])
    heads = _heads_of_states(question, columns, group)
    return ContextSeconds(
        forward=sent[0] - hidden[0] + heads,
        backward=sent[1] - hidden[1] + heads,
        forward_hidden=hidden[0],
        backward_hidden=hidden[1],
    )


_Messages = Sequence[tuple[Array, Array | float]]
"""(N,) seconds of messages, and the share of the attention kernels that they can run behind."""


def _heads_of_states(question: Question, columns: LayoutColumns, group: Groups) -> Array:
    """(N,) seconds of one pass over a recurrence: tokens are traded for heads before its convolution and back behind
    its scan, whatever attention does. Keys that heads of several ranks share go to each of these; what Mamba-1 makes of
    all channels is added up."""
    model, mixer = question.model, question.model.recurrence
    share = model.mixer_share("recurrence", "both")
    if mixer is None or not share:
        return np.zeros(len(columns))
    keys = mixer.state_dim * np.maximum(mixer.groups, multiplied(columns.tp, columns.cp)) - mixer.key_size
    whole = columns.cp * _rank_bytes(question, columns)
    traded = mixer.input_size + (0 if mixer.step_rank else 2 * keys) + mixer.decay_size
    there = all_to_all_seconds(whole * traded, group, question.hardware)
    there = there + all_reduce_seconds(whole * columns.tp * mixer.selected_size, group, question.hardware)
    back = all_to_all_seconds(whole * mixer.value_size, group, question.hardware)
    return np.where(columns.cp > 1, share * (there + back), 0.0)


def _rank_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes that a rank's tokens take for each of the model's columns it would hold without tp."""
    tokens = columns.tokens(question.training.sequence_length)
    return tokens / columns.tp * question.training.element_bytes


def _ring(question: Question, columns: LayoutColumns, group: Groups) -> tuple[_Messages, _Messages]:
    keys_values = attended_width(question) * _rank_bytes(question, columns)
    steps, behind = columns.cp - 1, (columns.cp - 1) / columns.cp
    forward = steps * point_to_point_seconds(keys_values, group, question.hardware)
    if question.stack.torch_context_parallel:
        return [(forward, behind)], [(forward, behind), *_gradients_round(question, columns, group)]
    backward = steps * point_to_point_seconds(2 * keys_values, group, question.hardware)
    return [(forward, behind)], [(backward, behind)]


def _all_gather(question: Question, columns: LayoutColumns, group: Groups) -> tuple[_Messages, _Messages]:
    keys_values = columns.cp * (attended_width(question) * _rank_bytes(question, columns))
    forward = all_gather_seconds(keys_values, group, question.hardware)
    if question.stack.torch_context_parallel:
        first_step = 1 / columns.cp
        gradients = _gradients_round(question, columns, group)
        return [(forward, first_step)], [(forward, first_step), *gradients]
    return [(forward, 0.0)], [
        (forward, 0.0),
        (reduce_scatter_seconds(keys_values, group, question.hardware), 0.0),
    ]


def _gradients_round(question: Question, columns: LayoutColumns, group: Groups) -> _Messages:
    """Gradients of keys and values in fp32, passed on after each of c steps."""
    size = STATE_BYTES["fp32"] / question.training.element_bytes
    gradients = size * attended_width(question) * _rank_bytes(question, columns)
    one = point_to_point_seconds(gradients, group, question.hardware)
    return [((columns.cp - 1) * one, (columns.cp - 1) / columns.cp), (one, 0.0)]


def _all_to_all(question: Question, columns: LayoutColumns, group: Groups) -> tuple[_Messages, _Messages]:
    model, whole = question.model, columns.cp * _rank_bytes(question, columns)
    there = all_to_all_seconds(whole * (model.query_size + 2 * model.kv_size), group, question.hardware)
    seconds = there + all_to_all_seconds(whole * model.query_size, group, question.hardware)
    return [(seconds, 0.0)], [(seconds, 0.0)]


_Passes = Callable[[Question, LayoutColumns, Groups], tuple[_Messages, _Messages]]
_PASSES: dict[Context, _Passes] = {"ring": _ring, "all-gather": _all_gather, "all-to-all": _all_to_all}
"""Messages of forward and backward passes for each way of context parallelism; nothing is hidden yet."""
