"""Communication seconds of each parallel axis of a layout: data, context, tensor, expert and pipeline.

**Data ranks**: reduced gradients, gathered weights, and their exposed part. Per step and rank, in elements ×
(d−1)/d (Rajbhandari et al. 2020): replicas 2Ψ, ZeRO-1/2 2Ψ (scatter + gather), ZeRO-3 Ψ per gather and per
scatter. Hybrid sharding scatters and gathers inside a shard group and all-reduces each shard over the groups
(Zhao et al. 2023, PyTorch FSDP). With overlap only the time beyond the hiding compute is exposed. LAMB adds
up the squares of every parameter and of its update over all ranks with slices of it (You et al. 2020).

**Context ranks**: keys and values for attention. Each of the c ranks has the queries of b·s/c tokens and must
see every key and value, 2·b·s·kv/t elements in all.

    ring        c − 1 steps; each passes on the keys and values of one rank while attention processes those before.
                Backward their gradients travel along: twice the bytes (Liu et al. 2023; TransformerEngine's `p2p`).
    all-gather  all keys and values at once, again in backward, where their gradients are reduced and scattered
                (Llama 3, arXiv 2407.21783, section 3.3.2).
    all-to-all  tokens are traded for heads before the kernel and back after it (Jacobs et al. 2023, Ulysses).

A recurrence also trades tokens for heads, whatever attention does (Megatron Core,
ssm/mamba_context_parallel.py). States passed on from rank to rank would be fewer bytes, but every rank waits
for the one before it.

A layout names its way (`context=`) or leaves it to the software stack. Tokens are dealt so that causal
attention is equal work for every rank and step: two pieces, one from either end of the sequence; if heads are
traded a rank sees all of it. Ring steps overlap the kernel of the step before, which they slow down like all
overlap (`overlap_slowdown`); the others are exposed.

PyTorch's own `context_parallel` (torch/distributed/tensor/experimental/_attention.py) attends step by step
whichever way keys and values come, so a gather overlaps the first step. Their gradients go all the way round
in fp32: c steps, the last of which is always exposed.

**Tensor ranks**, per block and at both ends of the model, without overlap. Two all-reduces of b·s·h forward
and two backward per block (Narayanan et al. 2021). With sequence parallelism each is an all-gather and a
reduce-scatter of the same bytes (Korthikanti et al. 2022); the backward pass gathers the inputs of the two
column-parallel products once more, during the products that do not need them, unless the stack kept them;
some stacks also sum the gradients of these inputs during the products for weight gradients. In fp8 and fp4
Transformer Engine gathers operands as cast, and scatters sums in 16 bits. A parallel block leaves its
tensor-parallel region once, and enters it once if both halves read one norm. Mamba-1's joint projection of
all channels needs a further sum.

Recomputing a block repeats the messages of its forward pass, except the sum after its last product if
recomputation stops early. Torchtitan's per-operator policy keeps scattered tensors and gathers them again
(models/llama3/infra/parallelize.py, `_op_sac_save_list`).

**Expert ranks.** Per microbatch each rank has b·s·k/(c·t) copies of tokens for the e ranks of its group. If
copies are sent (all-to-all), it sends and receives that many. If tokens are sent, a token crosses to a node
once, however many of its experts are there, and is handed on inside once to each rank (DeepSeek-V3, arXiv
2412.19437, section 3.2.2; DeepEP). Results of experts are added up on the same way back. Ranks that split an
expert gather the copies of one another and scatter the sums. Backward is the same in reverse: a dispatch and
a combination each way (Lepikhin et al. 2020). Leaves out the exchange of counts.

**Stage boundaries.** A stage hands on b·s·h per microbatch; with sequence parallelism, or Megatron's
scatter/gather optimisation, each tensor rank sends its share, in the latter case followed by an all-gather
over the tensor ranks (Narayanan et al. 2021).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools, Ints, product_of
from cost_models.axes.columns import LayoutColumns, exchanges_by
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    fan_out_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import AxisGroups, Groups, MeshGroups, ReplicaGroups
from cost_models.operators.accumulation import gradient_dtype, reduces_every_microbatch
from cost_models.operators.block import block_operators
from cost_models.operators.parameters import ALL_TRAINED, TrainedShare
from cost_models.operators.record import boundary_elements, tokens_on_rank
from cost_models.operators.traffic import destinations
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, Context
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.training import STATE_BYTES


class DataSeconds(NamedTuple):
    """Seconds of data-parallel communication of one module (a block, the embedding or the head) before any
    overlap with compute, (N,) each."""

    gather: Array
    """Seconds to gather weights before a pass of a microbatch (ZeRO-3)."""
    backward_reduce: Array
    """Seconds to reduce gradients after a microbatch's backward pass (ZeRO-2/3 without delayed
    synchronisation)."""
    step_reduce: Array
    """Seconds to reduce gradients once a step."""
    step_gather: Array
    """Seconds to gather updated weights once a step (ZeRO-1/2)."""


def data_seconds(
    question: Question,
    columns: LayoutColumns,
    groups: ReplicaGroups,
    module_parameters: Array,
    owners: Array | float = 1.0,
    trained: TrainedShare = ALL_TRAINED,
) -> DataSeconds:
    """Seconds of data-parallel communication for a module with `module_parameters` (N,) parameters on each
    rank, if the share `trained` of them is trained.

    If the stack updates by owner, `owners` (N,) ranks have tensors of the module; below 1 if one rank owns
    tensors of several modules.
    """
    stack, profile = question.stack, question.hardware
    element = question.training.element_bytes
    weights = module_parameters * trained.share * element
    gradients = module_parameters * trained.share * STATE_BYTES[gradient_dtype(question)]
    zero = columns.zero
    scatter = reduce_scatter_seconds(gradients, groups.shard, profile)
    if (groups.copies.size > 1).any():
        scatter = scatter + all_reduce_seconds(gradients / groups.shard.size, groups.copies, profile)
    everywhere = (zero == 0) | ((zero == 1) & stack.scatters_by_all_reduce)
    reduce = np.where(everywhere, all_reduce_seconds(gradients, groups.replicas, profile), scatter)
    gather = all_gather_seconds(weights, groups.shard, profile)
    pieces = stack.zero3_collectives_per_block
    module_bytes, pieced = module_parameters * (element * trained.share + trained.frozen), gather
    if pieces != 1 or trained is not ALL_TRAINED:
        pieced = pieces * all_gather_seconds(module_bytes / pieces, groups.shard, profile)
    updated = gather
    if trained is not ALL_TRAINED:  # frozen weights have no reduced gradients, and are only sent for compute
        trains = np.asarray(trained.share) > 0
        reduce, updated = reduce * trains, np.where(zero == 3, pieced, gather * trains)
    elif stack.updates_by_owner:
        # one after another each owner sends its part to all others
        updated = owners * broadcast_seconds(weights / owners, groups.shard, profile)
    each_microbatch = reduces_every_microbatch(question, columns)
    regathers = (zero == 3) & stack.zero3_gathers_every_microbatch
    return DataSeconds(
        gather=np.where(regathers, pieced, 0.0),
        backward_reduce=np.where(each_microbatch, reduce, 0.0),
        step_reduce=np.where(each_microbatch, 0.0, reduce),
        step_gather=np.where((zero >= 1) & ~regathers, updated, 0.0),
    )


def exposed_seconds(
    communication: Array, window: Array, profile: HardwareProfile, *, overlapped: bool | Bools = True
) -> Array:
    """Seconds of communication that compute does not hide, (N,). Only where `overlapped` can `window` seconds
    of compute hide a part.

    Together they take max(C, M) + κ min(C, M), as each slows the other while they overlap.
    """
    if not np.any(overlapped):
        return communication
    contended = profile.overlap_slowdown * np.minimum(communication, window)
    exposed = np.maximum(0.0, communication - window) + contended
    return exposed if np.all(overlapped) else np.where(overlapped, exposed, communication)


def norms_seconds(question: Question, columns: LayoutColumns, groups: AxisGroups) -> Array:
    """Seconds per step of the LAMB optimizer's all-reduce of norms, (N,): two numbers per parameter tensor,
    so nearly all latency; 0 for other optimizers.

    Priced as one over tensor ranks and one over those that ZeRO shards over, or, with experts, over all
    replicas. Two numbers for the two copies of a tied matrix are left out.
    """
    if question.training.optimizer != "lamb":
        return np.zeros(len(columns))
    tensors = question.model.num_layers / columns.pp * len(block_operators(question.model))
    message, experts = 2 * STATE_BYTES["fp32"] * tensors, question.model.has_experts
    over_data = groups.data.replicas if experts else groups.data.shard
    seconds = all_reduce_seconds(message, over_data, question.hardware) * ((columns.zero >= 1) | experts)
    return seconds + all_reduce_seconds(message, groups.tp, question.hardware)


class ContextSeconds(NamedTuple):
    """Seconds of context-parallel communication per block and microbatch, (N,) each; 0 if cp is 1. Zero if cp
    is 1."""

    forward: Array
    """Exposed seconds of a forward pass. Likewise `backward`."""
    backward: Array
    forward_hidden: Array
    """Seconds of a forward pass hidden by the attention kernels. Likewise `backward_hidden`."""
    backward_hidden: Array


def attention_calls(question: Question, columns: LayoutColumns) -> Ints:
    """Number of attention kernel calls per pass, (N,): one for each ring step, two for a gathered sequence,
    else one."""
    gathers = exchanges_by(question, columns, "all-gather")
    return np.select([attends_in_steps(question, columns), gathers], [columns.cp, 2], default=1)


def attends_in_steps(question: Question, columns: LayoutColumns) -> Bools:
    """Whether attention runs as several kernel calls, each on the keys and values of one context-parallel
    rank, (N,)."""
    ring, gathers = (exchanges_by(question, columns, way) for way in ("ring", "all-gather"))
    return ring | (gathers & question.stack.torch_context_parallel)


def attended_width(question: Question) -> int:
    """Number of elements of keys and values per token that context-parallel ranks exchange, added up over
    tensor ranks."""
    model = question.model
    width = model.kv_size + model.value_size
    return width * model.num_heads // model.num_kv_heads if question.stack.torch_context_parallel else width


def gathered_elements(question: Question, columns: LayoutColumns) -> Array:
    """Number of elements of a sequence's keys and values that a rank gathers for a block's attention, (N,); 0
    if it gathers none. The backward pass holds their gradients too."""
    gathered = columns.cp * columns.tokens(question.training.sequence_length) / columns.tp
    return np.where(exchanges_by(question, columns, "all-gather"), gathered * attended_width(question), 0.0)


def context_seconds(
    question: Question, columns: LayoutColumns, group: Groups, core_forward: Array, core_backward: Array
) -> ContextSeconds:
    """Seconds of context-parallel communication per block and microbatch, hidden in part by attention kernels
    of `core_forward` and `core_backward` (N,) seconds."""
    total, hidden = np.zeros((2, 2, len(columns)))  # forward and backward, (2, N) each
    kernels, share_of_blocks = (core_forward, core_backward), question.model.attention_share
    for way in CONTEXTS:
        rows = exchanges_by(question, columns, way)
        messages = _messages(way, question, columns, group) if rows.any() else []
        for backward, seconds, share in messages:
            message = share_of_blocks * seconds
            unhidden = exposed_seconds(message, share * kernels[backward], question.hardware)
            total[backward] += np.where(rows, message, 0.0)
            hidden[backward] += np.where(rows, message - unhidden, 0.0)
    exposed = total - hidden + _state_heads_seconds(question, columns, group)
    return ContextSeconds(*exposed, *hidden)


def _state_heads_seconds(question: Question, columns: LayoutColumns, group: Groups) -> Array:
    """Seconds per pass of the all-to-alls around a recurrence (such as Mamba) under context parallelism,
    (N,), which exchange tokens for heads and back.

    Keys shared by heads of several ranks are sent to each of these; Mamba-1's joint projection is added up.
    """
    model, mixer = question.model, question.model.recurrence
    share = model.mixer_share("recurrence", "both")
    if mixer is None or not share:
        return np.zeros(len(columns))
    keys = mixer.state_dim * np.maximum(mixer.groups, product_of(columns.tp, columns.cp)) - mixer.key_size
    feature = columns.cp * tokens_on_rank(question, columns, "split") * question.training.element_bytes
    traded = mixer.input_size + (0 if mixer.step_rank else 2 * keys) + mixer.decay_size
    forth = all_to_all_seconds(feature * traded, group, question.hardware)
    forth = forth + all_reduce_seconds(feature * columns.tp * mixer.selected_size, group, question.hardware)
    back = all_to_all_seconds(feature * mixer.value_size, group, question.hardware)
    return np.where(columns.cp > 1, share * (forth + back), 0.0)


Message = tuple[Literal[0, 1], Array, Array | float]
"""Message of a block's pass, as forward (0) or backward (1), seconds before overlap, (N,), and hidden share.
That is the share of the pass's attention kernels that can hide the message."""


def _messages(way: Context, question: Question, columns: LayoutColumns, group: Groups) -> list[Message]:
    """Messages that context-parallel ranks exchange in a block's forward and backward pass by the method
    `way`, with the seconds of each."""
    model, steps = question.model, columns.cp - 1
    rank_bytes = tokens_on_rank(question, columns, "split") * question.training.element_bytes
    if way == "all-to-all":
        total = columns.cp * rank_bytes
        forth = all_to_all_seconds(total * (model.query_size + 2 * model.kv_size), group, question.hardware)
        seconds = forth + all_to_all_seconds(total * model.query_size, group, question.hardware)
        return [(0, seconds, 0.0), (1, seconds, 0.0)]
    width, behind = attended_width(question), steps / columns.cp
    keys_values = width * rank_bytes
    gathered = columns.cp * keys_values
    if way == "ring":
        exchange = steps * point_to_point_seconds(keys_values, group, question.hardware), behind
    else:
        first_step = question.stack.torch_context_parallel / columns.cp
        exchange = all_gather_seconds(gathered, group, question.hardware), first_step
    if question.stack.torch_context_parallel:  # gradients in fp32 are passed on after each of c steps
        size = STATE_BYTES["fp32"] / question.training.element_bytes
        step = point_to_point_seconds(size * width * rank_bytes, group, question.hardware)
        return [(0, *exchange), (1, *exchange), (1, steps * step, behind), (1, step, 0.0)]
    if way == "ring":
        backward = steps * point_to_point_seconds(2 * keys_values, group, question.hardware)
        return [(0, *exchange), (1, backward, behind)]
    scattered = reduce_scatter_seconds(gathered, group, question.hardware)
    return [(0, *exchange), (1, *exchange), (1, scattered, 0.0)]


class TensorSeconds(NamedTuple):
    """Seconds of tensor-parallel communication per microbatch, (N,) each."""

    block_forward: Array
    block_backward: Array
    block_regather: Array
    """Seconds to gather a block's inputs again in the backward pass. Matrix products for input gradients can
    hide them."""
    block_summed: Array
    """Seconds to all-reduce or reduce-scatter a block's input gradients. Products for weight gradients can
    hide them; not part of `block_backward`."""
    block_recomputed: Array
    """Seconds of `block_forward` that each recompute policy repeats in the backward pass, (N, P)."""
    embedding_forward: Array
    embedding_backward: Array
    head_forward: Array
    head_backward: Array


def tensor_seconds(question: Question, columns: LayoutColumns, group: Groups) -> TensorSeconds:
    """Seconds of tensor-parallel communication per microbatch in a block, the embedding and the head; 0 if tp
    is 1."""
    model, profile = question.model, question.hardware
    tokens = columns.tokens(question.training.sequence_length)
    message = tokens * model.hidden_size * question.training.element_bytes
    reduce = all_reduce_seconds(message, group, profile)
    gather = operand = all_gather_seconds(message, group, profile)
    if question.stack.transformer_engine and question.training.casts_operands:
        cast = message * question.training.operand_bytes / question.training.element_bytes
        operand = all_gather_seconds(cast, group, profile)
    scatter = reduce_scatter_seconds(message, group, profile)
    sp = columns.sp == 1
    # share of the blocks whose MLP communicates over tp: with sequence parallelism routed experts take the tokens of
    # each rank as they are; shared experts are an MLP
    routed_only = model.moe_share if model.shared_expert_ffn_hidden_size == 0 else 0.0
    times = np.where(sp, model.feed_forward_share - routed_only, model.feed_forward_share)
    inner, recurrence = np.zeros(len(columns)), model.recurrence
    if recurrence and recurrence.selected_size:  # Mamba-1's joint projection, or its gradient, is summed too
        selected = tokens * recurrence.selected_size * question.training.element_bytes
        inner = model.mixer_share("recurrence", "both") * all_reduce_seconds(selected, group, profile)
    crosses, source, tower = model.stacks is not None, model.source_share, model.tower
    mixes = 1.0 - model.mixer_share("none")
    entered = times + mixes * (not model.shares_norm)  # where both halves read one norm it is gathered once
    entered = entered + crosses * (1.0 + source)  # an encoder's tokens too
    # a parallel block adds the outputs of attention and MLP before the reduction; a tower's projector is left before
    # the decoder's first block
    outputs = times + mixes * (not model.parallel_block) + crosses + (tower.share if tower else 0.0)
    embeds = (1.0 + source) * (tower is None or tower.part != "tower")  # the patch embedding is not split
    none = np.zeros(len(columns))
    behind = question.stack.reduces_behind_weight_products
    summed = entered * np.where(sp, scatter, reduce)
    forward = np.where(sp, entered * operand + outputs * scatter, outputs * reduce) + inner
    last = times * np.where(sp, scatter, reduce)
    repeated = forward - last if question.stack.recompute_stops_early else forward
    by_operator = sp & ("all-but-every-other-product" in question.stack.drops)
    gathered = np.where(by_operator, entered * gather, none)
    return TensorSeconds(
        block_forward=forward,
        block_recomputed=np.stack([none, gathered, repeated], axis=-1),
        block_backward=np.where(behind, none, summed) + np.where(sp, outputs * operand, none) + inner,
        block_summed=np.where(behind, summed, none),
        block_regather=np.where(sp & (not question.stack.saves_gathered_activations), entered * operand, 0.0),
        embedding_forward=embeds * np.where(sp, scatter, reduce),
        embedding_backward=embeds * np.where(sp, gather, none),
        head_forward=np.where(sp, gather, none),
        head_backward=np.where(sp, scatter, reduce),
    )


def expert_seconds(question: Question, columns: LayoutColumns, groups: MeshGroups) -> Array:
    """Seconds of expert-parallel communication per block, microbatch and pass, (N,), mean over blocks with
    and without experts. Forward and backward take equally long."""
    model, training, profile = question.model, question.training, question.hardware
    if not model.has_experts:
        return np.zeros(len(columns))
    row_bytes = model.hidden_size * training.element_bytes
    copies = tokens_on_rank(question, columns, "sent") * row_bytes
    if question.stack.expert_dispatch == "copies":
        exchange = all_to_all_seconds(columns.ep * copies, groups.ep, profile)
    else:
        own_bytes = tokens_on_rank(question, columns, "split") * row_bytes
        ranks, nodes = destinations(model, groups.ep.size), destinations(model, groups.ep.nodes)
        exchange = fan_out_seconds(ranks * own_bytes, nodes * own_bytes, groups.ep, profile)
    gathered = all_gather_seconds(columns.etp * copies, groups.etp, profile)
    scattered = reduce_scatter_seconds(columns.etp * copies, groups.etp, profile)
    return model.moe_share * (2 * exchange + gathered + scattered)


def boundary_seconds(question: Question, columns: LayoutColumns, groups: MeshGroups) -> Array:
    """Seconds to send one microbatch's activations from a pipeline stage to the next, (N,); 0 if pp is 1. In
    an encoder-decoder tokens of both stacks are sent, with a vision tower the larger of tower's and decoder's
    tokens."""
    message = boundary_elements(question, columns) * question.training.element_bytes
    sp = columns.sp == 1
    split = sp | question.stack.scatter_gather_pipeline_sends
    transfer = point_to_point_seconds(message / np.where(split, columns.tp, 1), groups.pp, question.hardware)
    gathered = all_gather_seconds(message, groups.tp, question.hardware)
    delay = transfer + np.where(split & ~sp, gathered, 0.0)
    return np.where(columns.pp > 1, delay, 0.0)
