"""Every memory coefficient of `StageCosts`, split into the parts a user sees: `{part: bytes}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.axis import Terms
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import prices
from cost_models.communication.context import gathered_elements
from cost_models.compute.casts import EAGER_CAST_BYTES
from cost_models.memory.activations import ActivationBytes, activation_bytes
from cost_models.memory.boundaries import boundary_bytes, pending_bytes
from cost_models.memory.device import fragmentation, workspace_bytes
from cost_models.memory.run_ahead import held_back_bytes
from cost_models.memory.states import StateBytes, state_bytes
from cost_models.operators.accumulation import fuses_accumulation
from cost_models.operators.chunked_loss import chunks_loss
from cost_models.operators.on_rank import tokens_on_rank
from cost_models.operators.parameters import Parameters, padded_vocabulary, parameters
from cost_models.pipeline.further_tokens import further_bytes
from cost_models.pipeline.time_pieces import head_parameters
from cost_models.question import Question
from cost_models.schedules.traits import always_split, keeps_all_logits
from cost_models.specs.choices import RECOMPUTE_POLICIES

Term = dict[str, Array]

FRAGMENTATION = "fragmentation"
"""What the allocator holds and no tensor uses; all other parts are what it counts as allocated."""
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "working", "buffers", FRAGMENTATION)


V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class MemoryCoefficients(Generic[V]):
    """Bytes of `stage_costs`; arrays are (N,) unless it says (N, P)."""

    static: V
    layer_static: V
    layer_activation: V
    """(N, P): kept for the backward pass, per block and live microbatch."""
    layer_pending: V
    """Gradients kept for the products towards the weights, per block and microbatch between the halves of backward."""
    layer_update: V
    rank_update: V
    """What the optimizer step of a rank holds besides, whatever its blocks."""
    embedding_static: V
    embedding_activation: V
    embedding_update: V
    head_static: V
    head_activation: V
    head_pending: V
    head_update: V
    working: V
    """(N, P): the largest temporary set of one block (recomputed activations, gathered weights, gradients)."""
    head_moment: V
    """Held at once while the loss of a microbatch runs forward and backward: no block runs meanwhile."""


@dataclass(frozen=True, kw_only=True)
class MemoryTerms(MemoryCoefficients[Term]):
    """Each in the parts that a user sees: `{part: bytes}`."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What memory coefficients are put together from."""

    question: Question
    columns: LayoutColumns
    states: StateBytes
    """Of a parameter, as if all were on the device."""
    experts: StateBytes
    """The same of routed experts."""
    counts: Parameters
    kept: ActivationBytes
    head: Array
    """(N,) parameters of the head on its rank."""
    fp8_copies: Array
    """(N,) bytes per parameter of a block."""

    def held_block(self, states: StateBytes, experts: StateBytes) -> Term:
        """What a block with such states occupies from step to step."""
        own, routed = self.counts.block, self.counts.experts
        return _joined(_held(states, own, self.fp8_copies), _held(experts, routed, self.fp8_copies))

    def updated_block(self, states: StateBytes, experts: StateBytes) -> Term:
        """What the optimizer step of such a block holds besides."""
        return _joined(self.updated(states, self.counts.block), self.updated(experts, self.counts.experts))

    def held_end(self, states: StateBytes, module_parameters: Array) -> Term:
        """What embedding or head occupies from step to step; `fully_shard` keeps them gathered."""
        gathered = self.states.gathered if self.question.stack.fully_shard else 0.0
        return _held(states, module_parameters, gathered)

    def updated(self, states: StateBytes, module_parameters: Array) -> Term:
        """What the optimizer step of a module holds besides."""
        return {
            "gradients": states.late_gradients * module_parameters,
            "working": states.update * module_parameters,
        }


def sizes_of(question: Question, columns: LayoutColumns) -> Sizes:
    """Of N layouts."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    return Sizes(
        question=question,
        columns=columns,
        states=state_bytes(question, columns),
        experts=state_bytes(question, columns, experts=True),
        counts=counts,
        kept=activation_bytes(question, columns),
        head=head_parameters(question, columns, counts),
        fp8_copies=_fp8_weight_bytes(question, columns),
    )


def memory_terms(question: Question, columns: LayoutColumns) -> MemoryTerms:
    """All memory coefficients for N layouts at once."""
    sizes = sizes_of(question, columns)
    states, counts, kept, head = sizes.states, sizes.counts, sizes.kept, sizes.head
    pending, boundaries = pending_bytes(question, columns), boundary_bytes(question, columns)
    head_live, head_moment = _head(columns, kept)
    terms: Terms = {
        "static": {"buffers": boundaries.every_rank + workspace_bytes(question)},
        "layer_static": sizes.held_block(states, sizes.experts),
        "layer_activation": {"activations": kept.block},
        "layer_pending": {"activations": pending.block},
        "layer_update": sizes.updated_block(states, sizes.experts),
        "rank_update": {"optimizer": np.zeros(len(columns))},
        "embedding_static": sizes.held_end(states, counts.embedding) | {"buffers": boundaries.first_rank},
        "embedding_activation": {"activations": kept.embedding},
        "embedding_update": sizes.updated(states, counts.embedding),
        "head_static": sizes.held_end(states, head) | {"buffers": boundaries.last_rank},
        "head_activation": {"activations": head_live},
        "head_pending": {"activations": pending.head},
        "head_update": sizes.updated(states, head),
        "working": {"working": _working(sizes)},
        "head_moment": {"working": head_moment},
    }
    for price in prices():
        terms |= price.bytes(sizes, terms) if price.bytes else {}
    terms |= further_bytes(question, columns, terms)
    terms |= {
        name: terms[name] | {FRAGMENTATION: size} for name, size in _other_streams(sizes, terms).items()
    }
    held_back = terms["static"].get(FRAGMENTATION, 0.0) + held_back_bytes(question, columns)
    terms["static"] = terms["static"] | {FRAGMENTATION: held_back}
    return MemoryTerms(**_fragmented(terms, fragmentation(question), kept.released_logits))


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
    gathers = np.where(states.scattering > 0, question.training.element_bytes, 0.0)
    blocks = 2 * gathers * counts.block
    together = sizes.columns.pp == 1
    first = gathers * (counts.embedding + np.where(together, sizes.head, 0.0))
    last = np.where(together, 0.0, gathers * sizes.head)
    made = {  # in the blocks that the pool has
        name: -terms[name]["gradients"] for name in ("layer_update", "embedding_update", "head_update")
    }
    return made | {
        "static": blocks,
        "layer_static": states.reduced * counts.block + sizes.experts.reduced * counts.experts,
        "embedding_static": states.reduced * counts.embedding + np.maximum(0.0, first - blocks),
        "head_static": states.reduced * sizes.head + np.maximum(0.0, last - blocks),
    }


def total(term: Term) -> Array:
    """Sum of the parts."""
    return sum((term[part] for part in MEMORY_PARTS if part in term), start=np.zeros(1))


def _fp8_weight_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes per parameter of a block of copies for products in fp8 or fp4; ZeRO-3 makes them as it gathers."""
    training = question.training
    copies = question.stack.fp8_weight_bytes * training.operand_bytes if training.narrow else 0.0
    return np.where(columns.zero <= 2, copies, 0.0)


def _joined(one: Term, other: Term) -> Term:
    """Two terms of the same parts, added."""
    return {part: one[part] + other[part] for part in one}


def _held(states: StateBytes, module_parameters: Array, gathered: Array | float) -> Term:
    """What a module's parameters occupy from step to step, with the bytes a parameter that stay gathered."""
    return {
        "weights": (states.weights + gathered) * module_parameters,
        "gradients": states.gradients * module_parameters,
        "optimizer": states.optimizer * module_parameters,
    }


def _working(sizes: Sizes) -> Array:
    """(N, P) largest temporary set of one block: what is recomputed, gradients on their way, gathered weights.

    The widest moment of the backward pass holds the gradient of the residual stream, that of the MLP's inner activation
    and, unless products add into the gradient buffer themselves, that of the matrix between (of a mixture the matrices
    of all its experts here, which one grouped product makes). ZeRO-3 holds weights of
    the block at work, and ZeRO-2 and 3 its full gradient once more while it is scattered. A mixture also holds the
    gradient of the copies that its experts work on. A cast to fp8 that is not fused holds its operand in fp32. Where
    attention gathers keys and values over context ranks, these and their gradients may be wider than the MLP. After a
    loss in chunks the gradient of a tied output matrix counts too; all logits at once hold more than a block does with
    it.
    """
    question, columns, kept = sizes.question, sizes.columns, sizes.kept
    states, experts, counts = sizes.states, sizes.experts, sizes.counts
    model, training = question.model, question.training
    tokens = columns.tokens(training.sequence_length)
    inner, copies = tokens * model.ffn_hidden_size / columns.tp, np.zeros(len(columns))
    matrix = model.hidden_size * model.ffn_hidden_size / columns.tp
    if model.moe_share:
        copies = tokens_on_rank(question, columns, "copies") * model.hidden_size
        routed = tokens_on_rank(question, columns, "expert") * model.moe_ffn_hidden_size
        inner = np.maximum(inner, routed)
        stacked = model.num_experts / columns.ep * model.hidden_size * model.moe_ffn_hidden_size / columns.etp
        matrix = np.maximum(matrix, stacked)
    new_gradient = np.zeros(len(columns)) if fuses_accumulation(question) else matrix
    widest = np.maximum(inner + new_gradient, 2 * inner if model.gated_mlp else 0.0)
    attending = 2 * gathered_elements(question, columns)
    in_flight = training.element_bytes * (tokens * model.hidden_size + np.maximum(widest + copies, attending))
    if training.narrow and question.stack.fp8_casts_apart and not question.stack.fused_elementwise:
        in_flight = in_flight + EAGER_CAST_BYTES * np.maximum(inner, matrix)
    recomputed: Array = kept.block[:, :1] - kept.block
    # attention is computed again once the MLP is done with
    if question.stack.selective_drops in ("core", "block-attention"):
        selective = RECOMPUTE_POLICIES.index("selective")
        recomputed[:, selective] = np.maximum(0.0, recomputed[:, selective] - kept.mlp)
    in_flight = (
        np.maximum(in_flight[:, None], _around_scores(sizes)) + _tied_gradient(question, columns)[:, None]
    )
    gathered = states.gathered * counts.block + experts.gathered * counts.experts
    scattered = states.scattering * counts.block + experts.scattering * counts.experts
    if not question.stack.fully_shard:
        return recomputed + in_flight + (gathered + scattered)[:, None]
    incoming = training.element_bytes * tokens * model.hidden_size + _tied_gradient(question, columns)
    during = recomputed + in_flight + 2 * gathered[:, None]  # with the block that is fetched early
    after = (incoming + 2 * gathered + scattered)[:, None] - kept.block
    return np.maximum(during, after)


_SCORES_IN_FLIGHT = {"fused-softmax": 2.0, "unfused": 3.0}
"""Tensors as large as the attention scores besides those that are kept: gradients of what softmax returns and reads,
and of a copy that a mask is written into. As many are there when the scores are made."""


def _around_scores(sizes: Sizes) -> Array:
    """(N, 1): what the attention core's backward pass holds where it stores scores, less what the MLP has freed."""
    question, columns = sizes.question, sizes.columns
    model, training = question.model, question.training
    tensors = _SCORES_IN_FLIGHT.get(question.stack.attention, 0.0)
    if not tensors:
        return np.zeros((len(columns), 1))
    each = training.element_bytes * model.num_heads * training.sequence_length
    scores = tensors * each * tokens_on_rank(question, columns, "split")
    stream = training.element_bytes * columns.tokens(training.sequence_length) * model.hidden_size
    return (stream + scores - sizes.kept.mlp).clip(min=0.0)[:, None]


def _tied_gradient(question: Question, columns: LayoutColumns) -> Array:
    """(N,) the output matrix's gradient from a loss in chunks, which waits for the embedding's to be added to it."""
    model = question.model
    matrix = question.training.element_bytes * model.hidden_size * float(padded_vocabulary(model, 1))
    waits = chunks_loss(question, columns) & (columns.pp == 1) & model.tied_embeddings
    return np.where(waits, matrix, 0.0)


def _head(columns: LayoutColumns, kept: ActivationBytes) -> tuple[Array, Array]:
    """(kept per live microbatch, held at once while the loss runs) of the last stage, (N,) each.

    Schedules that run backward at once have one microbatch in the head, which belongs to that moment. GPipe keeps them
    all, and DualPipeV runs another microbatch between; where backward is always split, what the output product kept
    waits for its weight half.
    """
    collects = keeps_all_logits(columns)
    waits = always_split(columns)
    live = kept.head + kept.log_probabilities
    moment = kept.loss_gradients + np.where(collects, 0.0, np.where(waits, kept.log_probabilities, live))
    return np.where(collects, live, np.where(waits, kept.head, 0.0)), moment
