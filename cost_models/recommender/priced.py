"""Seconds and bytes of every option to shard a class of embedding tables, as rows that searches add up.

A step runs through stages, each a barrier: it lasts as long as the GPU that has most to do in it.

    index exchange → lookup → forward exchange → dense network → backward exchange → update

    T_k  = max(max_g Σ_tables load_kg, beside_k)        beside_k: what the stage hides, as the bottom network
    step = Σ_k (T_k + fixed_k)                          fixed_k: latencies and what all GPUs do alike

A GPU's memory holds something else at every moment of a step; each of these moments must fit, so each is a sum over
what is placed, and the peak is the fullest of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.specs.recommender.sharding import Option


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
