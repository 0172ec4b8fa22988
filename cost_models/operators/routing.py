"""What routing adds to a mixture of experts on one rank: scores, and copies of tokens moved about.

Each token goes to k of E experts; every block that is a mixture has all E, E/e of them on a rank of the expert-parallel
group, each split over etp ranks (Megatron Core's `alltoall` dispatcher; Lepikhin et al. 2020, GShard):

    sent   = b·s/c · k/t     copies that leave a rank: tokens count once over the tensor-parallel ranks
    copies = sent · etp      copies its experts work on, gathered over the ranks that share an expert

The load is taken to be even and no token dropped, so that a rank receives as many copies as it sends. Left out: padding
to a capacity, and the kernels that add biases expert by expert.
"""

from __future__ import annotations

from math import comb

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.operators.on_rank import tokens_on_rank
from cost_models.operators.traffic import Traffic
from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec

_FP32 = 4.0
_ROUTER_PASSES = 4.0
"""Over the fp32 scores of a token: written, normalised, searched for the largest, scattered into a map."""


def routing_traffic(question: Question, columns: LayoutColumns) -> Traffic | None:
    """Scores, and the copies laid out by destination, by expert and back; averaged over the blocks.

    Forward a token is read once and written k times, its copies are reordered by expert where a rank has several (read
    and write, and once more on the way back), then read k times and their sum written. Backward the same in reverse.
    """
    model, element = question.model, question.training.element_bytes
    if not model.moe_share:
        return None
    own = tokens_on_rank(question, columns, "split")
    several = (columns.ep > 1) & (model.num_experts / columns.ep > 1)
    copies = tokens_on_rank(question, columns, "copies")
    reordered = np.where(several, 4 * copies, 0.0)
    passes = 2 * (own + tokens_on_rank(question, columns, "sent")) + reordered
    # Transformer Engine moves an expert's rows into padded ones and out of padded results in fp8 or fp4, whose scales
    # need whole multiples of them (`Fp8Padding`; Megatron Core, moe/experts.py); a dispatcher that sends tokens writes
    # them padded
    padded = question.stack.transformer_engine and question.stack.expert_dispatch == "copies"
    passes = passes + (4.0 if padded and question.training.narrow else 0.0) * copies
    scores = _ROUTER_PASSES * _FP32 * own * model.num_experts
    moved = model.moe_share * (element * model.hidden_size * passes + scores)
    kernels = 8 * model.moe_share
    returned = model.moe_share * model.hidden_size * copies
    forward, backward = (each * returned for each in _bias_bytes(question))
    return Traffic(
        forward_bytes=moved + forward,
        backward_bytes=moved + backward,
        forward_kernels=kernels,
        backward_kernels=kernels,
    )


def _bias_bytes(question: Question) -> tuple[float, float]:
    """Forward and backward, for each number that experts return: their last bias, added expert by expert in torch.

    `torch.cat([t + b * p ...])`, with p the copy's weight (Megatron Core, moe/experts.py, `_apply_bias`): product, sum,
    joined; backward a product and a sum for b and for p, and gradients joined. What sends tokens has p in fp32, so that
    products and sums are, too, and are cast back. The first bias is the product's own to add.
    """
    if not (question.model.mlp_bias and question.stack.transformer_engine):
        return 0.0, 0.0
    if question.stack.experts_in_one_kernel:
        return 0.0, 0.0
    element = question.training.element_bytes
    if question.stack.expert_dispatch == "copies":
        return 6 * element, 8 * element
    return 5 * _FP32 + 4 * element, 7 * _FP32 + 6 * element


def destinations(model: TransformerSpec, parts: Ints) -> Array:
    """(N,) parts that a token goes to, of so many into which the experts are cut in order: ranks, or nodes.

    Every choice of k experts is as likely as any other, where a token chooses groups first within those groups: with 8
    groups on 8 nodes of which it chooses 4 no token goes to more than 4 (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    """
    distinct, index = np.unique(parts, return_inverse=True)
    count = distinct.astype(np.float64)
    experts, chosen, groups = model.num_experts, model.experts_per_token, model.expert_groups
    size = experts / count
    if groups is None:
        reached: Array = (count * (1.0 - _none_of(size, experts, chosen)))[index]
        return reached
    of_group = experts // groups.count
    open_to = groups.per_token * of_group
    # a part of one group, or of a share of it
    share = groups.per_token / groups.count
    inside: Array = share * (1.0 - _none_of(np.minimum(size, of_group), open_to, chosen))
    spans = np.maximum(1.0, np.round(size / of_group))  # groups in a part
    several = np.zeros(len(size))
    for taken in range(1, groups.per_token + 1):
        some = 1.0 - _none_of(np.full(len(size), float(taken * of_group)), open_to, chosen)
        several = several + _draws(taken, spans, groups.per_token, groups.count) * some
    in_groups: Array = (count * np.where(size > of_group, several, inside))[index]
    return in_groups


def _none_of(marked: Array, among: int, drawn: int) -> Array:
    """(N,) probability that so many draws without replacement take none of the marked ones."""
    none = np.ones(len(marked))
    for draw in range(drawn):
        none = none * np.maximum(0.0, among - marked - draw) / (among - draw)
    return none


def _draws(taken: int, marked: Array, drawn: int, among: int) -> Array:
    """(N,) probability that draws without replacement take exactly so many of the marked ones."""
    ways = np.array([comb(int(count), taken) * comb(among - int(count), drawn - taken) for count in marked])
    return np.asarray(ways / comb(among, drawn))
