"""What predicting further tokens adds to the head: blocks behind the last one, each with the head once more.

Each further token has a block of its own. It reads the state that the head reads and the embedding of the next token,
both normed, side by side through a matrix (2h, h), and ends in the same output matrix and a loss of its own
(DeepSeek-V3, arXiv 2412.19437, section 2.2). All lie with the head; on a pipeline that rank holds the token embedding a
second time, and its gradients are added to the first stage's (Megatron Core, `multi_token_prediction.py`). Being part
of the head, these blocks recompute nothing. Left out: what the joining matrix itself keeps and is held by.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.compute.device import Device
from cost_models.compute.gemm import gemm_seconds
from cost_models.operators.on_rank import tokens_on_rank
from cost_models.pipeline.time_pieces import Term
from cost_models.question import Question

Terms = Mapping[str, Term]

_FORWARD_PASSES, _BACKWARD_PASSES = 8.0, 10.0
"""Over the residual stream: two norms, and both put side by side."""


def further_seconds(
    question: Question, columns: LayoutColumns, device: Device, terms: Terms
) -> dict[str, Term]:
    """The coefficients of time that change, with what further tokens add; none where none are predicted."""
    times = question.model.further_tokens
    if not times:
        return {}
    rows = columns.tokens(question.training.sequence_length)
    width, joined = question.model.hidden_size / columns.tp, np.asarray(2.0 * question.model.hidden_size)
    passes = device.element_bytes * tokens_on_rank(question, columns, "stream") * question.model.hidden_size
    passes = passes / device.memory_rate
    weight = gemm_seconds(joined, width, rows, device, over_rows=True)
    forward = gemm_seconds(rows, width, joined, device) + _FORWARD_PASSES * passes
    backward = gemm_seconds(rows, joined, width, device) + weight + _BACKWARD_PASSES * passes
    ways = {"forward": forward, "backward": backward, "weight": weight}
    changed = {
        f"head_{way}": _added(
            terms[f"head_{way}"],
            times,
            _unrecomputed(terms[f"layer_{way}"]),
            terms[f"head_{way}"],
            {"compute": seconds},
        )
        for way, seconds in ways.items()
    }
    for once in ("sync", "optimizer"):
        head = _added(terms[f"head_{once}"], times, terms[f"layer_{once}"])
        changed[f"head_{once}"] = _added(head, 1, _elsewhere(columns, terms[f"embedding_{once}"]))
    return changed


def further_bytes(question: Question, columns: LayoutColumns, terms: Terms) -> dict[str, Term]:
    """The same of memory."""
    times = question.model.further_tokens
    if not times:
        return {}
    changed = {"head_moment": _added(terms["head_moment"], times, terms["head_moment"])}
    for kind in ("activation", "pending"):
        own, block = terms[f"head_{kind}"], _unrecomputed(terms[f"layer_{kind}"])
        changed[f"head_{kind}"] = _added(own, times, own, block)
    for kind in ("static", "update"):
        head = _added(terms[f"head_{kind}"], times, terms[f"layer_{kind}"])
        changed[f"head_{kind}"] = _added(head, 1, _elsewhere(columns, terms[f"embedding_{kind}"]))
    return changed


def _added(own: Term, times: int, *others: Term) -> Term:
    """A term and so many times some others."""
    total = dict(own)
    for other in others:
        for part, value in other.items():
            total[part] = total.get(part, np.zeros(1)) + times * value
    return total


def _unrecomputed(block: Term) -> Term:
    """A block's term without recompute, where it has one for each policy."""
    return {part: value[:, 0] if value.ndim > 1 else value for part, value in block.items()}


def _elsewhere(columns: LayoutColumns, embedding: Term) -> Term:
    """The embedding's term where the head's rank would not hold it anyway."""
    return {
        part: np.where(columns.pp > 1, value, 0.0) for part, value in embedding.items() if part != "buffers"
    }
