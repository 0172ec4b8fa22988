"""Sharding options of embedding tables: those that a search tries by default, columns of what each shard and each
other GPU looks up, sends and keeps, and prices that searches add up.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array, Bools, Ints
from cost_models.memory.device import is_own_host
from cost_models.recommender.accesses import Accesses, accesses_of
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.model import TableSpec
from cost_models.specs.recommender.sharding import Option

Pair = tuple[int, Option]
"""Number of a class of tables, and a sharding option of the class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionColumns:
    """Counts of ids, rows and vectors for O sharding options of table classes, as columns (O,). Counts are of
    one table and one step of all GPUs."""

    pairs: tuple[Pair, ...]
    form: npt.NDArray[np.str_]
    width: Array
    """Number of elements of an embedding vector as a GPU holds it, D or, in one of k column shards, D/k."""
    whole_width: Array
    """Number D of elements of a complete embedding vector."""
    shards: Ints
    """Number of shards that lie on GPUs, or nodes, of their own; 0 if none does."""
    sharers: Array
    """Number of GPUs over which the rows of a table, or of its column shard, are spread."""
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
    on_host: Bools
    cached_rows: Array
    """Number of rows in host memory that the device caches."""
    lengths: Array
    """Number of list lengths sent with the ids, one for each sample where lengths vary."""
    hashed: Bools

    def __len__(self) -> int:
        return len(self.pairs)


def option_columns(question: RecommenderQuestion, pairs: Sequence[Pair]) -> OptionColumns:
    """Columns of counts for the given (table class, sharding option) pairs."""
    classes = question.model.classes
    accesses = {index: accesses_of(classes[index]) for index in {index for index, _ in pairs}}
    counts_of_key: dict[tuple[object, ...], dict[str, float]] = {}
    counts = []
    for class_index, option in pairs:  # how a table is cut does not change which rows are met
        key = class_index, option.form == "copy", option.hot, option.tier, option.cached
        if key not in counts_of_key:
            counts_of_key[key] = _access_counts(classes[class_index], accesses[class_index], option, question)
        counts.append(counts_of_key[key])
    tables = [classes[class_index] for class_index, _ in pairs]
    options = [option for _, option in pairs]
    form = np.array([option.form for option in options], dtype=np.str_)
    slices = np.array([option.shards for option in options], dtype=np.int64)
    whole_width = np.array([table.width for table in tables], dtype=np.float64)
    cluster = question.cluster
    of_rows, of_nodes = form == "row", cluster.gpus_per_node * slices
    conditions = [of_rows & (slices > 1), of_rows, form == "node-row"]
    sharers = np.select(conditions, [slices, cluster.num_gpus, of_nodes], 1)
    return OptionColumns(
        pairs=tuple(pairs),
        form=form,
        width=whole_width / np.where(form == "column", slices, 1),
        whole_width=whole_width,
        shards=np.where([option.placed for option in options], slices, 0),
        sharers=sharers.astype(np.float64),
        on_host=np.array([option.tier == "host" for option in options], dtype=np.bool_),
        hashed=np.array([table.hashed for table in tables], dtype=np.bool_),
        **{name: np.array([one[name] for one in counts], dtype=np.float64) for name in counts[0]},
    )


def _access_counts(
    table: TableSpec, accesses: Accesses, option: Option, question: RecommenderQuestion
) -> dict[str, float]:
    """Counts of ids, vectors and rows of one sharding option, by name, that follow from how often rows are used."""
    batch, gpus = question.training.global_batch, question.cluster.num_gpus
    ids, outputs = batch * table.pooling, batch * table.outputs
    hot_rows = float(table.rows) if option.form == "copy" else float(round(option.hot * table.rows))
    hot = float(accesses.hits(hot_rows))
    cold = 1.0 - hot
    bags, hot_bags = outputs * cold, outputs * hot
    if table.combiner != "concat":  # samples with at least one id of a kind that has this share of all ids
        bags, hot_bags = (outputs * (1.0 - (1.0 - share) ** max(table.pooling, 1.0)) for share in (cold, hot))
    cached_rows = float(round(option.cached * table.rows))
    hot_distinct = float(accesses.distinct(ids, hot_rows)) if hot_rows else 0.0
    exchanged = ids * cold
    if question.facts.unique_ids:
        exchanged = gpus * float(accesses.distinct(ids / gpus) - accesses.distinct(ids / gpus, hot_rows))
    lengths = batch * (1.0 if table.pooling != 1 or hot_rows else 0.0)
    if question.facts.sends_all_lengths:
        lengths = batch * table.outputs
    hit = 1.0
    if option.tier == "host" and hot < 1:
        hit = float((accesses.hits(hot_rows + cached_rows) - hot) / (1.0 - hot))
    return {
        "ids": ids * cold,
        "exchanged": exchanged,
        "hot_ids": ids * hot,
        "bags": bags,
        "hot_bags": hot_bags,
        "outputs": outputs,
        "distinct": float(accesses.distinct(ids)) - hot_distinct,
        "hot_distinct": hot_distinct,
        "local_hot_distinct": float(accesses.distinct(ids / gpus, hot_rows)) if hot_rows else 0.0,
        "cold_rows": table.rows - hot_rows,
        "hot_rows": hot_rows,
        "hit": hit,
        "cached_rows": cached_rows,
        "lengths": lengths,
    }


_LEAST_WIDTH = 16
"""Minimum number of elements of a row in a column shard, as shorter rows waste part of the memory sectors
that hold them."""
_HOT = (0.001, 0.01, 0.1)
_CACHED = (0.01, 0.1, 0.3)
_LEAST_SKEW = 2.0
"""Minimum use of hot rows, relative to the mean row, for options that copy or cache them."""


def default_options(question: RecommenderQuestion, *, hot: bool = False) -> tuple[Pair, ...]:
    """Sharding options of every table class that a search tries by default. These are the options that the
    stack runs, with `hot` also copies of hot rows where it runs none; those of a class follow one another."""
    return tuple(
        (index, option)
        for index, table in enumerate(question.model.classes)
        for option in _options(question, table, hot=hot or question.facts.copies_hot_rows)
    )


def _options(question: RecommenderQuestion, table: TableSpec, *, hot: bool) -> Iterator[Option]:
    cluster = question.cluster
    slices = range(2, min(cluster.num_gpus, table.width // _LEAST_WIDTH) + 1)
    bases = [Option("whole"), *(Option("column", count) for count in slices if table.width % count == 0)]
    if cluster.num_gpus > 1:
        bases.append(Option("row"))
    if cluster.nodes > 1 and cluster.gpus_per_node > 1:
        bases.append(Option("node-row"))
    yield from bases
    cached_shares = tuple(_shares(table, _CACHED))
    numbered = hot and not table.hashed  # keys are not numbered by how often they are used
    hottest = tuple(_shares(table, _HOT)) if numbered else ()
    if cluster.num_gpus > 1:
        yield Option("copy")
        yield from (replace(base, hot=share) for base in bases for share in hottest)
    if cluster.host_memory and question.facts.host_tables and not is_own_host(cluster):
        yield from (replace(base, tier="host") for base in bases)
        yield from (replace(base, tier="host", cached=share) for base in bases for share in cached_shares)


def _shares(table: TableSpec, shares: tuple[float, ...]) -> Iterator[float]:
    """Yield the `shares` of a table's hottest rows that are used often enough for a copy or a cache. Each has
    at least one row."""
    if not table.zipf and not table.histogram:
        return
    accesses = accesses_of(table)
    for share in shares:
        rows = round(share * table.rows)
        if rows >= 1 and float(accesses.hits(rows)) >= _LEAST_SKEW * share:
            yield share


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
    """Seconds and bytes of all sharding options of all table classes, for O options, K stages and M moments of
    memory.

    A shard of a placed option loads the GPU (of `node-row` every GPU of the node) that it lies on; the rest of an
    option, as the copied rows of `hot`, loads every GPU alike.
    """

    options: tuple[Option, ...]
    """(O,) sharding options, grouped by class of tables."""
    table_class: Ints
    """(O,) index of the class of tables that each option is for."""
    shards: Ints
    """(O,) number of shards of a table that lie on GPUs, or nodes, of their own; 0 if none does."""
    shard_seconds: Array
    """(O, K) seconds of work for a shard, by stage, on each GPU that holds it."""
    everywhere_seconds: Array
    """(O, K) seconds of work for a table, by stage, on every GPU."""
    shard_bytes: Array
    """(O, M) bytes of a shard on each GPU that holds it, at each moment of a step at which memory may
    peak."""
    everywhere_bytes: Array
    """(O, M) bytes of a table on every GPU, at each moment of a step at which memory may peak."""
    shard_host_bytes: Array
    """(O,) bytes of host memory for a shard, on the node that holds it."""
    everywhere_host_bytes: Array
    """(O,) bytes of host memory for a table, on every node."""
    counts: Ints
    """(C,) number of tables in each class."""
    fixed: Array
    """(K,) seconds of each stage that do not depend on the tables."""
    stage_floors: Array
    """(K,) minimum seconds of each stage, from the work that its table work hides."""
    fixed_bytes: Array
    """(M,) bytes on every GPU that do not depend on the tables, as dense network and its states; the
    reserve's complement is `device_memory`."""
    device_memory: float
    """Bytes of a GPU's memory that may be filled."""
    host_memory: float
    """Bytes of a node's host memory that may be filled; 0: unknown."""
    gpus: int
    gpus_per_node: int
    table_names: tuple[str, ...] = ()
    """(T,) names of the tables; empty if unknown."""

    @property
    def nodes(self) -> int:
        """Number of nodes, N; the last may have fewer GPUs than the others."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def on_nodes(self) -> Bools:
        """Whether the shards of each option lie on nodes instead of GPUs, (O,)."""
        return np.array([option.form == "node-row" for option in self.options], dtype=np.bool_)

    @property
    def class_of_table(self) -> Ints:
        """Class of each table, (T,)."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def gpus_at(self, place: int, *, on_nodes: bool) -> slice:
        """Slice of the GPUs that hold a shard at `place`, which is a node or a GPU."""
        size = self.gpus_per_node if on_nodes else 1
        return slice(place * size, (place + 1) * size)

    def rows_of_class(self, class_index: int) -> Ints:
        """Indices of the options of one class of tables."""
        return np.flatnonzero(self.table_class == class_index)

    @property
    def row_of(self) -> dict[tuple[int, Option], int]:
        """(class of tables, option) → index of the option."""
        pairs = zip(self.table_class.tolist(), self.options, strict=True)
        return {pair: row for row, pair in enumerate(pairs)}

    def name_of(self, table: int) -> str:
        """Name of a table in error messages, as in "table 5 (`c5`)"."""
        return f"table {table} (`{self.table_names[table]}`)" if self.table_names else f"table {table}"
