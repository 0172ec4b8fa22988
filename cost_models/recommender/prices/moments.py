"""What a step fills beside tables and their states, moment by moment, where stages follow one another in eager mode.

What a GPU holds of ids and vectors is something else in each stage, and any may be the fullest:

    forward exchange     on CPUs, rows over all of them: gloo adds up partial sums in a copy of these
    dense network        vectors of its samples, all that autograd keeps, weights as products take them
    backward exchange    vectors, their gradients, these as they are sent, and those that come for its shards
    gradients of copies  the same with gradients of copied rows in place of what is sent: its own, gathered, added up
    update               gradients that came, these in fp32, ids sorted, and what they add up to for each row
    sums of gradients    the dense network's weights, its gradients in one, and those of all GPUs

Where the dense network's gradients are summed behind the tables' work, those that come lie beside it from the backward
exchange on, in the update their sums and a share.

An update takes one table after another: what sorting and fp32 take is counted of all shards that lie on GPUs of their
own, which are few, and left out of rows over all GPUs, where it is that of one table in all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array
from cost_models.memory.device import is_own_host
from cost_models.recommender.prices.dense import DenseNetwork, dense_state_bytes
from cost_models.recommender.prices.lookup import ID_BYTES
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import OptionColumns
from cost_models.specs.recommender.constants import EagerBuffers

_FP32 = 4.0
FORWARD, DENSE, BACKWARD = "forward exchange", "dense network", "backward exchange"
COPIES, UPDATE, SUMS = "gradients of copies", "update", "sums of gradients"


def moments_of(question: RecommenderQuestion) -> tuple[str, ...]:
    """The moments at which memory may be fullest: M of them."""
    if question.facts.eager_buffers is None:
        return ("step",)
    on_gpus = (DENSE, BACKWARD, COPIES, UPDATE, SUMS)
    return (FORWARD, *on_gpus) if is_own_host(question.cluster) else on_gpus


class Filled(NamedTuple):
    """Bytes that options fill, (O,) each."""

    ids: Array
    vectors: Array
    update: Array


def filled(
    question: RecommenderQuestion, x: OptionColumns, buffers: EagerBuffers
) -> dict[str, tuple[Filled, Filled]]:
    """Bytes by moment: on each GPU that holds (part of) a shard, and on every GPU."""
    gpus, sent, zero = question.cluster.num_gpus, question.training.exchange_bytes, np.zeros(len(x))
    placed, row_bytes = x.ids > 0, _FP32 * x.width + buffers.touched_row_bytes
    held, own = _ids(question, x)
    lengths = question.facts.length_bytes * x.lengths
    hot = np.where((x.hot_rows > 0) & (x.form != "copy"), (x.hot_ids * ID_BYTES + lengths) / gpus, 0.0)
    made = np.where(placed, x.outputs * x.width, 0.0) * sent * buffers.made
    mine = x.outputs * x.whole_width / gpus
    message = np.where(placed & (gpus > 1), mine * sent * buffers.sent, 0.0)
    both = mine * (buffers.received_bytes + (sent if sent < _FP32 else 0.0))
    alone = x.shards > 0
    sorting = np.where(alone, buffers.sort_bytes * x.ids / x.sharers, 0.0)
    cast = np.where(alone & placed, x.outputs * x.width * _FP32, 0.0)
    added = x.distinct / x.sharers * row_bytes
    spread = ((x.form == "row") & (x.shards == 0)) | (x.form == "node-row")
    adding, summed = _copied(question, x, buffers)
    of = {
        FORWARD: (Filled(held, np.where(spread, 2 * made, 0.0), zero), Filled(own + hot, mine * sent, zero)),
        DENSE: (Filled(held, zero, zero), Filled(own + hot, mine * _FP32, zero)),
        BACKWARD: (Filled(held, made, zero), Filled(own + hot, both + message, zero)),
        COPIES: (Filled(held, made, zero), Filled(own + hot, both, adding)),
        UPDATE: (Filled(held + sorting, made + cast, added), Filled(own + hot, zero, summed)),
        SUMS: (Filled(zero, zero, zero), Filled(own, zero, zero)),
    }
    return {name: of[name] for name in moments_of(question)}


def _ids(question: RecommenderQuestion, x: OptionColumns) -> tuple[Array, Array]:
    """Bytes of the ids received by a GPU that holds (part of) a shard, and of the ids of a GPU's own samples."""
    lengths = question.facts.length_bytes * x.lengths
    held = np.where(x.ids > 0, x.ids / x.sharers * ID_BYTES + lengths, 0.0)
    return held, ((x.ids + x.hot_ids) * ID_BYTES + lengths) / question.cluster.num_gpus


def _copied(question: RecommenderQuestion, x: OptionColumns, buffers: EagerBuffers) -> tuple[Array, Array]:
    """(O,) peak bytes while gradients of copied rows are summed, and bytes once they are.

    A GPU's own, the rows of all, and piece by piece their gradients: a message, what comes, then sums in its place.
    """
    gpus, sent = question.cluster.num_gpus, question.training.exchange_bytes
    row_bytes = _FP32 * x.whole_width + buffers.touched_row_bytes
    summed, own = x.hot_distinct * row_bytes, x.local_hot_distinct * row_bytes
    if gpus == 1:
        return own, summed
    used = gpus * x.local_hot_distinct
    piece = np.minimum(used, buffers.pieces * x.outputs / gpus)
    came = piece * x.whole_width * sent
    before = summed * (1 - piece / np.maximum(used, 1e-9))
    return own + used * ID_BYTES + came + np.maximum(came + before, summed), summed


def dense_bytes(question: RecommenderQuestion) -> dict[str, tuple[float, float]]:
    """Bytes by moment: states of the dense network, and activations of its samples."""
    facts, network = question.facts, DenseNetwork(question.model)
    assert facts.eager_buffers is not None
    gpus = question.cluster.num_gpus
    samples = question.training.global_batch / gpus
    inputs = _FP32 * samples * (question.model.dense_features + question.model.top_mlp[-1])
    element = _FP32 if question.training.precision == "fp32" else 2.0
    alive = samples * (network.alive or network.activations * facts.activation_bytes) * element
    states, weights = dense_state_bytes(question), _FP32 * network.parameters
    shares = 1.0 / gpus if gpus > 1 else 0.0
    of = dict.fromkeys(moments_of(question), (states, inputs))
    cast = 0.0 if element == _FP32 else element * network.parameters
    if FORWARD in of:
        of[FORWARD] = states - weights, inputs  # no gradients yet
    of[DENSE] = states - weights, inputs + alive + cast  # gradients of weights come as the rest goes
    if gpus > 1 and facts.hides_reduction:
        of[BACKWARD] = of[COPIES] = states + weights, inputs
        of[UPDATE] = states + weights * shares, inputs
    of[SUMS] = states + weights * (facts.eager_buffers.summed - 2 + shares), inputs
    return of
