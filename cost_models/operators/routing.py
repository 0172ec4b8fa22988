"""What a mixture of experts makes of the tokens of one rank: copies sent, rows worked on, bytes moved about.

Each token goes to k of E experts; every block that is a mixture has all E, E/e of them on a rank of the expert-parallel
group, each split over etp ranks (Megatron Core's `alltoall` dispatcher; Lepikhin et al. 2020, GShard):

    sent = b·s/c · k/t     copies that leave a rank: tokens count once over the tensor-parallel ranks
    rows = sent · etp      copies its experts work on, gathered over the ranks that share an expert

The load is taken to be even and no token dropped, so that a rank receives as many copies as it sends. Left out: padding
to a capacity, and routing that keeps a token's copies on few nodes and sends them there once (DeepSeek-V3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.operators.traffic import Traffic
from cost_models.question import Question

Array = npt.NDArray[np.float64]

_FP32 = 4.0
_ROUTER_PASSES = 4.0
"""Over the fp32 scores of a token: written, normalised, searched for the largest, scattered into a map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """One block that is a mixture, on one rank and for one microbatch; each (N,)."""

    own_tokens: Array
    """Tokens this rank routes."""
    sent: Array
    """Copies of tokens it sends to experts."""
    rows: Array
    """Copies its experts work on, all together."""
    local_experts: Array
    """Experts it holds (its part of)."""
    inner: Array
    """Inner activations of its experts: rows × width."""


def mixture(question: Question, columns: LayoutColumns) -> Mixture | None:
    """The routed tokens of each layout; None for a dense model."""
    model = question.model
    if not model.has_experts:
        return None
    tokens = columns.tokens(question.training.sequence_length)
    sent = tokens * model.experts_per_token / columns.tp
    rows = sent * columns.etp
    return Mixture(
        own_tokens=tokens / columns.tp,
        sent=sent,
        rows=rows,
        local_experts=model.num_experts / columns.ep,
        inner=rows * model.moe_ffn_hidden_size / columns.etp,
    )


def routing_traffic(question: Question, columns: LayoutColumns) -> Traffic | None:
    """Scores, and the copies laid out by destination, by expert and back; averaged over the blocks.

    Forward a token is read once and written k times, its copies are reordered by expert where a rank has several (read
    and write, and once more on the way back), then read k times and their sum written. Backward the same in reverse.
    """
    model, routed = question.model, mixture(question, columns)
    if routed is None:
        return None
    element = question.training.element_bytes
    reordered = np.where((columns.ep > 1) & (routed.local_experts > 1), 4 * routed.rows, 0.0)
    passes = 2 * (routed.own_tokens + routed.sent) + reordered
    scores = _ROUTER_PASSES * _FP32 * routed.own_tokens * model.num_experts
    moved = model.moe_share * (element * model.hidden_size * passes + scores)
    kernels = 8 * model.moe_share
    return Traffic(
        forward_bytes=moved, backward_bytes=moved, forward_kernels=kernels, backward_kernels=kernels
    )
