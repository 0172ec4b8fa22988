"""Time coefficients of what a rank does once a step: reduces the gradients still left, and updates its parameters.

A block's gradients are complete after the backward pass of its last microbatch. With one chunk a rank they are reduced
behind the backward pass of another block. Where microbatches pass through several chunks in rounds (interleaved 1F1B),
a chunk is complete a whole round before the next one: a stack that reduces chunk by chunk then shows what outlasts a
round of passes, and all of the last chunk's (Jiang et al. 2024, section 3.2).
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, is_overlapped
from cost_models.communication.collectives import all_reduce_seconds, point_to_point_seconds
from cost_models.communication.data import exposed
from cost_models.communication.topology import Groups
from cost_models.memory.states import ends_apart, state_bytes
from cost_models.operators.accumulation import gradient_dtype
from cost_models.operators.parameters import parameters
from cost_models.operators.tuning import ENDS, Part, summed_over_tensor_ranks, tuned
from cost_models.pipeline.passes import MOST_PASSES, or_launches
from cost_models.pipeline.time_pieces import Pieces, Term, jitter
from cost_models.question import Question
from cost_models.schedules.actions import round_sizes
from cost_models.schedules.registry import V_SHAPED, is_scheduled
from cost_models.specs.training import STATE_BYTES


def sync(pieces: Pieces) -> dict[str, Term]:
    """Gradients still to be reduced after the last backward of a rank."""
    layer = pieces.links.block.step_reduce
    window = or_launches(pieces, pieces.backward_window, passes=MOST_PASSES)
    layer_shown = _reduce_shown(pieces, layer, window)
    once = np.where(pieces.columns.replicas > 1, pieces.question.hardware.collective_seconds, 0.0)
    never = _never_hidden(pieces, layer_shown)
    found = {
        "layer_sync": {"dp_comm": layer_shown + never, "dp_hidden": layer - layer_shown - never}
        | _summed(pieces),
        "rank_sync": {"dp_comm": once},
    }
    return found | _sync_of_ends(pieces) if pieces.whole else found


def _never_hidden(pieces: Pieces, reduce_shown: Array) -> Array:
    """(N,) seconds of a block beyond those in sight that `overlap=dp` cannot hide; 0 in layouts without it.

    Nothing runs any more behind which the last block could be reduced, nor yet where the first is gathered.
    """
    columns, block = pieces.columns, pieces.links.block
    named = columns.overlap_dp == 1
    if not named.any():
        return pieces.none
    share = np.minimum(1.0, columns.pp / pieces.question.model.num_layers)
    shown = reduce_shown + gather_shown(pieces, block.step_gather, forward_window(pieces))
    kept = np.maximum(0.0, share * (block.step_reduce + block.step_gather) - shown)
    return np.where(named, kept, 0.0)


def _summed(pieces: Pieces) -> Term:
    """An all-reduce of gradients that each tensor rank has a part of; nothing where every parameter is trained."""
    question, columns = pieces.question, pieces.columns
    if question.training.tuning is None:
        return {}
    message = summed_over_tensor_ranks(question, columns) * STATE_BYTES[gradient_dtype(question)]
    seconds = all_reduce_seconds(message, pieces.links.groups.tp, question.hardware)
    return {"tp_comm": np.where(message > 0, seconds, 0.0)}


def _sync_of_ends(pieces: Pieces) -> dict[str, Term]:
    """Gradient synchronisation of embedding and head."""
    links, head = pieces.links, pieces.links.head.step_reduce
    head_shown = _reduce_shown(pieces, head, pieces.ends.head_backward)
    tied = tied_reduce_seconds(pieces.question, pieces.columns, links.groups.pp)
    return {
        "embedding_sync": {"dp_comm": links.embedding.step_reduce, "pp_comm": tied},
        "head_sync": {"dp_comm": head_shown, "dp_hidden": head - head_shown, "pp_comm": tied},
    }


def _reduce_shown(pieces: Pieces, reduce: Array, window: Array) -> Array:
    """(N,) seconds that a rank waits at its step's end for `reduce`, the gradients of a module, the mean over its
    chunks; `window` is the backward pass of the module."""
    question, columns, stack = pieces.question, pieces.columns, pieces.question.stack
    at_once = np.isin(columns.zero, stack.overlaps_gradient_reduce_at)
    overlapped = at_once & is_overlapped(columns, "dp", default=stack.overlap_gradient_reduce)
    shown = exposed(reduce, window, question.hardware, overlapped=overlapped)
    turns = overlapped & (columns.vpp > 1) & ~is_scheduled(columns, V_SHAPED)
    if not (stack.reduces_chunks_in_turn and turns.any()):
        return shown
    a_round = round_sizes(columns.pp, columns.microbatches(question.training.global_batch))
    others = exposed(reduce, a_round * window, question.hardware, overlapped=overlapped)
    return np.where(turns, (reduce + (columns.vpp - 1) * others) / columns.vpp, shown)


def gather_shown(pieces: Pieces, gather: Array, window: Array) -> Array:
    """(N,) seconds of a gather of updated weights that `window` does not hide."""
    hides = is_overlapped(pieces.columns, "dp", default=pieces.question.stack.overlap_parameter_gather)
    return exposed(gather, window, pieces.question.hardware, overlapped=hides)


def forward_window(pieces: Pieces) -> Array:
    """(N,) seconds of a block's forward pass behind which weights are gathered."""
    return or_launches(pieces, pieces.forward_window, passes=1.0)


def optimizer(pieces: Pieces) -> dict[str, Term]:
    """Update of the rank's share of the states, then the gather of updated weights (ZeRO-1/2).

    On the device it is bound by memory: per parameter it reads gradient, moments and (master) weight and writes all but
    the gradient. The gradient norm reads the gradients once more, averaging over replicas reads and writes them, a
    buffer that stays is zeroed.
    """
    counts, links, each = pieces.counts, pieces.links, _update_seconds(pieces, "block")

    def term(update: Array, gather: Array, window: Array) -> Term:
        shown = gather_shown(pieces, gather, window)
        return {"optimizer": update, "dp_comm": shown, "dp_hidden": gather - shown}

    found = {
        "layer_optimizer": term(block_update(pieces, each), links.block.step_gather, forward_window(pieces)),
        "rank_optimizer": {"optimizer": pieces.none + pieces.device.profile.kernel_seconds, **_norms(pieces)},
    }
    if not pieces.whole:
        return found
    apart = ends_apart(pieces.question)
    of_embedding, of_head = (_update_seconds(pieces, end) if apart else each for end in ENDS)
    head = pieces.head_parameters * of_head
    return found | {
        "embedding_optimizer": term(
            counts.embedding * of_embedding, links.embedding.step_gather, pieces.none
        ),
        "head_optimizer": term(head, links.head.step_gather, pieces.ends.head_forward),
    }


def _norms(pieces: Pieces) -> Term:
    """LAMB's all-reduce of norms: over tensor ranks alone where nothing else splits a parameter."""
    seconds, columns = pieces.links.norms, pieces.columns
    if not seconds.any():
        return {}
    alone = (columns.zero == 0) & (not pieces.question.model.has_experts)
    return {"tp_comm": np.where(alone, seconds, 0.0), "dp_comm": np.where(alone, 0.0, seconds)}


def block_update(pieces: Pieces, each: Array | None = None) -> Array:
    """(N,) seconds to update the parameters of a block on the device, jitter left out; `each` are those of a parameter
    that is no expert's, where they are known."""
    block = pieces.counts.block * (_update_seconds(pieces, "block") if each is None else each)
    if pieces.question.model.has_experts:
        block = block + pieces.counts.experts * _update_seconds(pieces, "experts")
    return block


def block_update_seconds(question: Question, columns: LayoutColumns) -> Array:
    """(N,) seconds to update the parameters of a block, jitter included."""
    return block_update(Pieces(question, columns)) * (1 + jitter(question, columns))


def _update_seconds(pieces: Pieces, part: Part) -> Array:
    """(N,) seconds to update one parameter of the rank on its device: the bytes that a step reads and writes for it."""
    question, columns = pieces.question, pieces.columns
    experts, share = part == "experts", tuned(question, columns, part).share
    states = state_bytes(question, columns, experts=experts, end=part if part in ENDS else None)
    shard, copies = columns.shard, columns.replicas
    if experts:
        shard, copies = columns.expert_shard, columns.expert_replicas
    sharded = np.where(columns.zero >= 1, shard, 1)
    gradient = STATE_BYTES[gradient_dtype(question)]
    buffered = question.stack.gradient_buffer & (columns.zero <= 1)
    passes = 2 + np.where(copies > 1, 2, 0) + np.where(buffered, sharded, 0)
    besides = question.stack.unfused_update_bytes
    if question.training.optimizer == "lamb":
        besides += question.stack.lamb_update_bytes
    unfused = besides / sharded
    touched = (
        share * (passes * gradient / sharded) + 2 * states.optimizer + 2 * states.updated + share * unfused
    )
    return touched / pieces.device.optimizer_rate


def tied_reduce_seconds(question: Question, columns: LayoutColumns, boundary: Groups) -> Array:
    """First and last stage add the gradients of a tied matrix: one transfer over the stage boundary's links.

    In a V both are on one rank.
    """
    matrix = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp).head_matrix
    message = matrix * STATE_BYTES[gradient_dtype(question)]
    seconds = point_to_point_seconds(message, boundary, question.hardware)
    apart = (columns.pp > 1) & ~is_scheduled(columns, V_SHAPED)
    trains = question.training.trains("head matrix")
    return np.where(question.model.tied_embeddings & apart & trains, seconds, 0.0)
