"""Expert-parallel communication of a block: tokens to the ranks of their experts and results back.

Per microbatch each rank has b·s·k/(c·t) copies of tokens for the e ranks of its group. Where copies travel by
themselves (all-to-all) it sends and receives as many. Where tokens do, a token crosses to a node once however many of
its experts are there, and is handed on inside once to each rank (DeepSeek-V3, arXiv 2412.19437, section 3.2.2;
DeepEP). What experts return is added up on the same way back. Ranks that split an expert gather the copies of one
another and scatter the sums. Backward is the same in reverse: a dispatch and a combination each way (Lepikhin et al.
2020).

Left out: the exchange of counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_to_all_seconds,
    fan_out_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import MeshGroups
from cost_models.operators.on_rank import tokens_on_rank
from cost_models.operators.routing import destinations
from cost_models.question import Question

Array = npt.NDArray[np.float64]


def expert_seconds(question: Question, columns: LayoutColumns, groups: MeshGroups) -> Array:
    """(N,) seconds of one pass, forward or backward, averaged over blocks with and without experts."""
    model, training, profile = question.model, question.training, question.hardware
    if not model.has_experts:
        return np.zeros(len(columns))
    there = training.operand_bytes if question.stack.fp8_expert_dispatch else training.element_bytes
    exchanged = _one_way(question, columns, groups, there)
    exchanged = exchanged + _one_way(question, columns, groups, training.element_bytes)
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
