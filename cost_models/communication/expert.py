"""Expert-parallel communication of a block: copies of tokens to the ranks of their experts and results back.

Per microbatch each rank sends b·s·k·h/(c·t) elements to the e ranks of its group and receives as many (all-to-all);
where an expert is split over etp ranks these gather the copies of one another and scatter the sums. Combining is the
same in reverse, and so is the backward pass: four all-to-alls a block (Lepikhin et al. 2020; Megatron Core's `alltoall`
dispatcher). Left out: the exchange of counts, copies that share their way to a node (DeepEP).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_to_all_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import MeshGroups
from cost_models.operators.on_rank import tokens_on_rank
from cost_models.question import Question

Array = npt.NDArray[np.float64]


def expert_seconds(question: Question, columns: LayoutColumns, groups: MeshGroups) -> Array:
    """(N,) seconds of one pass, forward or backward, averaged over blocks with and without experts."""
    model, profile = question.model, question.hardware
    if not model.has_experts:
        return np.zeros(len(columns))
    sent = tokens_on_rank(question, columns, "sent")
    sent_bytes = sent * model.hidden_size * question.training.element_bytes
    exchanged = 2 * all_to_all_seconds(columns.ep * sent_bytes, groups.ep, profile)
    gathered = all_gather_seconds(columns.etp * sent_bytes, groups.etp, profile)
    scattered = reduce_scatter_seconds(columns.etp * sent_bytes, groups.etp, profile)
    return model.moe_share * (exchanged + gathered + scattered)
