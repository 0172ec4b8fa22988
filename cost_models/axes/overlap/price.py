"""What of communication a layout that names its overlap still shows."""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.axis import Price, Terms
from cost_models.axes.overlap import said
from cost_models.communication.data import exposed
from cost_models.pipeline.terms.update_terms import forward_window, gather_shown, layer_reduce_shown
from cost_models.pipeline.time_pieces import Pieces


def tensor_shown(pieces: Pieces, mesh_axis: str, sent: Array, window: Array, always: Array) -> Array:
    """Like `sent`: the part of tensor-parallel communication that `window` seconds of products do not hide.

    A layout that names it has it hidden behind products in as many chunks as there are ranks, of which one never is:
    the first that is gathered comes before its product, the last that is scattered after it. Where no layout says, it
    is what the stack always shows.
    """
    question, columns = pieces.question, pieces.columns
    if mesh_axis != "tp" or not said(columns).any():
        return always
    unsaid, named, tp = (
        one.reshape(-1, *[1] * (sent.ndim - 1))
        for one in (~said(columns), (columns.overlap_tp == 1) & pieces.hides_tensor_parallel, columns.tp)
    )
    chunked = np.maximum(exposed(sent, window, question.hardware, overlapped=True), sent / tp)
    return np.where(unsaid, always, np.where(named, chunked, sent))


def step_seconds(pieces: Pieces, terms: Terms) -> Terms:
    """The gradients of a block with what of them no layout hides."""
    if not (pieces.columns.overlap_dp == 1).any():
        return {}
    sync, kept = terms["layer_sync"], _never_hidden(pieces)
    return {"layer_sync": sync | {"dp_comm": sync["dp_comm"] + kept, "dp_hidden": sync["dp_hidden"] - kept}}


def _never_hidden(pieces: Pieces) -> Array:
    """(N,) seconds of a block beyond what is in sight, where the layout says that data parallelism overlaps.

    Nothing runs any more behind which the last part could be reduced, nor yet where the first is gathered. Those are
    chunks of the model, half of which is hidden behind the loading of data, so that 1/(2·vpp) of all stays (Jiang et
    al. 2024, section 3.2), or a block of all that a rank has.
    """
    columns, block = pieces.columns, pieces.links.block
    of_blocks = np.minimum(1.0, columns.pp / pieces.question.model.num_layers)
    share = of_blocks if pieces.question.stack.overlaps_by_block else 1 / (2 * columns.vpp)
    shown = layer_reduce_shown(pieces) + gather_shown(pieces, block.step_gather, forward_window(pieces))
    kept = np.maximum(0.0, share * (block.step_reduce + block.step_gather) - shown)
    return np.where(columns.overlap_dp == 1, kept, 0.0)


PRICE = Price(seconds=step_seconds, shown=tensor_shown)
