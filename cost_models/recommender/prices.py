"""Prices of sharding options (seconds of stages, bytes of memory), and the estimate of a training step under
one sharding of the tables.

Exchanges between GPUs are of ids (to the GPUs that hold their rows), vectors (back) and gradients (the other way).
Of W GPUs, with B samples, P vectors a sample of D elements of e bytes:

    whole, column    all-to-all: the holder sends (W−1)/W · B·P·D/k·e           the same of gradients comes back
    row K            the same of B·P·D·e from each holder
    row              reduce-scatter of B·P·D·e, all-gather back: W times that over all tables of a GPU
    node-row         reduce-scatter of it in the node, then all-to-all of B/L·P·D·e between nodes; and back
    copy, hot rows   nothing forward; backward an all-reduce of all copied rows, or an all-gather of touched ones
    ids              all-to-all: the holder gets (W−1)/W of its ids, and the lengths of bags that vary

A holder's bytes share its links; a shard alone on one GPU is sent at that GPU's rate while the others wait. Start-up
and hops come once a stage (`Rate.start`): tables of a stage travel together.

Lookups and the tables' update take the bytes that random rows move at the bandwidth that memory reaches for them.

    lookup     Σ ids · row bytes + vectors written + ids read
    update     Σ ids · (sort bytes + gradient) + distinct rows, or all · (weight and states, read and written)

    share of bandwidth = efficiency · row / (row + half_row_bytes), or as measured (`table_rates`)

Rows that a batch meets again come from the last-level cache as far as it holds the rows that the batch meets. Rows in
host memory come over the link to it, read in place (CUDA's unified addressing), the share that is cached from HBM.

Left out: bank conflicts, page misses of the TLB, and what one hot row costs that all threads add to.

Measured rates are shares of memory bandwidth by row bytes and pooling, on straight lines of logarithms between points.

The host launches the operations of a step one after another: what small batches wait for. Each takes `kernel_seconds`
of the hardware profile, the least that any operation takes, its launch included. Stacks whose operations were not
counted have none.

Stages are barriers: a step lasts Σ_k max_g load_gk. What a search for the most loaded GPU alone would see,
max_g Σ_k load_gk, is given beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from cost_models.arrays import Array, Ints
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import Groups, group_of
from cost_models.errors import InputError, Problem
from cost_models.estimate import Breakdown
from cost_models.memory.device import is_own_host
from cost_models.recommender.dense import dense_device, dense_network, dense_seconds
from cost_models.recommender.memory import (
    ID_BYTES,
    PARTS,
    fixed_bytes,
    host_rate,
    moments_of,
    option_bytes,
    state_bytes,
)
from cost_models.recommender.options import (
    STAGES,
    OptionColumns,
    Pair,
    PricedOptions,
    default_options,
    option_columns,
)
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.cluster import FULL
from cost_models.specs.recommender.constants import HostOperations, StageOperations, TablePoint
from cost_models.specs.recommender.sharding import Sharding, require_none
from cost_models.units import FP32_BYTES


class Rate(NamedTuple):
    """Linear cost of a collective: start-up seconds, and seconds per byte of one rank, fitted near a usual
    message size."""

    start: float
    each_byte: float


class Links(NamedTuple):
    """Linear costs of the collectives between the GPUs of a cluster."""

    all_to_all: Rate
    """Cost of an all-to-all over all GPUs per byte that a rank sends in total, including the part for itself."""
    reduce_scatter: Rate
    """Cost of a reduce-scatter over all GPUs per byte of the entire tensor."""
    all_gather: Rate
    all_reduce: Rate
    node_scatter: Rate
    """Cost of a reduce-scatter inside a node per byte of the entire tensor."""
    node_gather: Rate
    between_nodes: Rate
    """Cost of an all-to-all of the GPUs at the same place of every node, per byte that one rank sends to
    all."""


def links_of(question: RecommenderQuestion) -> Links:
    """Linear costs of the collectives between the question's GPUs: straight lines through their seconds at
    two message sizes. The sizes are the mean bytes of embedding vectors per GPU and step, and twice as many.
    Formulas are straight lines; measured curves have a start-up that large messages do not show."""
    cluster, profile = question.cluster, question.profile
    everyone = group_of(cluster, cluster.num_gpus)
    node = group_of(cluster, cluster.gpus_per_node)
    peers = group_of(cluster, cluster.nodes, cluster.gpus_per_node)
    vectors = sum(one.count * one.outputs * one.width for one in question.model.classes)
    message_bytes = question.samples * vectors * question.training.exchange_bytes

    def rate(collective: Callable[..., Any], group: Groups, ranks: float = 1.0) -> Rate:
        """Linear cost of a collective over a group, the straight line through its seconds at two message
        sizes."""
        sizes = (message_bytes, 2 * message_bytes)
        near, far = (float(collective(size * ranks, group, profile)[0]) for size in sizes)
        seconds_per_byte = max(0.0, (far - near) / message_bytes)
        return Rate(start=max(0.0, near - seconds_per_byte * message_bytes), each_byte=seconds_per_byte)

    return Links(
        all_to_all=rate(all_to_all_seconds, everyone, cluster.num_gpus),
        reduce_scatter=rate(reduce_scatter_seconds, everyone),
        all_gather=rate(all_gather_seconds, everyone),
        all_reduce=rate(all_reduce_seconds, everyone),
        node_scatter=rate(reduce_scatter_seconds, node),
        node_gather=rate(all_gather_seconds, node),
        between_nodes=rate(all_to_all_seconds, peers, cluster.nodes),
    )


def index_seconds(question: RecommenderQuestion, x: OptionColumns, links: Links) -> Array:
    """Seconds per step, besides start-up, of the all-to-all by which a GPU with a shard receives ids and
    lengths, for each sharding option, (O,). 0 if the stack hides the exchange or has none."""
    facts = question.facts
    if not facts.exchanges_ids or facts.hides_ids:
        return np.zeros(len(x))
    arriving = x.exchanged / x.sharers * facts.id_bytes + x.lengths * facts.length_bytes
    return np.where(x.ids > 0, arriving * links.all_to_all.each_byte, 0.0)


def copy_seconds(question: RecommenderQuestion, x: OptionColumns, links: Links) -> Array:
    """Seconds per step of every GPU to sum and exchange the gradients of copied rows, (O,); all tables share
    one start-up.

    A GPU sums the gradients of its own samples before the exchange; if touched rows are gathered, it sums those of all
    GPUs once more after it.
    """
    facts, gpus, element = question.facts, question.cluster.num_gpus, question.training.exchange_bytes
    all_rows = x.hot_rows * x.whole_width * element * links.all_reduce.each_byte
    touched = gpus * x.local_hot_distinct * (x.whole_width * element + facts.id_bytes)
    gathered = touched * links.all_gather.each_byte
    of = {"all": all_rows, "touched": gathered, "least": np.minimum(all_rows, gathered)}
    starts = facts.copy_collectives / question.model.num_tables * links.all_gather.start
    sums = _update(question, x.hot_ids / gpus, x.local_hot_distinct, x.whole_width)
    if facts.copies_reduce == "touched" and gpus > 1:
        sums = sums + _update(question, gpus * x.local_hot_distinct, x.hot_distinct, x.whole_width)
    copies = x.hot_rows > 0
    return np.asarray(np.where(copies, sums, 0.0) + (of[facts.copies_reduce] + np.where(copies, starts, 0.0)))


def vectors_seconds(question: RecommenderQuestion, x: OptionColumns, links: Links) -> tuple[Array, Array]:
    """Seconds per step in which a GPU that holds (part of) a shard sends embedding vectors, and seconds in
    which it receives their gradients, (O,) each."""
    element = question.training.exchange_bytes
    exchanged = x.bags * x.width * element * links.all_to_all.each_byte
    sums, vectors = x.outputs * x.whole_width * element, np.array(np.inf)
    if question.facts.rows_send == "vectors":
        vectors = x.exchanged / x.sharers * x.whole_width * element * links.all_to_all.each_byte
    between_nodes = sums / question.cluster.gpus_per_node * links.between_nodes.each_byte
    conditions = [x.ids <= 0, (x.form == "row") & (x.shards == 0), x.form == "node-row", x.form == "copy"]

    def seconds(of_sums: Rate, in_node: Rate) -> Array:
        """Seconds of each sharding option's exchange, by the costs of its collectives."""
        rows = np.minimum(sums * of_sums.each_byte, vectors)
        return np.select(conditions, [0.0, rows, sums * in_node.each_byte + between_nodes, 0.0], exchanged)

    return seconds(links.reduce_scatter, links.node_scatter), seconds(links.all_gather, links.node_gather)


Amount = TypeVar("Amount", float, Array)


def lookup_bytes(ids: Amount, row_bytes: Amount, written: Amount) -> Amount:
    """Memory traffic in bytes of a lookup that reads `ids` ids and a row for each id, and writes vectors of
    `written` bytes."""
    return ids * (row_bytes + ID_BYTES) + written


def sum_bytes(ids: Amount, gradient_bytes: Amount, distinct: Amount, width: Amount) -> Amount:
    """Memory traffic in bytes of summing gradients: each id is read with its gradient, and a sum is written
    for each distinct row."""
    return ids * (gradient_bytes + ID_BYTES) + distinct * width * FP32_BYTES


def change_bytes(distinct: Amount, kept_bytes: Amount) -> Amount:
    """Memory traffic in bytes of reading and writing distinct rows with their optimizer states."""
    return 2 * distinct * kept_bytes


Points = Sequence[TablePoint]
"""Efficiencies measured at every pair of some row sizes and poolings."""


def efficiency(points: Points, row_bytes: Array, pooling: ArrayLike = 1.0) -> Array:
    """Share of memory bandwidth reached by rows of `row_bytes`, interpolated between measured `points`;
    beyond them the share at the nearest point."""
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
    """Position of each value on a measured axis: index of the upper point, index of the lower point, and
    share of the way between them."""
    clipped = np.clip(np.log(np.maximum(np.asarray(values, dtype=np.float64), 1e-12)), logs[0], logs[-1])
    upper = np.clip(np.searchsorted(logs, clipped), 0, len(logs) - 1)
    lower = np.maximum(upper - 1, 0)
    gap = np.where(upper > lower, logs[upper] - logs[lower], 1.0)
    return upper, lower, np.asarray((clipped - logs[lower]) / gap * (upper > lower))


def lookup_seconds(question: RecommenderQuestion, x: OptionColumns) -> tuple[Array, Array]:
    """Lookup seconds per step of O sharding options, (O,) each: on a GPU that holds a shard or a part of one,
    and on every GPU for copied rows."""
    gpus, ids = question.cluster.num_gpus, x.ids / x.sharers
    vectors = np.where(x.form == "row", x.outputs, x.bags)
    if question.facts.rows_send == "vectors":  # unsummed vectors of the ids that the GPU has
        vectors = vectors * np.where(x.sharers > 1, np.minimum(1.0, ids / np.maximum(x.outputs, 1.0)), 1.0)
    shard = _read_seconds(question, x.width, ids, vectors, x.distinct / x.sharers, x.hit)
    hot = x.hot_ids / gpus, x.hot_bags / gpus, x.local_hot_distinct
    return shard, _read_seconds(question, x.whole_width, *hot, np.ones(len(x)))


def update_seconds(question: RecommenderQuestion, x: OptionColumns) -> tuple[Array, Array]:
    """Seconds per step to update table rows, (O,) each: on a GPU with a shard, and on every GPU for the rows
    that all GPUs copy. Gradients of copied rows are already summed."""
    copied = _change(question, x.hot_distinct, x.hot_rows, x.whole_width)
    ids, distinct, rows = (each / x.sharers for each in (x.ids, x.distinct, x.cold_rows))
    shard = _update(question, ids, distinct, x.width) + x.hit * _change(question, distinct, rows, x.width)
    changed = rows if question.facts.updates_whole_tables else distinct
    return shard + (1 - x.hit) * changed * 2 * _kept_bytes(question, x.width) / _host_rate(question), copied


def _read_seconds(
    question: RecommenderQuestion, width: Array, ids: Array, bags: Array, distinct: Array, hit: Array
) -> Array:
    """Seconds per step to read ids and a row for each, and to write the vectors of samples, (O,)."""
    gpu, constants, measured = question.cluster.gpu, question.embedding, question.hardware.tables
    row_bytes = width * question.training.table_bytes
    written = bags * width * question.training.exchange_bytes
    distinct_met = np.minimum(distinct, ids)
    cached_share = np.minimum(1.0, (gpu.l2_cache or 0.0) / np.maximum(distinct_met * row_bytes, 1.0))
    repeated = cached_share * (ids - distinct_met)
    on_cpu = measured is not None and gpu.kind == "cpu"  # whose measured rows came from its caches already
    read = ids - repeated + repeated / (1.0 if on_cpu else constants.cache_speedup)
    over_link = np.where(hit < 1, (1 - hit) * (ids * row_bytes / _host_rate(question)), 0.0)
    points, pooling = () if measured is None else measured.lookup, ids / np.maximum(bags, 1e-9)
    rate = _rate(question, points, constants.lookup_efficiency, row_bytes, pooling)
    if measured is not None:
        return lookup_bytes(hit * read, row_bytes, written) / rate + over_link
    streamed = _streamed_seconds(question, ids * ID_BYTES + written)
    return np.asarray(hit * read * row_bytes / rate + over_link + streamed)


def _update(question: RecommenderQuestion, ids: Array, distinct: Array, width: Array) -> Array:
    """Seconds per step to sort ids and sum the gradients of each row, (O,)."""
    measured, gradient = question.hardware.tables, width * question.training.exchange_bytes
    share = question.embedding.update_efficiency
    if measured is not None:
        rate = _rate(question, measured.sums, share, width * FP32_BYTES)
        return sum_bytes(ids, gradient, distinct, width) / rate
    sort = _streamed_seconds(question, ids * question.embedding.sort_bytes)
    return sort + ids * gradient / _rate(question, (), share, gradient)


def _change(question: RecommenderQuestion, distinct: Array, rows: Array, width: Array) -> Array:
    """Seconds per step to read and write the rows that a batch uses, with their optimizer states, (O,). If
    the stack updates entire tables, all rows are read and written, in order."""
    measured, share = question.hardware.tables, question.embedding.update_efficiency
    if question.facts.updates_whole_tables:
        return rows * 2 * _kept_bytes(question, width) / (question.cluster.gpu.memory_bandwidth * share)
    points = () if measured is None else measured.changes.get(question.training.optimizer, ())
    rate = _rate(question, points, share, width * question.training.table_bytes)
    return change_bytes(distinct, _kept_bytes(question, width)) / rate


def _host_rate(question: RecommenderQuestion) -> float:
    """Bytes/s at which a GPU reads rows from host memory while all GPUs of its node read."""
    return host_rate(question.cluster, question.embedding, question.cluster.gpus_per_host_link)


def _kept_bytes(question: RecommenderQuestion, width: Array) -> Array:
    """Bytes of rows of `width` elements with their optimizer states."""
    return width * question.training.table_bytes + state_bytes(question, width)


def _streamed_seconds(question: RecommenderQuestion, amount: Array) -> Array:
    """Seconds to read or write `amount` bytes in order, at the memory bandwidth that lookups reach."""
    return amount / (question.cluster.gpu.memory_bandwidth * question.embedding.lookup_efficiency)


def _rate(
    question: RecommenderQuestion, points: Points, share: float, row_bytes: Array, pooling: ArrayLike = 1.0
) -> Array:
    """Bytes/s at which memory reads or writes rows of `row_bytes`, (O,), as measured at `points`. Without
    points it is the share `share` of memory bandwidth for very long rows, and less for short rows."""
    bandwidth = question.cluster.gpu.memory_bandwidth
    if points:
        return bandwidth * efficiency(points, row_bytes, pooling)
    return bandwidth * share * (row_bytes / (row_bytes + question.embedding.half_row_bytes))


def launch_seconds(question: RecommenderQuestion, x: OptionColumns) -> tuple[Array, Array]:
    """Launch seconds by stage, (O, K) each: for a shard on each GPU that holds it, and for a table on every
    GPU.

    Launches that all copies need together are divided among the tables.
    """
    of, copy, copies = _operations(question), x.form == "copy", x.hot_rows > 0
    states = question.facts.operations.states if question.facts.operations else {}
    updated = np.where(np.array(STAGES) == STAGES.update, states.get(question.training.optimizer, 0.0), 0.0)
    by_cause = (
        (np.ones(len(x)), of["table"]),
        (~copy, of["placed"]),
        (x.form == "row", of["spread"]),
        (np.maximum(x.shards, 1) - 1.0, of["further_slice"]),
        (copy, of["copied"]),
        (copies & ~copy, of["hot"]),
        (copies, updated + of["copies"] / question.model.num_tables),
        (np.full(len(x), question.model.interaction.kind == "dot"), of["dot_table"]),
    )
    everywhere = np.sum([np.outer(number, operations) for number, operations in by_cause], axis=0)
    seconds = question.hardware.kernel_seconds
    return np.outer(x.ids > 0, of["shard"] + updated) * seconds, everywhere * seconds


def fixed_launch_seconds(question: RecommenderQuestion) -> Array:
    """Launch seconds of each stage that do not depend on the sharding, (K,)."""
    of, network = _operations(question), dense_network(question.model)
    total = of["step"] + of["layer"] * (len(network.bottom) + len(network.top))
    total = total + of["cross"] * (len(network.cross) / 2)
    return (total + of["dot"] * (question.model.interaction.kind == "dot")) * question.hardware.kernel_seconds


def _operations(question: RecommenderQuestion) -> dict[str, Array]:
    """Number of operations that the host launches in each stage, (K,), by cause (a field of
    `HostOperations`)."""
    facts, ranks = question.facts, question.cluster.num_gpus
    casts = facts.cast_operations if facts.operations and question.training.precision not in FULL else None
    sets = [dict(operations or HostOperations()) for operations in (facts.operations, casts)]
    causes = [name for name, each in sets[0].items() if isinstance(each, StageOperations)]
    return {name: np.sum([one[name].of(ranks) for one in sets], axis=0) for name in causes}


def priced_options(question: RecommenderQuestion, options: Sequence[Pair] | None = None) -> PricedOptions:
    """Compute seconds and bytes of sharding options, which are pairs (table class, option) grouped by class;
    `default_options` unless given.

    Raises:
        InputError: the GPU has no matrix rate in the training precision.
    """
    pairs = tuple(default_options(question) if options is None else options)
    x, links = option_columns(question, pairs), links_of(question)
    shard_seconds, everywhere_seconds = stage_loads(question, x, links)
    shard, everywhere = (size.sum(axis=2).T for size in option_bytes(question, x))
    cluster = question.cluster
    fixed, hidden = fixed_seconds(question, links)
    return PricedOptions(
        options=tuple(option for _, option in pairs),
        table_class=np.array([which for which, _ in pairs], dtype=np.int64),
        shards=x.shards,
        shard_seconds=shard_seconds,
        everywhere_seconds=everywhere_seconds,
        shard_bytes=shard[:, :-1],
        everywhere_bytes=everywhere[:, :-1],
        shard_host_bytes=shard[:, -1],
        everywhere_host_bytes=everywhere[:, -1],
        counts=np.array([one.count for one in question.model.classes], dtype=np.int64),
        fixed=fixed,
        stage_floors=hidden,
        fixed_bytes=np.sum(list(fixed_bytes(question).values()), axis=0),
        device_memory=cluster.gpu.memory * (1 - (cluster.memory_reserve or 0.0)),
        host_memory=cluster.host_memory or 0.0,
        gpus=cluster.num_gpus,
        gpus_per_node=cluster.gpus_per_node,
        table_names=question.model.table_names,
    )


def stage_loads(question: RecommenderQuestion, x: OptionColumns, links: Links) -> tuple[Array, Array]:
    """Seconds of work by stage, (O, K) each: for a shard on each GPU that holds it, and for a table on every
    GPU."""
    zero, ids = np.zeros(len(x)), index_seconds(question, x, links)
    lookup, lookup_copied = lookup_seconds(question, x)
    update, update_copied = update_seconds(question, x)
    copies, (forward, backward) = copy_seconds(question, x, links), vectors_seconds(question, x, links)
    shard_loads = np.stack([ids, lookup, forward, zero, backward, update], axis=1)
    copied = np.stack([zero, lookup_copied, zero, zero, copies, update_copied], axis=1)
    launches, launches_everywhere = launch_seconds(question, x)
    shard_loads, has_places = shard_loads + launches, (x.shards > 0)[:, None]
    everywhere = copied + launches_everywhere + np.where(has_places, 0.0, shard_loads)
    return np.where(has_places, shard_loads, 0.0), everywhere


def fixed_seconds(question: RecommenderQuestion, links: Links) -> tuple[Array, Array]:
    """Seconds of each stage that do not depend on the sharding, and seconds of other work that can run hidden
    behind each stage's table work, (K,) each.

    A CPU's cores move the bytes of a reduction themselves, so there it hides behind nothing.
    """
    facts, dense, kernel = question.facts, dense_seconds(question), question.profile.kernel_seconds
    start = links.all_to_all.start
    if facts.hierarchical and question.cluster.nodes > 1:
        start = links.node_scatter.start + links.between_nodes.start
    ids = facts.index_collectives * start if facts.exchanges_ids and not facts.hides_ids else 0.0
    samples = question.training.global_batch / question.cluster.nodes
    # each host hands the samples of a batch over to its GPUs
    computed = dense.interaction_and_top + (facts.step_seconds + samples * facts.sample_seconds)
    fixed = dict(zip(STAGES, (ids, kernel, start, computed, start, kernel + dense.update), strict=True))
    hidden = dict.fromkeys(STAGES, 0.0)
    hides_reduction = facts.hides_reduction and not is_own_host(question.cluster)
    for hides, behind, otherwise, seconds in (
        (facts.hides_weight_gradients, STAGES.update, STAGES.dense, dense.weight_gradients),
        (facts.hides_bottom, STAGES.forward_exchange, STAGES.dense, dense.bottom_forward),
        (facts.hides_bottom, STAGES.backward_exchange, STAGES.dense, dense.bottom_backward),
        (hides_reduction, STAGES.update, STAGES.update, reduction_seconds(question, links)),
    ):
        (hidden if hides else fixed)[behind if hides else otherwise] += seconds
    return np.array([*fixed.values()]) + fixed_launch_seconds(question), np.array([*hidden.values()])


def reduction_seconds(question: RecommenderQuestion, links: Links) -> float:
    """Seconds per step of the all-reduce of the dense network's gradients; 0 for one GPU."""
    if question.cluster.num_gpus == 1:
        return 0.0
    size = dense_network(question.model).parameters * question.training.dense_bytes
    return question.facts.reduction_collectives * links.all_reduce.start + size * links.all_reduce.each_byte


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderEstimate:
    """Predicted seconds by stage and memory of one training step of a recommender on W GPUs, with K stages
    and N nodes."""

    stages: Breakdown
    """Seconds of each stage of the step on the stage's busiest GPU, which sum to the step time."""
    busiest: tuple[int, ...]
    """(K,) GPU that each stage waits for."""
    loads: Array
    """Seconds of work on embedding tables by each GPU in each stage, (W, K)."""
    fixed: Array
    """Seconds of each stage that do not depend on the tables, (K,)."""
    hidden: Array
    """Seconds of other work that overlaps the table work of each stage, and counts where it takes longer,
    (K,)."""
    device_bytes: Array
    """Peak memory of each GPU during a step, bytes, (W,)."""
    fullest_moment: tuple[str, ...]
    """Name of the moment of the step at which each GPU's memory peaks, (W,)."""
    moments: dict[str, Array]
    """Bytes of each GPU's memory, (W,), at each moment of the step, by moment."""
    device_parts: dict[str, Array]
    """Bytes of each part of device memory at each GPU's memory peak, (W,), by part."""
    host_bytes: Array
    """Bytes of each host's memory that tables fill, (N,)."""
    rank_host_bytes: Array
    """Bytes of host memory of each GPU's process, (W,)."""
    host_parts: dict[str, Array]
    """Bytes of each part of host memory on each host, (N,), by part."""
    device_memory: float
    """Bytes of a GPU's memory that may be used."""
    host_memory: float
    """Bytes of a host's memory that may be used; 0 if unknown."""
    samples_per_second: float
    mfu: float
    """Model FLOPs utilisation, in which only FLOPs of the dense network count, as a share of peak over the
    step."""

    @property
    def step_seconds(self) -> float:
        """Predicted step seconds, the sum over stages."""
        return self.stages.total

    @property
    def busiest_sum_seconds(self) -> float:
        """Step seconds without barriers between stages, max_g Σ_k load_gk plus the fixed seconds."""
        return float(self.loads.sum(axis=1).max() + self.fixed.sum())

    @property
    def peak_bytes(self) -> float:
        """Peak memory of the fullest GPU, bytes."""
        return float(self.device_bytes.max())

    @property
    def fullest(self) -> int:
        """Index of the GPU with the largest peak memory."""
        return int(self.device_bytes.argmax())

    @property
    def fits(self) -> bool:
        """Whether the peak memory of all GPUs and hosts is within their limits."""
        device = bool((self.device_bytes <= self.device_memory).all())
        return device and (not self.host_memory or bool((self.host_bytes <= self.host_memory).all()))


def estimate(question: RecommenderQuestion, sharding: Sharding) -> RecommenderEstimate:
    """Predict the seconds by stage and the memory of GPUs and hosts for one step under a sharding.

    Raises:
        InputError: it names other tables, GPUs or nodes than there are; or the GPU has no rate in that precision.
    """
    model, cluster, tables = question.model, question.cluster, len(sharding.tables)
    if tables != model.num_tables:
        raise InputError(f"the sharding has {tables} tables, `{model.name}` has {model.num_tables}")
    require_none([*_problems(question, sharding)], "tables cannot be held so")
    gpus, nodes, per_node = cluster.num_gpus, cluster.nodes, cluster.gpus_per_node
    kinds = list(zip(model.class_of_table, (one.option for one in sharding.tables), strict=True))
    row_of = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
    table_rows = [row_of[kind] for kind in kinds]
    counts = np.bincount(table_rows).astype(np.float64)
    shards = []  # of every shard with a place of its own: GPU, option, number of GPUs that share the shard
    for placement, row in zip(sharding.tables, table_rows, strict=True):
        span = per_node if placement.option.form == "node-row" else 1
        shards += [(gpu, row, span) for at in placement.at for gpu in range(at * span, (at + 1) * span)]
    shard_gpus, held_rows, holders = np.array(shards, dtype=np.int64).reshape(-1, 3).T
    x, links = option_columns(question, list(row_of)), links_of(question)
    shard_seconds, everywhere_seconds = stage_loads(question, x, links)
    shard_bytes, everywhere_bytes = option_bytes(question, x)

    def on_gpus(shard: Array, everywhere: Array, holders: Ints | int = 1) -> Array:
        """Total load of each GPU, (GPUs, ...): `shard` for each shard on it, divided by `holders`, plus what
        tables put on every GPU (`everywhere`)."""
        total: Array = np.tile(counts @ everywhere, (gpus, 1))
        np.add.at(total, shard_gpus, shard[held_rows] / holders)
        return total

    loads = on_gpus(shard_seconds, everywhere_seconds)
    besides, moments = fixed_bytes(question), moments_of(question)
    # (M, W, P)
    parts = np.stack([on_gpus(*of) for of in zip(shard_bytes[:-1], everywhere_bytes[:-1], strict=True)])
    filled = parts.sum(axis=2) + np.sum(list(besides.values()), axis=0)[:, None]
    peak = filled.argmax(axis=0)
    device = parts[peak, np.arange(gpus)]
    rank_host = on_gpus(shard_bytes[-1], everywhere_bytes[-1] / per_node, holders[:, None])
    host = rank_host.reshape(nodes, per_node, -1).sum(axis=1)
    fixed, hidden = fixed_seconds(question, links)
    stages = np.maximum(loads.max(axis=0), hidden) + fixed
    batch, flops = question.training.global_batch, dense_network(model).flops
    return RecommenderEstimate(
        stages=Breakdown(zip(STAGES, map(float, stages), strict=True)),
        busiest=tuple(int(gpu) for gpu in loads.argmax(axis=0)),
        loads=loads,
        fixed=fixed,
        hidden=hidden,
        device_bytes=filled.max(axis=0),
        fullest_moment=tuple(moments[at] for at in peak.tolist()),
        moments=dict(zip(moments, filled, strict=True)),
        device_parts=dict(zip(PARTS, device.T, strict=True))
        | {name: of[peak] for name, of in besides.items()},
        host_bytes=host.sum(axis=1),
        rank_host_bytes=rank_host.sum(axis=1),
        host_parts=dict(zip(PARTS, host.T, strict=True)),
        device_memory=cluster.gpu.memory * (1 - (cluster.memory_reserve or 0.0)),
        host_memory=cluster.host_memory or 0.0,
        samples_per_second=batch / float(stages.sum()),
        mfu=batch * flops / float(stages.sum()) / (gpus * dense_device(question).peak),
    )


def _problems(question: RecommenderQuestion, sharding: Sharding) -> Iterator[Problem]:
    """Yield the reasons why tables cannot be sharded as in `sharding`, in words."""
    model, cluster = question.model, question.cluster
    tables = zip(model.table_names, model.class_of_table, sharding.tables, strict=True)
    for number, (name, class_index, placement) in enumerate(tables):
        table_text, option = f"table:{number} (`{name}`)", placement.option
        width = model.classes[class_index].width
        place, limit = ("node", cluster.nodes) if option.form == "node-row" else ("GPU", cluster.num_gpus)
        if invalid := [at for at in placement.at if at >= limit]:
            yield Problem(table_text, f"lies on {place} {invalid[0]}, and there are {limit}, counted from 0")
        if option.tier == "host" and not question.facts.host_tables:
            stack = question.stack.name
            yield Problem(table_text, f"lies in host memory, where software stack `{stack}` keeps no tables")
        if option.form == "column" and width % option.shards:
            yield Problem(table_text, f"has {width} columns, which {option.shards} slices do not divide")
