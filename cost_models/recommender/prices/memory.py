"""Bytes that tables fill, part by part: on the GPUs that hold their shards, on every GPU, and in host memory.

weights       rows · elements · bytes of the table's type
optimizer     states of these rows: none, one number a row, one or two an element
hash tables   16 B an entry over the share of entries that are filled (HugeCTR, issue 348)
ids           of a batch, times the copies that the device holds of it
vectors       of samples: those made here for all, those received for a GPU's own, and their gradients
update        rows of a batch whose gradients are being added up

The first three are there all the time, the others by moment of a step (`prices.moments`); or all at once, where nobody
says how a stack goes about it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array
from cost_models.memory.device import is_own_host
from cost_models.recommender.prices.dense import DenseNetwork, dense_state_bytes
from cost_models.recommender.prices.lookup import ID_BYTES, state_bytes
from cost_models.recommender.prices.moments import Filled, dense_bytes, filled, moments_of
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import OptionColumns

PARTS = ("weights", "optimizer", "hash tables", "ids", "vectors", "update")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionBytes:
    """Bytes of O options by part, as `PARTS` names them: on devices (M, O, P), at each moment, on hosts (O, P)."""

    shard: Array
    """(M, O, P) on each GPU that holds (part of) a shard."""
    everywhere: Array
    """(M, O, P) on every GPU."""
    shard_host: Array
    """In the host memory of the node that holds a shard; a shard that is spread over all: in every node."""
    everywhere_host: Array


def option_bytes(question: RecommenderQuestion, x: OptionColumns) -> OptionBytes:
    """Bytes of every option of a table. Options that no GPU of their own holds have all in `everywhere`."""
    facts, training = question.facts, question.training
    zero, each = np.zeros(len(x)), training.table_bytes + facts.table_element_bytes
    entry = np.where(x.hashed, facts.hash_entry_bytes / facts.hash_load, 0.0)
    here = np.where(x.on_host, x.cached_rows, x.cold_rows) / x.sharers
    keys = np.where(facts.keys_on_device, x.cold_rows / x.sharers, here)
    kept = here * x.width * each, here * state_bytes(question, x.width), keys * entry
    copied = (
        x.hot_rows * x.whole_width * each,
        x.hot_rows * state_bytes(question, x.whole_width),
        x.hot_rows * entry,
    )
    buffers = facts.eager_buffers
    moments = [_all_at_once(question, x)] if buffers is None else filled(question, x, buffers).values()
    stay = x.cold_rows - (0.0 if facts.cached_rows_on_host else x.cached_rows)
    in_node = np.where(x.shards == 0, stay / question.cluster.nodes, stay / _slices(x))
    away = np.where(x.on_host, in_node, 0.0)
    host = (
        away * x.width * training.table_bytes,
        away * state_bytes(question, x.width),
        away * np.where(facts.keys_on_device, 0.0, entry),
    )
    return _by_placement(
        x,
        np.stack([np.stack([*kept, *held], axis=1) for held, _ in moments]),
        np.stack([np.stack([*copied, *everywhere], axis=1) for _, everywhere in moments]),
        np.stack([*host, zero, zero, zero], axis=1),
    )


def _all_at_once(question: RecommenderQuestion, x: OptionColumns) -> tuple[Filled, Filled]:
    """All bytes that a step holds of a batch: on GPUs that hold shards, and on every GPU."""
    facts, gpus = question.facts, question.cluster.num_gpus
    vectors = 2 * facts.output_buffers * question.training.exchange_bytes
    holders = 1.0 if facts.ids_everywhere else x.sharers
    held = Filled(
        ids=x.ids / holders * ID_BYTES * facts.input_buffers,
        vectors=np.where(x.ids > 0, x.outputs * x.width, 0.0) * vectors,
        update=x.distinct / x.sharers * x.width * facts.gradient_row_bytes,
    )
    everywhere = Filled(
        ids=(x.ids + x.hot_ids) / gpus * ID_BYTES * facts.input_buffers,
        vectors=x.outputs * x.whole_width / gpus * vectors,
        update=x.hot_distinct * x.whole_width * facts.gradient_row_bytes,
    )
    return held, everywhere


def _slices(x: OptionColumns) -> Array:
    """Number of row slices, each on a GPU or node of its own."""
    return np.where(x.form == "column", 1.0, np.maximum(x.shards, 1.0))


def _by_placement(x: OptionColumns, held: Array, copied: Array, host: Array) -> OptionBytes:
    """Bytes of shards with a place of their own, apart from bytes that are equal on all GPUs."""
    placed = (x.shards > 0)[:, None]
    spread = ((x.shards == 0) & (x.ids > 0))[:, None]
    return OptionBytes(
        shard=np.where(placed, held, 0.0),
        everywhere=copied + np.where(spread, held, 0.0),
        shard_host=np.where(placed, host, 0.0),
        everywhere_host=np.where(spread, host, 0.0),
    )


def fixed_bytes(question: RecommenderQuestion) -> dict[str, Array]:
    """(M,) device memory of every GPU that does not depend on the sharding; a CPU has no context and no communicator
    buffers."""
    facts, apart = question.facts, not is_own_host(question.cluster)
    if facts.eager_buffers is not None:
        states, activations = np.array(list(dense_bytes(question).values())).T
    else:
        samples = question.training.global_batch / question.cluster.num_gpus
        element = 4.0 if question.training.precision == "fp32" else 2.0
        numbers = samples * DenseNetwork(question.model).activations
        states = np.array([dense_state_bytes(question)])
        activations = np.array([numbers * element * facts.activation_bytes])
    alike = np.ones(len(moments_of(question)))
    return {
        "dense states": states,
        "activations": activations,
        "workspace": alike * (facts.workspace_bytes if apart else 0.0),
        "communicators": alike
        * (facts.communicator_bytes if apart and question.cluster.num_gpus > 1 else 0.0),
    }
