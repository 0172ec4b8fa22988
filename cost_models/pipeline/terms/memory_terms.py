"""Every memory coefficient of `StageCosts`, split into the parts a user sees: `{part: bytes}`."""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload.price import offload_bytes
from cost_models.memory.activations import ActivationBytes
from cost_models.memory.boundaries import boundary_bytes, pending_bytes
from cost_models.memory.device import fragmentation, workspace_bytes
from cost_models.operators.chunked_loss import chunks_loss
from cost_models.operators.tuning import tuned
from cost_models.pipeline.terms.sizes import Sizes, Term, held_back_bytes, sizes_of, working_bytes
from cost_models.pipeline.time_pieces import FRAGMENTATION, Terms, total
from cost_models.pipeline.time_terms import further_bytes
from cost_models.question import Question
from cost_models.schedules.registry import ALWAYS_SPLIT, KEEPS_ALL_LOGITS, is_scheduled

_MOVING = (
    "layer_activation",
    "layer_pending",
    "embedding_activation",
    "head_activation",
    "head_pending",
    "working",
    "head_moment",
)
"""Terms of tensors that are made and freed within a step; the optimizer's step finds the room of activations."""


def memory_terms(question: Question, columns: LayoutColumns) -> Terms:
    """All memory coefficients for N layouts at once."""
    sizes = sizes_of(question, columns)
    states, (first, last), counts = sizes.states, sizes.ends, sizes.counts
    kept, head = sizes.kept, sizes.head
    (pending, head_pending), boundaries = pending_bytes(question, columns), boundary_bytes(question, columns)
    head_live, head_moment = _head(columns, kept)
    if question.training.optimizer_in_backward:  # the output matrix has its gradient beside those of logits
        gradient = question.training.element_bytes * counts.head_matrix
        head_moment = head_moment + np.where(chunks_loss(question, columns), 0.0, gradient)
    buckets = np.where(
        (columns.zero >= 1) & (columns.replicas > 1), question.stack.collective_buffers or 0.0, 0.0
    )  # in which shards of gradients and weights are collected
    terms: Terms = {
        "static": {"buffers": boundaries.every_rank + workspace_bytes(question) + buckets},
        "layer_static": sizes.held_block(states, sizes.experts),
        "layer_activation": {"activations": kept.block},
        "layer_pending": {"activations": pending},
        "layer_update": sizes.updated_block(states, sizes.experts),
        "rank_update": {"optimizer": np.zeros(len(columns))},
        "embedding_static": sizes.held_end(first, counts.embedding) | {"buffers": boundaries.first_rank},
        "embedding_activation": {"activations": kept.embedding},
        "embedding_update": sizes.updated(first, counts.embedding),
        "head_static": sizes.held_end(last, head) | {"buffers": boundaries.last_rank},
        "head_activation": {"activations": head_live},
        "head_pending": {"activations": head_pending},
        "head_update": sizes.updated(last, head),
        "working": {"working": working_bytes(sizes)},
        "head_moment": {"working": head_moment},
    }
    terms |= offload_bytes(sizes, terms)
    terms |= further_bytes(question, columns, terms)
    terms |= {
        name: terms[name] | {FRAGMENTATION: size} for name, size in _other_streams(sizes, terms).items()
    }
    held_back = terms["static"].get(FRAGMENTATION, 0.0) + held_back_bytes(question, columns)
    terms["static"] = terms["static"] | {FRAGMENTATION: held_back}
    terms = _fragmented(terms, fragmentation(question), kept.released_logits)
    return terms | {"head_moment": _freed_by_loss(sizes, terms["head_moment"])}


def _freed_by_loss(sizes: Sizes, moment: Term) -> Term:
    """The `moment` of the loss where embedding and head are let go of until their backward pass: that gathers them,
    through a buffer (counted once where it is a stream's own), beside the gradients of logits in the weights' type."""
    question, columns = sizes.question, sizes.columns
    frees = question.stack.loss_frees_ends and not question.training.optimizer_in_backward
    here = frees & (columns.pp == 1) & ~chunks_loss(question, columns)
    freed = np.where(here, sizes.ends[0].gathered * (sizes.counts.embedding + sizes.head), 0.0)
    copies = 1 if fragmentation(question) else 2
    again = np.where(here, copies * freed + sizes.kept.logits, 0.0)
    return moment | {"weights": -freed, "working": np.maximum(moment["working"], again)}


def _fragmented(terms: Terms, share: float, released: Array) -> Terms:
    """The same with a share of everything that comes and goes beside it, and released logits beside the loss."""
    sizes = {name: share * total(terms[name]) for name in _MOVING}
    sizes["head_moment"] = sizes["head_moment"] + (released if share else 0.0)
    return terms | {name: terms[name] | {FRAGMENTATION: size} for name, size in sizes.items()}


def _other_streams(sizes: Sizes, terms: Terms) -> dict[str, Array]:
    """Memory of `fully_shard` that only its own streams may use again, as the allocator keeps pools by stream.

    Collectives gather into a buffer of the copy-in stream, for two blocks or for embedding and head, from which weights
    are copied out. The reduction's stream makes the shards of gradients: from the second step on their blocks are there
    before the gradients are (torch, distributed/fsdp/_fully_shard/_fsdp_collectives.py).
    """
    question, states, counts = sizes.question, sizes.states, sizes.counts
    if not (question.stack.fully_shard and fragmentation(question)):
        return {}
    element, of_block = question.training.element_bytes, tuned(question, sizes.columns, "block")
    gathers = np.where(states.scattering > 0, element, 0.0)
    each = np.where(states.scattering > 0, element * of_block.share + of_block.frozen, 0.0)
    blocks = 2 * each * counts.block
    together = sizes.columns.pp == 1
    first = gathers * (counts.embedding + np.where(together, sizes.head, 0.0))
    last = np.where(together, 0.0, gathers * sizes.head)
    made = {  # in the blocks that the pool has
        name: -terms[name]["gradients"] for name in ("layer_update", "embedding_update", "head_update")
    }
    return made | {
        "static": blocks,
        "layer_static": states.reduced * counts.block + sizes.experts.reduced * counts.experts,
        "embedding_static": sizes.ends[0].reduced * counts.embedding + np.maximum(0.0, first - blocks),
        "head_static": sizes.ends[1].reduced * sizes.head + np.maximum(0.0, last - blocks),
    }


def _head(columns: LayoutColumns, kept: ActivationBytes) -> tuple[Array, Array]:
    """(kept per live microbatch, held at once while the loss runs) of the last stage, (N,) each.

    Schedules that run backward at once have one microbatch in the head, which belongs to that moment. GPipe keeps them
    all, and DualPipeV runs another microbatch between; where backward is always split, what the output product kept
    waits for its weight half.
    """
    collects, waits = is_scheduled(columns, KEEPS_ALL_LOGITS), is_scheduled(columns, ALWAYS_SPLIT)
    live = kept.head + kept.log_probabilities
    moment = kept.loss_gradients + np.where(collects, 0.0, np.where(waits, kept.log_probabilities, live))
    return np.where(collects, live, np.where(waits, kept.head, 0.0)), moment
