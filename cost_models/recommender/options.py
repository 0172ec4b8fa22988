"""Sharding options of embedding tables: the options that a search tries by default, columns of lookups,
traffic and rows on each GPU, and the record of their prices.

B samples a step, W GPUs, L of them a node, N nodes; a table of R rows and D elements, p ids a sample
hot rows f·R, hottest first, get the share h of the accesses; a copy is the option with f = h = 1

A step runs through stages, each a barrier: it lasts as long as the GPU that has most to do in it.

    index exchange → lookup → forward exchange → dense network → backward exchange → update

    T_k  = max(max_g Σ_tables load_kg, beside_k)        beside_k: what the stage hides, as the bottom network
    step = Σ_k (T_k + fixed_k)                          fixed_k: latencies and what all GPUs do alike

A GPU's memory holds something else at every moment of a step; each of these moments must fit, so each is a sum over
what is placed, and the peak is the fullest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array, Bools, Ints
from cost_models.memory.device import is_own_host
from cost_models.recommender.accesses import accesses_of
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.model import TableSpec
from cost_models.specs.recommender.sharding import Option

Pair = tuple[int, Option]
"""Number of a class of tables, and a sharding option of the class."""


@dataclass(frozen=True, slots=True)
class OptionColumns:
    """Counts of ids, rows and vectors for O sharding options, in columns (O,). They are counts of one table
    of the option's class, in one step on all GPUs."""

    form: npt.NDArray[np.str_]
    width: Array
    """Number of elements of an embedding vector as a GPU holds it, D or, in one of k column shards, D/k."""
    whole_width: Array
    """Number D of elements of a complete embedding vector."""
    shards: Ints
    """Number of shards that lie on GPUs, or nodes, of their own; 0 if none does."""
    sharers: Array
    """Number of GPUs over which the rows of a table, or of its column shard, are spread."""
    on_host: Bools
    hashed: Bools
    ids: Array
    """Number of ids that look up rows without copies on all GPUs."""
    exchanged: Array
    """Number of ids sent between GPUs, which are all ids or, where each GPU requests a row once, the distinct
    rows of its samples."""
    hot_ids: Array
    """Number of ids that look up rows copied on all GPUs."""
    bags: Array
    """Number of vectors that samples get from rows without copies, one for each id with `concat`, else one
    for each sample with any such id."""
    hot_bags: Array
    """Number of vectors that samples get from copied rows."""
    outputs: Array
    """Number of vectors that samples get from all rows."""
    distinct: Array
    """Number of distinct rows without copies that a batch looks up."""
    hot_distinct: Array
    """Number of distinct copied rows that a batch looks up, over all GPUs."""
    local_hot_distinct: Array
    """Number of distinct copied rows that the samples of one GPU look up."""
    cold_rows: Array
    """Number of rows without copies."""
    hot_rows: Array
    """Number of rows copied on all GPUs."""
    hit: Array
    """Share of the lookups of rows without copies that find the row in device memory."""
    cached_rows: Array
    """Number of rows in host memory that the device caches."""
    lengths: Array
    """Number of list lengths sent with the ids, one for each sample where lengths vary."""

    def __len__(self) -> int:
        return len(self.form)


def option_columns(question: RecommenderQuestion, pairs: Sequence[Pair]) -> OptionColumns:
    """Columns of counts for the given (table class, sharding option) pairs."""
    gpus, per_node = question.cluster.num_gpus, question.cluster.gpus_per_node
    access_counts = cache(partial(_access_counts, question))
    rows: list[tuple[object, ...]] = []
    for index, option in pairs:
        form, slices, table = option.form, option.shards, question.model.classes[index]
        # how a table is cut does not change which rows are met
        uncut = option if form == "copy" else replace(option, form="whole", shards=1)
        spread = {"row": slices if slices > 1 else gpus, "node-row": per_node * slices}
        widths = table.width / (slices if form == "column" else 1), float(table.width)
        shards, sharers = slices if option.placed else 0, float(spread.get(form, 1))
        kinds = option.tier == "host", table.hashed
        rows.append((form, *widths, shards, sharers, *kinds, *access_counts(index, uncut)))
    return OptionColumns(*map(np.array, zip(*rows, strict=True)))


def _access_counts(question: RecommenderQuestion, class_index: int, option: Option) -> tuple[float, ...]:
    """Counts of ids, vectors and rows of one sharding option: the columns of `OptionColumns` from `ids` on."""
    table = question.model.classes[class_index]
    accesses = accesses_of(table)
    batch, gpus = question.training.global_batch, question.cluster.num_gpus
    ids, outputs = batch * table.pooling, batch * table.outputs
    hot_rows = float(table.rows) if option.form == "copy" else float(round(option.hot * table.rows))
    hot = float(accesses.hits(hot_rows))
    cold = 1.0 - hot
    bags, hot_bags = outputs * cold, outputs * hot
    if table.combiner != "concat":  # samples with at least one id of a kind that has this share of all ids
        bags, hot_bags = (outputs * (1.0 - (1.0 - share) ** max(table.pooling, 1.0)) for share in (cold, hot))
    cached_rows = float(round(option.cached * table.rows))
    cached = accesses.hits(hot_rows + cached_rows) - hot
    hot_distinct, local_hot_distinct = (float(accesses.distinct(n, hot_rows)) for n in (ids, ids / gpus))
    exchanged = ids * cold
    if question.facts.unique_ids:
        exchanged = gpus * (float(accesses.distinct(ids / gpus)) - local_hot_distinct)
    varies = table.pooling != 1 or hot_rows > 0
    lengths = outputs if question.facts.sends_all_lengths else batch * float(varies)
    hit = float(cached / (1.0 - hot)) if option.tier == "host" and hot < 1 else 1.0
    sent_ids = ids * cold, exchanged, ids * hot
    distinct_rows = float(accesses.distinct(ids)) - hot_distinct, hot_distinct, local_hot_distinct
    rows = table.rows - hot_rows, hot_rows
    return *sent_ids, bags, hot_bags, outputs, *distinct_rows, *rows, hit, cached_rows, lengths


_LEAST_WIDTH = 16
"""Minimum number of elements of a row in a column shard, as shorter rows waste part of the memory sectors
that hold them."""
_HOT = (0.001, 0.01, 0.1)
_CACHED = (0.01, 0.1, 0.3)
_LEAST_SKEW = 2.0
"""Minimum use of hot rows, relative to the mean row, for options that copy or cache them."""


def default_options(question: RecommenderQuestion, *, hot: bool = False) -> tuple[Pair, ...]:
    """Sharding options of every table class that a search tries by default, grouped by class: those that the
    stack runs and, with `hot`, copies of hot rows even if the stack runs none."""
    cluster, facts, pairs = question.cluster, question.facts, list[Pair]()
    for index, table in enumerate(question.model.classes):
        slices = range(2, min(cluster.num_gpus, table.width // _LEAST_WIDTH) + 1)
        bases = [Option("whole"), *(Option("column", count) for count in slices if table.width % count == 0)]
        if cluster.num_gpus > 1:
            bases.append(Option("row"))
        if cluster.nodes > 1 and cluster.gpus_per_node > 1:
            bases.append(Option("node-row"))
        options, cached_shares = list(bases), _shares(table, _CACHED)
        if cluster.num_gpus > 1:
            options.append(Option("copy"))
            # keys of a hash table are not numbered by how often they are used
            if (hot or facts.copies_hot_rows) and not table.hashed:
                options += [replace(base, hot=share) for base in bases for share in _shares(table, _HOT)]
        if cluster.host_memory and facts.host_tables and not is_own_host(cluster):
            hosted = [replace(base, tier="host") for base in bases]
            options += hosted + [replace(base, cached=share) for base in hosted for share in cached_shares]
        pairs += [(index, option) for option in options]
    return tuple(pairs)


def _shares(table: TableSpec, shares: tuple[float, ...]) -> list[float]:
    """Select the `shares` of a table's hottest rows that are used often enough for a copy or a cache; each
    has at least one row."""
    rows, hits = {share: round(share * table.rows) for share in shares}, accesses_of(table).hits
    return [share for share in shares if rows[share] and hits(rows[share]) >= _LEAST_SKEW * share]


class Stages(NamedTuple):
    """Names of the K stages of a recommender's training step, in order."""

    index_exchange: str = "index exchange"
    lookup: str = "lookup"
    forward_exchange: str = "forward exchange"
    dense: str = "dense network"
    backward_exchange: str = "backward exchange"
    update: str = "update"


STAGES = Stages()


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOptions:
    """Prices of all sharding options of all table classes: seconds and bytes of O options, with K stages and
    M moments of memory.

    A shard of a placed option loads the GPU (of `node-row` every GPU of the node) that it lies on; the rest of an
    option, as the copied rows of `hot`, loads every GPU alike.
    """

    options: tuple[Option, ...]
    """Sharding options, grouped by class of tables, (O,)."""
    table_class: Ints
    """Index of the class of tables that each option is for, (O,)."""
    shards: Ints
    """Number of shards of a table that lie on GPUs, or nodes, of their own, (O,); 0 if none does."""
    shard_seconds: Array
    """Seconds of work for a shard, by stage, on each GPU that holds it, (O, K)."""
    everywhere_seconds: Array
    """Seconds of work for a table, by stage, on every GPU, (O, K)."""
    shard_bytes: Array
    """Bytes of a shard on each GPU that holds it, at each moment of a step at which memory may peak, (O, M).
    """
    everywhere_bytes: Array
    """Bytes of a table on every GPU, at each moment of a step at which memory may peak, (O, M)."""
    shard_host_bytes: Array
    """Bytes of host memory for a shard, on the node that holds it, (O,)."""
    everywhere_host_bytes: Array
    """Bytes of host memory for a table, on every node, (O,)."""
    counts: Ints
    """Number of tables in each class, (C,)."""
    fixed: Array
    """Seconds of each stage that do not depend on the tables, (K,)."""
    stage_floors: Array
    """Minimum seconds of each stage, from the work that its table work hides, (K,)."""
    fixed_bytes: Array
    """Bytes on every GPU that do not depend on the tables, as dense network and its states, (M,); the
    reserve's complement is `device_memory`."""
    device_memory: float
    """Bytes of a GPU's memory that may be filled."""
    host_memory: float
    """Bytes of a node's host memory that may be filled; 0: unknown."""
    gpus: int
    gpus_per_node: int
    table_names: tuple[str, ...] = ()
    """Names of the tables, (T,); empty if unknown."""

    @property
    def nodes(self) -> int:
        """Number of nodes, N; the last may have fewer GPUs than the others."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def class_of_table(self) -> Ints:
        """Class of each table, (T,)."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def rows_of_class(self, class_index: int) -> Ints:
        """Indices of the options of one class of tables."""
        return np.flatnonzero(self.table_class == class_index)

    @property
    def row_of(self) -> dict[tuple[int, Option], int]:
        """Index of each option by its pair (class of tables, option)."""
        pairs = zip(self.table_class.tolist(), self.options, strict=True)
        return {pair: row for row, pair in enumerate(pairs)}

    def name_of(self, table: int) -> str:
        """Name of a table in error messages, as in "table 5 (`c5`)"."""
        return f"table {table} (`{self.table_names[table]}`)" if self.table_names else f"table {table}"
