"""Every time coefficient of `StageCosts`, split into the parts a user sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.overlap import overlaps
from cost_models.communication.pipeline import boundary_seconds
from cost_models.pipeline.axis_terms import axis_seconds
from cost_models.pipeline.block_terms import halves, launch_seconds, layer_backward, layer_forward
from cost_models.pipeline.further_tokens import further_seconds
from cost_models.pipeline.time_parts import Term, jitter, with_jitter
from cost_models.pipeline.time_pieces import pieces_of
from cost_models.pipeline.update_terms import optimizer, sync
from cost_models.question import Question
from cost_models.schedules.traits import always_split

_END_OF_A_BLOCK = 0.5
"""To drive an end of the model takes this share of a block, on a CPU: both together take as long as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTerms:
    """Coefficients named as in `StageCosts`; arrays are (N,), in `layer_backward` (N, P)."""

    layer_forward: Term
    layer_backward: Term
    embedding_forward: Term
    embedding_backward: Term
    head_forward: Term
    head_backward: Term
    stage_forward: Term
    stage_backward: Term
    layer_weight: Term
    head_weight: Term
    stage_weight: Term
    p2p: Term
    layer_sync: Term
    embedding_sync: Term
    head_sync: Term
    rank_sync: Term
    layer_optimizer: Term
    embedding_optimizer: Term
    head_optimizer: Term
    rank_optimizer: Term
    step_overhead: Term


def time_terms(question: Question, columns: LayoutColumns, *, data_parallel: bool = True) -> TimeTerms:
    """All time coefficients for N layouts at once, or as if no other ranks held the same parameters."""
    pieces = pieces_of(question, columns, data_parallel)
    groups = pieces.links.groups
    ends, tensor = pieces.ends, pieces.tensor
    whole_or_input, weight = halves(pieces, layer_backward(pieces))
    hands_on = boundary_seconds(question, columns, groups)
    sends_on = overlaps(columns, "pp", always=question.stack.overlap_pipeline_sends)
    action_host = np.where(columns.pp > 1, question.hardware.action_host_seconds, 0.0)
    on_cpu = question.cluster.gpu.kind == "cpu"
    end = {"host": _END_OF_A_BLOCK * launch_seconds(pieces)} if on_cpu else {}
    stage = {"pp_comm": np.where(sends_on, 0.0, hands_on), "host": action_host}
    terms = {
        "layer_forward": layer_forward(pieces),
        "layer_backward": whole_or_input,
        "embedding_forward": {"compute": ends.embedding_forward, "tp_comm": tensor.embedding_forward} | end,
        "embedding_backward": {"compute": ends.embedding_backward, "tp_comm": tensor.embedding_backward}
        | end,
        "head_forward": {"compute": ends.head_forward, "tp_comm": tensor.head_forward} | end,
        "head_backward": {
            "compute": ends.head_backward,
            "tp_comm": pieces.head_summed,
            "tp_hidden": tensor.head_backward - pieces.head_summed,
        }
        | end,
        "stage_forward": stage,
        "stage_backward": stage,
        "layer_weight": weight,
        "head_weight": {"compute": ends.head_weight},
        "stage_weight": {"host": np.where(always_split(columns), action_host, 0.0)},
        "p2p": {"pp_comm": np.where(sends_on, hands_on, 0.0)},
        **sync(pieces),
        **optimizer(pieces),
        "step_overhead": {"host": np.full(len(columns), question.hardware.step_seconds)},
    }
    terms |= further_seconds(question, columns, pieces.device, terms)
    terms |= axis_seconds(question, columns, terms.__getitem__)
    slowdown = jitter(question, columns)
    return TimeTerms(**{name: with_jitter(term, slowdown) for name, term in terms.items()})
