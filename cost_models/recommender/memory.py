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

from cost_models.recommender.dense import DenseNetwork
from cost_models.recommender.lookup import ID_BYTES, state_bytes
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import OptionColumns
from cost_models.tiers.host import is_own_host

Array = npt.NDArray[np.float64]

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
    made = np.where(x.ids > 0, x.outputs * x.width, 0.0)
    held = (
        here * x.width * each,
        here * state_bytes(question, x.width),
        here * entry,
        x.ids / (1.0 if facts.ids_everywhere else x.sharers) * ID_BYTES * facts.input_buffers,
        made * vectors,
        x.distinct / x.sharers * x.width * facts.gradient_row_bytes,
    )
    copied = (
        x.hot_rows * x.whole_width * each,
        x.hot_rows * state_bytes(question, x.whole_width),
        x.hot_rows * entry,
        (x.ids + x.hot_ids) / gpus * ID_BYTES * facts.input_buffers,
        x.outputs * x.whole_width / gpus * vectors,
        x.hot_distinct * x.whole_width * facts.gradient_row_bytes,
    )
    stay = x.cold_rows - (0.0 if facts.cached_rows_on_host else x.cached_rows)
    in_node = np.where(x.shards == 0, stay / question.cluster.nodes, stay / _slices(x))
    away = np.where(x.on_host, in_node, 0.0)
    host = (
        away * x.width * training.table_bytes,
        away * state_bytes(question, x.width),
        away * entry,
        zero,
        zero,
        zero,
    )
    return _by_placement(x, np.stack(held, axis=1), np.stack(copied, axis=1), np.stack(host, axis=1))


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
    return {
        "dense states": network.parameters * facts.dense_state_bytes,
        "activations": samples * network.activations * element * facts.activation_bytes,
        "workspace": facts.workspace_bytes if apart else 0.0,
        "communicators": facts.communicator_bytes if apart and question.cluster.num_gpus > 1 else 0.0,
    }
