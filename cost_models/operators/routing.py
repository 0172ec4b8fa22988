"""What routing adds to a mixture of experts on one rank: scores, and copies of tokens moved about.

Each token goes to k of E experts; every block that is a mixture has all E, E/e of them on a rank of the expert-parallel
group, each split over etp ranks (Megatron Core's `alltoall` dispatcher; Lepikhin et al. 2020, GShard):

    sent   = b·s/c · k/t     copies that leave a rank: tokens count once over the tensor-parallel ranks
    copies = sent · etp      copies its experts work on, gathered over the ranks that share an expert

The load is taken to be even and no token dropped, so that a rank receives as many copies as it sends. Left out: padding
to a capacity, and routing that keeps a token's copies on few nodes and sends them there once (DeepSeek-V3).
"""

from __future__ import annotations

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.operators.on_rank import tokens_on_rank
from cost_models.operators.traffic import Traffic
from cost_models.question import Question

_FP32 = 4.0
_ROUTER_PASSES = 4.0
"""Over the fp32 scores of a token: written, normalised, searched for the largest, scattered into a map."""


def routing_traffic(question: Question, columns: LayoutColumns) -> Traffic | None:
    """Scores, and the copies laid out by destination, by expert and back; averaged over the blocks.

    Forward a token is read once and written k times, its copies are reordered by expert where a rank has several (read
    and write, and once more on the way back), then read k times and their sum written. Backward the same in reverse.
    """
    model, element = question.model, question.training.element_bytes
    if not model.has_experts:
        return None
    own = tokens_on_rank(question, columns, "split")
    several = (columns.ep > 1) & (model.num_experts / columns.ep > 1)
    reordered = np.where(several, 4 * tokens_on_rank(question, columns, "copies"), 0.0)
    passes = 2 * (own + tokens_on_rank(question, columns, "sent")) + reordered
    scores = _ROUTER_PASSES * _FP32 * own * model.num_experts
    moved = model.moe_share * (element * model.hidden_size * passes + scores)
    kernels = 8 * model.moe_share
    return Traffic(
        forward_bytes=moved, backward_bytes=moved, forward_kernels=kernels, backward_kernels=kernels
    )
