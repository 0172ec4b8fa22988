"""Seconds of lookups and of the tables' update, from the bytes that random rows move and the bandwidth that
memory reaches for them.

    lookup     Σ ids · row bytes + vectors written + ids read
    update     Σ ids · (sort bytes + gradient) + distinct rows, or all · (weight and states, read and written)

    share of bandwidth = efficiency · row / (row + half_row_bytes), or as measured (`table_rates`)

Rows that a batch meets again come from the last-level cache as far as it holds the rows that the batch meets. Rows in
host memory come over the link to it, read in place (CUDA's unified addressing), the share that is cached from HBM.

Left out: bank conflicts, page misses of the TLB, and what one hot row costs that all threads add to.

Measured rates are shares of memory bandwidth by row bytes and pooling, on straight lines of logarithms between points.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cost_models.arrays import Array, Ints
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import OptionColumns
from cost_models.specs.recommender.constants import TablePoint
from cost_models.units import FP32_BYTES

ID_BYTES = 8.0


def lookup_bytes(ids: ArrayLike, row_bytes: ArrayLike, written: ArrayLike) -> Array:
    """Memory traffic in bytes of a lookup that reads `ids` and a row for each id, and writes vectors of
    `written` bytes."""
    return np.asarray(np.asarray(ids) * (np.asarray(row_bytes) + ID_BYTES) + np.asarray(written))


def sum_bytes(ids: ArrayLike, gradient_bytes: ArrayLike, distinct: ArrayLike, width: ArrayLike) -> Array:
    """Memory traffic in bytes of summing gradients, which reads each id with its gradient and writes a sum
    for each distinct row."""
    read = np.asarray(ids) * (np.asarray(gradient_bytes) + ID_BYTES)
    return np.asarray(read + np.asarray(distinct) * np.asarray(width) * FP32_BYTES)


def change_bytes(distinct: ArrayLike, kept_bytes: ArrayLike) -> Array:
    """Memory traffic in bytes of reading and writing distinct rows with their optimizer states."""
    return np.asarray(2 * np.asarray(distinct) * np.asarray(kept_bytes))


def efficiency(points: Sequence[TablePoint], row_bytes: Array, pooling: ArrayLike = 1.0) -> Array:
    """Share of memory bandwidth reached by rows of `row_bytes`, interpolated between measured `points`.
    Beyond these it is the share at the nearest point."""
    rows = np.array(sorted({one.row_bytes for one in points}))
    poolings = np.array(sorted({one.pooling for one in points}))
    measured = {(one.row_bytes, one.pooling): one.efficiency for one in points}
    logs = np.log([[measured[row, pool] for pool in poolings] for row in rows])
    at, low, share = _bracket(np.log(rows), row_bytes)
    to, low_pool, share_pool = _bracket(np.log(poolings), np.broadcast_to(pooling, np.shape(row_bytes)))
    near = logs[low, low_pool] * (1 - share_pool) + logs[low, to] * share_pool
    far = logs[at, low_pool] * (1 - share_pool) + logs[at, to] * share_pool
    return np.asarray(np.exp(near * (1 - share) + far * share))


def _bracket(logs: Array, values: ArrayLike) -> tuple[Ints, Ints, Array]:
    """(index of the upper point, of the lower point, share of the way) of each value on a measured axis."""
    clipped = np.clip(np.log(np.maximum(np.asarray(values, dtype=np.float64), 1e-12)), logs[0], logs[-1])
    upper = np.clip(np.searchsorted(logs, clipped), 0, len(logs) - 1)
    lower = np.maximum(upper - 1, 0)
    gap = np.where(upper > lower, logs[upper] - logs[lower], 1.0)
    return upper, lower, np.asarray((clipped - logs[lower]) / gap * (upper > lower))


def state_bytes(question: RecommenderQuestion, width: ArrayLike) -> Array:
    """Bytes of fp32 optimizer states of a row of `width` elements. There are none, one number, or one or two
    numbers an element."""
    elements = np.asarray(width, dtype=np.float64)
    if question.training.optimizer == "rowwise-adagrad":
        return np.full_like(elements, 4.0)
    return {"sgd": 0.0, "adagrad": 4.0, "adam": 8.0}[question.training.optimizer] * elements


def lookup_seconds(question: RecommenderQuestion, x: OptionColumns) -> tuple[Array, Array]:
    """(O,) lookup seconds a step on a GPU that holds (part of) a shard, and (O,) on every GPU for copied rows."""
    gpus, all_rows = question.cluster.num_gpus, np.ones(len(x))
    ids, bags = x.ids / x.sharers, np.where(x.form == "row", x.outputs, x.bags)
    vectors, distinct = bags * _sent_share(question, x), x.distinct / x.sharers
    shard = _read_seconds(question, x.width, ids, vectors, distinct, x.hit)
    hot = x.hot_ids / gpus, x.hot_bags / gpus, x.local_hot_distinct
    return shard, _read_seconds(question, x.whole_width, *hot, all_rows)


def update_seconds(question: RecommenderQuestion, x: OptionColumns) -> tuple[Array, Array]:
    """Seconds a step to update table rows: on a GPU with a shard, (O,), and on every GPU for rows that all GPUs
    copy, (O,). Gradients of copied rows are already summed."""
    copied = _change(question, x.hot_distinct, x.hot_rows, x.whole_width)
    ids, distinct, rows = (each / x.sharers for each in (x.ids, x.distinct, x.cold_rows))
    shard = _update(question, ids, distinct, x.width) + x.hit * _change(question, distinct, rows, x.width)
    changed = rows if question.facts.updates_whole_tables else distinct
    over_link = (1 - x.hit) * changed * 2 * _kept_bytes(question, x.width) / host_rate(question)
    return shard + over_link, copied


def copy_sum_seconds(question: RecommenderQuestion, x: OptionColumns) -> Array:
    """(O,) seconds a step on every GPU to sum the gradients of copied rows before and after the exchange.
    Before it those of its samples are summed; and where rows that were touched are gathered, those of all
    GPUs once more."""
    gpus = question.cluster.num_gpus
    seconds = _update(question, x.hot_ids / gpus, x.local_hot_distinct, x.whole_width)
    if question.facts.copies_reduce == "touched" and gpus > 1:
        seconds = seconds + _update(question, gpus * x.local_hot_distinct, x.hot_distinct, x.whole_width)
    return np.where(x.hot_rows > 0, seconds, 0.0)


def host_rate(question: RecommenderQuestion) -> float:
    """Bytes/s of one GPU's share of the link to host memory, while all GPUs of its node use theirs."""
    cluster = question.cluster
    link = (cluster.gpu.host_bandwidth or np.inf) / cluster.gpus_per_host_link
    memory = (cluster.host_memory_bandwidth or np.inf) / cluster.gpus_per_node
    return float(min(link, memory)) * question.embedding.host_efficiency


def _read_seconds(
    question: RecommenderQuestion, width: Array, ids: Array, bags: Array, distinct: Array, hit: Array
) -> Array:
    """(O,) seconds to read a row for each id and the ids, and to write vectors of samples."""
    gpu, constants, measured = question.cluster.gpu, question.embedding, question.hardware.tables
    row_bytes, written = (
        width * question.training.table_bytes,
        bags * width * question.training.exchange_bytes,
    )
    distinct_met = np.minimum(distinct, ids)
    cached_share = np.minimum(1.0, (gpu.l2_cache or 0.0) / np.maximum(distinct_met * row_bytes, 1.0))
    repeated = cached_share * (ids - distinct_met)
    on_cpu = measured is not None and gpu.kind == "cpu"  # whose measured rows came from its caches already
    read = ids - repeated + repeated / (1.0 if on_cpu else constants.cache_speedup)
    host = ids * row_bytes / host_rate(question)
    over_link = np.where(hit < 1, (1 - hit) * host, 0.0)
    if measured is not None:
        pooling = ids / np.maximum(bags, 1e-9)
        share = efficiency(measured.lookup, row_bytes, pooling)
        return lookup_bytes(hit * read, row_bytes, written) / (gpu.memory_bandwidth * share) + over_link
    rate = gpu.memory_bandwidth * constants.lookup_efficiency * _share(question, row_bytes)
    device = hit * read * row_bytes / rate
    return np.asarray(device + over_link + _streamed_seconds(question, ids * ID_BYTES + written))


def _sent_share(question: RecommenderQuestion, x: OptionColumns) -> Array:
    """(O,) share of the samples' vectors that a GPU computes. It is 1, or the GPU's share of ids where
    unsummed vectors are sent."""
    if question.facts.rows_send == "sums":
        return np.ones(len(x))
    return np.where(x.sharers > 1, np.minimum(1.0, x.ids / x.sharers / np.maximum(x.outputs, 1.0)), 1.0)


def _update(question: RecommenderQuestion, ids: Array, distinct: Array, width: Array) -> Array:
    """(O,) seconds to sort ids and sum the gradients of each row."""
    measured, gradient = question.hardware.tables, width * question.training.exchange_bytes
    if measured is not None:
        rate = question.cluster.gpu.memory_bandwidth * efficiency(measured.sums, width * FP32_BYTES)
        return sum_bytes(ids, gradient, distinct, width) / rate
    sort = _streamed_seconds(question, ids * question.embedding.sort_bytes)
    return sort + ids * gradient / (_update_rate(question) * _share(question, gradient))


def _change(question: RecommenderQuestion, distinct: Array, rows: Array, width: Array) -> Array:
    """(O,) seconds to read and write the rows of a batch with optimizer states, or all rows in order where
    all change."""
    state_row_bytes, measured = _kept_bytes(question, width), question.hardware.tables
    if question.facts.updates_whole_tables:
        return rows * 2 * state_row_bytes / _update_rate(question)
    row_bytes = width * question.training.table_bytes
    points = () if measured is None else measured.changes.get(question.training.optimizer, ())
    if points:
        rate = question.cluster.gpu.memory_bandwidth * efficiency(points, row_bytes)
        return change_bytes(distinct, state_row_bytes) / rate
    return distinct * 2 * state_row_bytes / (_update_rate(question) * _share(question, row_bytes))


def _kept_bytes(question: RecommenderQuestion, width: Array) -> Array:
    return width * question.training.table_bytes + state_bytes(question, width)


def _update_rate(question: RecommenderQuestion) -> float:
    return question.cluster.gpu.memory_bandwidth * question.embedding.update_efficiency


def _streamed_seconds(question: RecommenderQuestion, amount: Array) -> Array:
    """Seconds to read or write `amount` bytes in order, at the memory bandwidth that lookups reach."""
    return amount / (question.cluster.gpu.memory_bandwidth * question.embedding.lookup_efficiency)


def _share(question: RecommenderQuestion, row_bytes: Array) -> Array:
    """(O,) bandwidth reached by rows of `row_bytes`, relative to the bandwidth of very long rows."""
    return row_bytes / (row_bytes + question.embedding.half_row_bytes)
