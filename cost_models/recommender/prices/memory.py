"""Bytes that tables fill, part by part: on the GPUs that hold their shards, on every GPU, and in host memory.

weights       rows · elements · bytes of the table's type
optimizer     states of these rows: none, one number a row, one or two an element
hash tables   16 B an entry over the share of entries that are filled (HugeCTR, issue 348)
ids           of a batch, times the copies that the device holds of it
vectors       of samples: those made here for all, those received for a GPU's own, and their gradients
update        rows of a batch whose gradients are being added up
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.recommender.prices.dense import DenseNetwork, dense_state_bytes
from cost_models.recommender.prices.lookup import ID_BYTES, state_bytes
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import OptionColumns
from cost_models.specs.recommender.constants import EagerBuffers
from cost_models.tiers.host import is_own_host

Array = npt.NDArray[np.float64]

_FP32 = 4.0
PARTS = ("weights", "optimizer", "hash tables", "ids", "vectors", "update")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionBytes:
    """(O, P) bytes by part: columns as `PARTS` names them."""

    shard: Array
    """On each GPU that holds (part of) a shard."""
    everywhere: Array
    """On every GPU."""
    shard_host: Array
    """In the host memory of the node that holds a shard; a shard that is spread over all: in every node."""
    everywhere_host: Array


def option_bytes(question: RecommenderQuestion, x: OptionColumns) -> OptionBytes:
    """Bytes of every option of a table. Options that no GPU of their own holds have all in `everywhere`."""
    facts, training, gpus = question.facts, question.training, question.cluster.num_gpus
    zero, each = np.zeros(len(x)), training.table_bytes + facts.table_element_bytes
    entry = np.where(x.hashed, facts.hash_entry_bytes / facts.hash_load, 0.0)
    here = np.where(x.on_host, x.cached_rows, x.cold_rows) / x.sharers
    vectors = 2 * facts.output_buffers * training.exchange_bytes
    made_each, received, lengths, touched = np.full(len(x), vectors), vectors + zero, zero, zero
    if facts.eager_buffers is not None:
        made_each, received, lengths, touched = _eager(question, x, facts.eager_buffers)
    made = np.where(x.ids > 0, x.outputs * x.width, 0.0)
    held = (
        here * x.width * each,
        here * state_bytes(question, x.width),
        np.where(facts.keys_on_device, x.cold_rows / x.sharers, here) * entry,
        x.ids / (1.0 if facts.ids_everywhere else x.sharers) * ID_BYTES * facts.input_buffers
        + np.where(x.ids > 0, lengths, 0.0),
        made * made_each,
        x.distinct / x.sharers * x.width * facts.gradient_row_bytes,
    )
    copied = (
        x.hot_rows * x.whole_width * each,
        x.hot_rows * state_bytes(question, x.whole_width),
        x.hot_rows * entry,
        (x.ids + x.hot_ids) / gpus * ID_BYTES * facts.input_buffers + lengths / gpus,
        x.outputs * x.whole_width / gpus * received,
        x.hot_distinct * x.whole_width * facts.gradient_row_bytes + touched,
    )
    stay = x.cold_rows - (0.0 if facts.cached_rows_on_host else x.cached_rows)
    in_node = np.where(x.shards == 0, stay / question.cluster.nodes, stay / _slices(x))
    away = np.where(x.on_host, in_node, 0.0)
    host = (
        away * x.width * training.table_bytes,
        away * state_bytes(question, x.width),
        away * np.where(facts.keys_on_device, 0.0, entry),
        zero,
        zero,
        zero,
    )
    return _by_placement(x, np.stack(held, axis=1), np.stack(copied, axis=1), np.stack(host, axis=1))


def _eager(
    question: RecommenderQuestion, x: OptionColumns, buffers: EagerBuffers
) -> tuple[Array, Array, Array, Array]:
    """Bytes of every option in the exchange of gradients: for each element of vectors that a GPU makes, and of those
    that its samples get; of numbers of ids; of copied rows that are touched, with their gradients.

    Where the dense network fills more, tables that load all GPUs alike count as tables that are spread evenly.
    """
    facts, gpus, sent = question.facts, question.cluster.num_gpus, question.training.exchange_bytes
    alike = x.shards == 0
    made = np.where(alike, 2 * sent * buffers.gathered, _made_bytes(question, buffers))
    received = _received_bytes(question, buffers) + np.where(alike, 0.0, buffers.sent * sent)
    in_fp32, as_sent = (x.whole_width * each + buffers.touched_row_bytes for each in (_FP32, sent))
    touched = x.local_hot_distinct * (in_fp32 + gpus * as_sent) + x.hot_distinct * in_fp32
    if _alive_bytes(question) > _exchanged_bytes(question, buffers):
        made, touched = np.where(alike, 0.0, made), np.zeros(len(x))
        received = np.where(alike, _even_bytes(question, buffers), received)
    return made, received, facts.length_bytes * x.lengths, np.where(x.hot_rows > 0, touched, 0.0)


def _made_bytes(question: RecommenderQuestion, buffers: EagerBuffers) -> float:
    each = question.facts.output_buffers if question.cluster.num_gpus > 1 else buffers.alone
    return 2 * each * question.training.exchange_bytes


def _even_bytes(question: RecommenderQuestion, buffers: EagerBuffers) -> float:
    """For each element of the vectors that a GPU's samples get, where it makes as many."""
    sent = buffers.sent * question.training.exchange_bytes
    return _received_bytes(question, buffers) + sent + _made_bytes(question, buffers)


def _alive_bytes(question: RecommenderQuestion) -> float:
    """Of the dense network, at most."""
    network = DenseNetwork(question.model)
    samples = question.training.global_batch / question.cluster.num_gpus
    element = 4.0 if question.training.precision == "fp32" else 2.0
    return samples * (network.alive or network.activations * question.facts.activation_bytes) * element


def _received_bytes(question: RecommenderQuestion, buffers: EagerBuffers) -> float:
    sent = question.training.exchange_bytes
    return buffers.received_bytes + (sent if sent < 4 else 0.0)


def _slices(x: OptionColumns) -> Array:
    """Slices of rows, each with a GPU or a node of its own."""
    return np.where(x.form == "column", 1.0, np.maximum(x.shards, 1.0))


def _by_placement(x: OptionColumns, held: Array, copied: Array, host: Array) -> OptionBytes:
    """What shards of their own hold, apart from what is alike everywhere."""
    placed = (x.shards > 0)[:, None]
    spread = ((x.shards == 0) & (x.ids > 0))[:, None]
    return OptionBytes(
        shard=np.where(placed, held, 0.0),
        everywhere=copied + np.where(spread, held, 0.0),
        shard_host=np.where(placed, host, 0.0),
        everywhere_host=np.where(spread, host, 0.0),
    )


def fixed_bytes(question: RecommenderQuestion) -> dict[str, float]:
    """Device memory of every GPU that no table changes; a CPU has neither a context nor a communicator's buffers."""
    network, facts = DenseNetwork(question.model), question.facts
    samples = question.training.global_batch / question.cluster.num_gpus
    element = 4.0 if question.training.precision == "fp32" else 2.0
    apart = not is_own_host(question.cluster)
    activations = samples * network.activations * element * facts.activation_bytes
    if facts.eager_buffers is not None:
        inputs = 4.0 * samples * (question.model.dense_features + question.model.top_mlp[-1])
        more = _exchanged_bytes(question, facts.eager_buffers)
        activations = inputs + max(0.0, _alive_bytes(question) - more)
    return {
        "dense states": dense_state_bytes(question),
        "activations": activations,
        "workspace": facts.workspace_bytes if apart else 0.0,
        "communicators": facts.communicator_bytes if apart and question.cluster.num_gpus > 1 else 0.0,
    }


def _exchanged_bytes(question: RecommenderQuestion, buffers: EagerBuffers) -> float:
    """What a GPU holds more of vectors in the exchange of gradients than in the dense network, tables spread evenly."""
    samples = question.training.global_batch / question.cluster.num_gpus
    vectors = sum(one.count * one.outputs * one.width for one in question.model.classes)
    return samples * vectors * (_even_bytes(question, buffers) - _FP32)
