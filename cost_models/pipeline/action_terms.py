"""Time coefficients of one action of a pipeline beyond its blocks: its host, its hand-over, and its batch.

An action takes its host `action_host_seconds`. A host that waits for its device before it (for a hand-over that blocks,
for a batch whose size it reads from the device, or for both) leaves the device idle for as long again, until it has
launched what comes next.
"""

from __future__ import annotations

import numpy as np

from cost_models.axes.overlap import overlaps
from cost_models.communication.collectives import broadcast_seconds
from cost_models.communication.pipeline import boundary_seconds
from cost_models.pipeline.time_parts import Term
from cost_models.pipeline.time_pieces import Pieces
from cost_models.schedules.traits import always_split

_TOKEN_BYTES, _SIZE_BYTES = 8, 40
"""Of a token's number, and of the five sizes that Megatron-LM sends ahead (core/tensor_parallel/data.py)."""
_MASK_BYTES = 17
"""Read and written for each pair of positions: ones and their lower triangle in fp32, compared (megatron/utils.py)."""
_MASK_KERNELS = 3


def action_terms(pieces: Pieces) -> dict[str, Term]:
    """Coefficients of an action by its pass, and of a hand-over that blocks nobody."""
    question, columns = pieces.question, pieces.columns
    each, ahead = question.hardware.action_host_seconds, pieces.device.launches_ahead
    hands_on = boundary_seconds(question, columns, pieces.links.groups)
    sends_on = overlaps(columns, "pp", always=question.stack.overlap_pipeline_sends)
    blocked, sent = np.where(sends_on, 0.0, hands_on), np.where(sends_on, hands_on, 0.0)
    host = np.where(columns.pp > 1, each, 0.0)
    waits = ~sends_on & (columns.pp > 1) & ahead
    gets = question.stack.broadcasts_every_batch
    return {
        "stage_forward": {"pp_comm": blocked, "host": host + each * (waits | gets)} | _batch(pieces),
        "stage_backward": {"pp_comm": blocked, "host": host + each * waits},
        "stage_weight": {"host": np.where(always_split(columns), host, 0.0)},
        "p2p": {"pp_comm": sent},
    }


def _batch(pieces: Pieces) -> Term:
    """What sending and masking its batch takes an action, where the stack does both on every stage."""
    question, device = pieces.question, pieces.device
    if not question.stack.broadcasts_every_batch:
        return {}
    length = question.training.sequence_length
    tensor_ranks, profile = pieces.links.groups.tp, question.hardware
    tokens = pieces.columns.tokens(length) * _TOKEN_BYTES
    sent = broadcast_seconds(tokens, tensor_ranks, profile)
    sent = sent + broadcast_seconds(np.full(len(pieces.columns), _SIZE_BYTES), tensor_ranks, profile)
    mask = _MASK_BYTES * length**2 / device.memory_rate + _MASK_KERNELS * profile.kernel_seconds
    return {"compute": pieces.none + mask, "tp_comm": sent}
