"""Communication of a microbatch on a pipeline stage: of tensor ranks, of expert ranks, and over stage boundaries.

**Tensor ranks**, per block and at both ends of the model, before anything hides it. Two all-reduces of b·s·h forward
and two backward per block (Narayanan et al. 2021). With sequence parallelism each is an all-gather and a
reduce-scatter of the same bytes (Korthikanti et al. 2022); the backward pass gathers the inputs of the two
column-parallel products once more, behind the products that do not need them, unless the stack kept them; some stacks
also sum the gradients of these inputs behind the products towards the weights. In fp8 and fp4 Transformer Engine
gathers operands as they were cast, and scatters sums in 16 bits. A parallel block leaves its region once, and enters
it once where both halves read one norm. What Mamba-1 makes of all channels is summed besides.

Recomputing a block repeats what its forward pass sent, except the sum after its last product where recomputation
stops early. Torchtitan's per-operator policy keeps what was scattered and gathers again
(models/llama3/infra/parallelize.py, `_op_sac_save_list`).

**Expert ranks.** Per microbatch each rank has b·s·k/(c·t) copies of tokens for the e ranks of its group. Where copies
travel (all-to-all) it sends and receives as many. Where tokens do, a token crosses to a node once however many of its
experts are there, and is handed on inside once to each rank (DeepSeek-V3, arXiv 2412.19437, section 3.2.2; DeepEP).
Results of experts are added up on the same way back. Ranks that split an expert gather the copies of one another and
scatter the sums. Backward is the same in reverse: a dispatch and a combination each way (Lepikhin et al. 2020). Left
out: the exchange of counts.

**Stage boundaries.** A stage hands on b·s·h per microbatch; with sequence parallelism each tensor rank sends its
share, with Megatron's scatter/gather optimisation likewise, followed by an all-gather over the tensor ranks
(Narayanan et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    fan_out_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import Groups, MeshGroups
from cost_models.operators.record import handed_on, tokens_on_rank
from cost_models.operators.traffic import destinations
from cost_models.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSeconds:
    """Seconds per microbatch, each (N,)."""

    block_forward: Array
    block_backward: Array
    block_regather: Array
    """Backward gathers of inputs that run behind products towards these inputs."""
    block_summed: Array
    """Sums of their gradients, scattered or not, behind products towards weights; no part of `block_backward`."""
    block_recomputed: Array
    """(N, P): the part of `block_forward` that each recompute policy repeats."""
    embedding_forward: Array
    embedding_backward: Array
    head_forward: Array
    head_backward: Array


def tensor_seconds(question: Question, columns: LayoutColumns, group: Groups) -> TensorSeconds:
    """Costs over the tensor-parallel groups; zero where tp is 1."""
    tokens = columns.tokens(question.training.sequence_length)
    message = tokens * question.model.hidden_size * question.training.element_bytes
    profile = question.hardware
    reduce = all_reduce_seconds(message, group, profile)
    gather = all_gather_seconds(message, group, profile)
    operand = gather
    if question.stack.transformer_engine and question.training.narrow:
        cast = message * question.training.operand_bytes / question.training.element_bytes
        operand = all_gather_seconds(cast, group, profile)
    scatter = reduce_scatter_seconds(message, group, profile)
    sp = columns.sp == 1
    joined = question.model.parallel_block  # what attention and MLP find is added before it is reduced
    # share of the blocks whose MLP communicates over tp: with sequence parallelism routed experts take the tokens of
    # each rank as they are; shared experts are an MLP
    model = question.model
    routed_only = model.moe_share if model.shared_expert_ffn_hidden_size == 0 else 0.0
    times = np.where(sp, model.feed_forward_share - routed_only, model.feed_forward_share)
    inner = _selections(question, tokens, group)
    crosses, source = question.model.stacks is not None, question.model.source_share
    mixes = 1.0 - question.model.mixer_share("none")
    entered = times + mixes * (
        not question.model.forked
    )  # where both halves read one norm it is gathered once
    entered = entered + crosses * (1.0 + source)  # an encoder's tokens too
    tower = question.model.tower  # its projector is left before the decoder's first block
    left = times + mixes * (not joined) + crosses + (tower.share if tower else 0.0)
    embeds = (1.0 + source) * (
        tower is None or tower.part != "tower"
    )  # what makes tokens of patches is whole
    keeps_gathered = question.stack.saves_gathered_activations
    none = np.zeros(len(columns))
    behind = question.stack.reduces_behind_weight_products
    summed = entered * np.where(sp, scatter, reduce)
    forward = np.where(sp, entered * operand + left * scatter, left * reduce) + inner
    last = times * np.where(sp, scatter, reduce)
    again = forward - last if question.stack.recompute_stops_early else forward
    by_operator = "all-but-every-other-product" in question.stack.drops
    gathered = np.where(sp, entered * gather, none) if by_operator else none
    return TensorSeconds(
        block_forward=forward,
        block_recomputed=np.stack([none, gathered, again], axis=-1),
        block_backward=np.where(behind, none, summed) + np.where(sp, left * operand, none) + inner,
        block_summed=np.where(behind, summed, none),
        block_regather=none if keeps_gathered else np.where(sp, entered * operand, none),
        embedding_forward=embeds * np.where(sp, scatter, reduce),
        embedding_backward=embeds * np.where(sp, gather, none),
        head_forward=np.where(sp, gather, none),
        head_backward=np.where(sp, scatter, reduce),
    )


def _selections(question: Question, tokens: Array, group: Groups) -> Array:
    """(N,) seconds of the sum of what Mamba-1's channels make together, or of its gradient; the mean over blocks."""
    mixer, share = question.model.recurrence, question.model.mixer_share("recurrence", "both")
    if mixer is None or not (mixer.step_rank and share):
        return np.zeros(len(tokens))
    message = tokens * mixer.selected_size * question.training.element_bytes
    return share * all_reduce_seconds(message, group, question.hardware)


def expert_seconds(question: Question, columns: LayoutColumns, groups: MeshGroups) -> Array:
    """(N,) seconds of one pass, forward or backward, averaged over blocks with and without experts."""
    model, training, profile = question.model, question.training, question.hardware
    if not model.has_experts:
        return np.zeros(len(columns))
    exchanged = 2 * _one_way(question, columns, groups, training.element_bytes)
    copies = tokens_on_rank(question, columns, "sent") * model.hidden_size * training.element_bytes
    gathered = all_gather_seconds(columns.etp * copies, groups.etp, profile)
    scattered = reduce_scatter_seconds(columns.etp * copies, groups.etp, profile)
    return model.moe_share * (exchanged + gathered + scattered)


def _one_way(question: Question, columns: LayoutColumns, groups: MeshGroups, element_bytes: float) -> Array:
    """(N,) seconds of one exchange, to the experts or back."""
    model, profile = question.model, question.hardware
    row_bytes = model.hidden_size * element_bytes
    if question.stack.expert_dispatch == "copies":
        sent_bytes = tokens_on_rank(question, columns, "sent") * row_bytes
        return all_to_all_seconds(columns.ep * sent_bytes, groups.ep, profile)
    own_bytes = tokens_on_rank(question, columns, "split") * row_bytes
    ranks, nodes = destinations(model, groups.ep.size), destinations(model, groups.ep.nodes)
    return fan_out_seconds(ranks * own_bytes, nodes * own_bytes, groups.ep, profile)


def boundary_seconds(question: Question, columns: LayoutColumns, groups: MeshGroups) -> Array:
    """(N,) seconds; zero where pp is 1. Of two stacks, tokens of both go from stage to stage; of a tower and a decoder
    what is more."""
    message = handed_on(question, columns) * question.training.element_bytes
    sp = columns.sp == 1
    split = sp | question.stack.scatter_gather_pipeline_sends
    sent = point_to_point_seconds(
        np.where(split, message / columns.tp, message), groups.pp, question.hardware
    )
    gathered = all_gather_seconds(message, groups.tp, question.hardware)
    delay = sent + np.where(split & ~sp, gathered, 0.0)
    return np.where(columns.pp > 1, delay, 0.0)
