"""Bytes that tables take by part: on the GPUs that hold their shards, on every GPU, and in host memory.

weights       rows · elements · bytes of the table's type
optimizer     states of these rows: none, one number a row, one or two an element
hash tables   16 B an entry over the share of entries that are filled (HugeCTR, issue 348)
ids           of a batch, times the copies that the device holds of it
vectors       of samples: those made here for all, those received for a GPU's own, and their gradients
update        rows of a batch whose gradients are being added up

The first three are there all the time, the others by moment of a step; or all at once, where nobody
says how a stack goes about it.

What a step fills beside tables and their states, moment by moment, where stages follow one another in eager mode.

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

import numpy as np
from numpy.typing import ArrayLike

from cost_models.arrays import Array
from cost_models.memory.device import is_own_host
from cost_models.recommender.dense import dense_network, dense_state_bytes
from cost_models.recommender.options import OptionColumns
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.recommender.constants import EmbeddingProfile
from cost_models.units import FP32_BYTES

ID_BYTES = 8.0
FORWARD, DENSE, BACKWARD = "forward exchange", "dense network", "backward exchange"
COPIES, UPDATE, SUMS = "gradients of copies", "update", "sums of gradients"


def state_bytes(question: RecommenderQuestion, width: ArrayLike) -> Array:
    """Bytes of fp32 optimizer states of a row of `width` elements: none, one number, or one or two numbers
    per element."""
    elements = np.asarray(width, dtype=np.float64)
    if question.training.optimizer == "rowwise-adagrad":
        return np.full_like(elements, 4.0)
    return {"sgd": 0.0, "adagrad": 4.0, "adam": 8.0}[question.training.optimizer] * elements


def host_rate(cluster: ClusterSpec, constants: EmbeddingProfile, sharers: int) -> float:
    """Bytes/s at which a GPU reads rows from host memory, if `sharers` GPUs share its link and all GPUs of
    its node read."""
    link = (cluster.gpu.host_bandwidth or np.inf) / sharers
    memory = (cluster.host_memory_bandwidth or np.inf) / cluster.gpus_per_node
    return float(min(link, memory)) * constants.host_efficiency


def moments_of(question: RecommenderQuestion) -> tuple[str, ...]:
    """Names of the M moments of a step at which memory may be fullest."""
    if question.facts.eager_buffers is None:
        return ("step",)
    on_gpus = (DENSE, BACKWARD, COPIES, UPDATE, SUMS)
    return (FORWARD, *on_gpus) if is_own_host(question.cluster) else on_gpus


Filled = tuple[Array, Array, Array]
"""Bytes (O,) that sharding options fill with ids, vectors and rows in update at one moment of a step."""


def filled_bytes(question: RecommenderQuestion, x: OptionColumns) -> dict[str, tuple[Filled, Filled]]:
    """Bytes of ids, of vectors and of rows being updated at each moment of a step. Each moment has the bytes
    on GPUs that hold a shard, or part of one, and the bytes on every GPU."""
    facts, gpus, element_bytes = question.facts, question.cluster.num_gpus, question.training.exchange_bytes
    if (buffers := facts.eager_buffers) is None:  # all are held at once
        vectors = 2 * facts.output_buffers * element_bytes
        holders = 1.0 if facts.ids_everywhere else x.sharers
        id_bytes, gradient_bytes = ID_BYTES * facts.input_buffers, facts.gradient_row_bytes
        made_elements, added = np.where(x.ids > 0, x.outputs * x.width, 0.0), x.distinct / x.sharers * x.width
        received, hot_added = x.outputs * x.whole_width / gpus, x.hot_distinct * x.whole_width
        on_holders = x.ids / holders * id_bytes, made_elements * vectors, added * gradient_bytes
        everywhere = (x.ids + x.hot_ids) / gpus * id_bytes, received * vectors, hot_added * gradient_bytes
        return {"step": (on_holders, everywhere)}
    zero = np.zeros(len(x))
    has_ids, row_bytes = x.ids > 0, FP32_BYTES * x.width + buffers.touched_row_bytes
    lengths = facts.length_bytes * x.lengths
    received_ids = np.where(has_ids, x.ids / x.sharers * ID_BYTES + lengths, 0.0)
    sample_ids = ((x.ids + x.hot_ids) * ID_BYTES + lengths) / gpus
    hot = (x.hot_rows > 0) & (x.form != "copy")
    own_ids = sample_ids + np.where(hot, (x.hot_ids * ID_BYTES + lengths) / gpus, 0.0)
    vectors_made = np.where(has_ids, x.outputs * x.width, 0.0) * element_bytes * buffers.made
    own_vectors = x.outputs * x.whole_width / gpus
    message = np.where(has_ids & (gpus > 1), own_vectors * element_bytes * buffers.sent, 0.0)
    cast_bytes = element_bytes if element_bytes < FP32_BYTES else 0.0
    gradients_too = own_vectors * (buffers.received_bytes + cast_bytes)
    has_places = x.shards > 0
    sorting = np.where(has_places, buffers.sort_bytes * x.ids / x.sharers, 0.0)
    cast = np.where(has_places & has_ids, x.outputs * x.width * FP32_BYTES, 0.0)
    added = x.distinct / x.sharers * row_bytes
    spread = ((x.form == "row") & (x.shards == 0)) | (x.form == "node-row")
    summed_twice = np.where(spread, 2 * vectors_made, 0.0)
    # gradients of copied rows: a GPU's own, the rows of all, and by pieces a message, what comes, sums in its place
    copied_row_bytes = FP32_BYTES * x.whole_width + buffers.touched_row_bytes
    used = gpus * x.local_hot_distinct
    summed, adding = x.hot_distinct * copied_row_bytes, x.local_hot_distinct * copied_row_bytes
    if gpus > 1:
        piece = np.minimum(used, buffers.pieces * x.outputs / gpus)
        came = piece * x.whole_width * element_bytes
        summed_before = summed * (1 - piece / np.maximum(used, 1e-9))
        adding = adding + used * ID_BYTES + came + np.maximum(came + summed_before, summed)
    of = {
        FORWARD: ((received_ids, summed_twice, zero), (own_ids, own_vectors * element_bytes, zero)),
        DENSE: ((received_ids, zero, zero), (own_ids, own_vectors * FP32_BYTES, zero)),
        BACKWARD: ((received_ids, vectors_made, zero), (own_ids, gradients_too + message, zero)),
        COPIES: ((received_ids, vectors_made, zero), (own_ids, gradients_too, adding)),
        UPDATE: ((received_ids + sorting, vectors_made + cast, added), (own_ids, zero, summed)),
        SUMS: ((zero, zero, zero), (sample_ids, zero, zero)),
    }
    return {name: of[name] for name in moments_of(question)}


def dense_bytes(question: RecommenderQuestion) -> dict[str, tuple[float, float]]:
    """Bytes of the dense network's states, and of the activations of a GPU's samples, at each moment of a
    step."""
    facts, network, gpus = question.facts, dense_network(question.model), question.cluster.num_gpus
    samples, element, states = question.samples, question.training.dense_bytes, dense_state_bytes(question)
    if facts.eager_buffers is None:
        return {"step": (states, samples * network.activations * element * facts.activation_bytes)}
    inputs = FP32_BYTES * samples * (question.model.dense_features + question.model.top_mlp[-1])
    alive = samples * (network.alive or network.activations * facts.activation_bytes) * element
    weights, share = FP32_BYTES * network.parameters, 1.0 / gpus if gpus > 1 else 0.0
    cast = 0.0 if element == FP32_BYTES else element * network.parameters
    beside = weights if gpus > 1 and facts.hides_reduction else 0.0  # the tables' work
    of = {
        FORWARD: (states - weights, inputs),  # no gradients yet
        DENSE: (states - weights, inputs + alive + cast),  # gradients of weights come as the rest goes
        BACKWARD: (states + beside, inputs),
        COPIES: (states + beside, inputs),
        UPDATE: (states + beside * share, inputs),
        SUMS: (states + weights * (facts.eager_buffers.summed - 2 + share), inputs),
    }
    return {moment: of[moment] for moment in moments_of(question)}


PARTS = ("weights", "optimizer", "hash tables", "ids", "vectors", "update")


def option_bytes(question: RecommenderQuestion, x: OptionColumns) -> tuple[Array, Array]:
    """Bytes of O sharding options by part of memory (P `PARTS`), (M + 1, O, P) each: of a shard on a GPU that
    holds it, and of a table on every GPU. The first axis is M moments of a step, then the host memory of a
    node.

    Options that no GPU of their own holds have all in the second array.
    """
    facts, training = question.facts, question.training
    zero, element_bytes = np.zeros(len(x)), training.table_bytes + facts.table_element_bytes
    entry = np.where(x.hashed, facts.hash_entry_bytes / facts.hash_load, 0.0)
    device_rows = np.where(x.on_host, x.cached_rows, x.cold_rows) / x.sharers
    keys = np.where(facts.keys_on_device, x.cold_rows / x.sharers, device_rows)
    stay = x.cold_rows - (0.0 if facts.cached_rows_on_host else x.cached_rows)
    parts = np.where(x.shards == 0, question.cluster.nodes, np.where(x.form == "column", 1, x.shards))
    away = np.where(x.on_host, stay / parts, 0.0)

    def table_parts(rows: Array, width: Array, element: float, entries: Array) -> tuple[Array, ...]:
        """Bytes of weights, optimizer states and hash-table entries of tables."""
        return rows * width * element, rows * state_bytes(question, width), entries * entry

    on_holders = table_parts(device_rows, x.width, element_bytes, keys)
    copied = table_parts(x.hot_rows, x.whole_width, element_bytes, x.hot_rows)
    on_hosts = table_parts(away, x.width, training.table_bytes, np.where(facts.keys_on_device, 0.0, away))

    moments, nothing = filled_bytes(question, x).values(), (zero, zero, zero)
    holders = [*((*on_holders, *held) for held, _ in moments), (*on_hosts, *nothing)]
    every_gpu = [*((*copied, *held) for _, held in moments), (*nothing, *nothing)]
    shard, everywhere = (np.stack([np.stack(parts, axis=1) for parts in of]) for of in (holders, every_gpu))
    has_places, spread = (x.shards > 0)[:, None], ((x.shards == 0) & (x.ids > 0))[:, None]
    return np.where(has_places, shard, 0.0), everywhere + np.where(spread, shard, 0.0)


def fixed_bytes(question: RecommenderQuestion) -> dict[str, Array]:
    """Device memory bytes of every GPU that do not depend on the sharding, by part, (M,) each. A CPU has no
    context and no communicator buffers."""
    facts, is_gpu = question.facts, not is_own_host(question.cluster)
    states, activations = np.array(list(dense_bytes(question).values())).T
    communicates = is_gpu and question.cluster.num_gpus > 1
    always = {"workspace": facts.workspace_bytes if is_gpu else 0.0}
    always["communicators"] = facts.communicator_bytes if communicates else 0.0
    buffers = {part: np.full(len(states), size) for part, size in always.items()}
    return {"dense states": states, "activations": activations} | buffers
