"""What the search solves: ways to hold units of tables, what each loads and fills, and what lies somewhere already.

    U units (a table, or tables that must share a GPU), in C classes of alike ones
    R rows: the ways to hold a unit of a class                              G GPUs in N nodes, K stages
    M moments of a step at which a GPU's memory may be fullest
    minimise  Σ_k max(max_g load_gk, beside_k) + fixed      within device memory of each GPU at each moment,
                                                        host memory of each node

TorchRec's objective is the same with one stage: a GPU's load is the sum over stages, and nothing stands beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.recommender.priced import PricedOptions

Objective = Literal["step", "torchrec"]
"""`step`: stages one after another, each as long as its busiest GPU; `torchrec`: most that a GPU does in all."""
OBJECTIVES: tuple[Objective, ...] = ("step", "torchrec")

FULL = 1 + 1e-8
"""Share of a memory that may be filled: rounding apart, all of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Units to place, the rows of each class, and loads of tables with fixed places."""

    priced: PricedOptions
    members: tuple[tuple[tuple[int, ...], ...], ...]
    """By class: its units, each the tables that it stands for."""
    unit_class: Ints
    """(U,) class of each unit."""
    row_class: Ints
    """(R,) class of each row; rows of a class follow one another."""
    picks: tuple[tuple[int, ...], ...]
    """(R,) row of `priced` that each table of the unit takes."""
    shards: Ints
    """(R,) shards with a place of their own."""
    on_nodes: Bools
    """(R,) whether these places are nodes."""
    shard_load: Array
    """(R, K) load of a shard on each GPU that holds it."""
    everywhere_load: Array
    """(R, K)"""
    shard_full: Array
    """(R, M) share of the device memory limit that a shard fills."""
    everywhere_full: Array
    """(R, M)"""
    shard_host: Array
    """(R,) share of a node's host memory limit."""
    everywhere_host: Array
    """(R,)"""
    base_load: Array
    """(G, K) loads of tables whose places are given."""
    base_full: Array
    """(G, M) share of device memory filled before any unit."""
    base_host: Array
    """(N,)"""
    given: dict[int, tuple[int, tuple[int, ...]]]
    """Row of `priced` and places of the tables whose places are given."""
    beside: Array
    """(K,) each stage lasts at least as long."""
    fixed: float
    """Seconds that no table changes."""

    @property
    def gpus(self) -> int:
        """G"""
        return self.priced.gpus

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node; the last node may have fewer."""
        return self.priced.gpus_per_node

    @property
    def nodes(self) -> int:
        """N"""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def node_of_gpu(self) -> Ints:
        """(G,)"""
        return np.arange(self.gpus) // self.gpus_per_node

    @property
    def counts(self) -> Ints:
        """(C,) units of each class."""
        return np.array([len(units) for units in self.members], dtype=np.int64)

    @property
    def units(self) -> list[tuple[int, ...]]:
        """(U,) tables of each unit."""
        return [unit for units in self.members for unit in units]

    @property
    def span(self) -> Ints:
        """(R,) GPUs that a shard of each row loads at least: the last node may be smaller."""
        return np.where(self.on_nodes, self.gpus - (self.nodes - 1) * self.gpus_per_node, 1)

    @property
    def nodes_matter(self) -> bool:
        """Whether it matters which GPUs share a node."""
        hosted = bool(self.shard_host.any())
        return self.nodes > 1 and (bool(self.on_nodes.any()) or hosted)

    def rows_of(self, one_class: int) -> Ints:
        """Rows of a class."""
        return np.flatnonzero(self.row_class == one_class)

    @property
    def mean_load(self) -> Array:
        """(R, K) what a unit in each row adds to the mean load of a GPU, at least."""
        return self.everywhere_load + self.shard_load * (self.shards * self.span / self.gpus)[:, None]

    @property
    def least_stages(self) -> Array:
        """(K,) least length of each stage by itself: all units in the rows that load it least."""
        least, mean = self.base_load.mean(axis=0), self.mean_load
        for one, count in enumerate(self.counts.tolist()):
            least = least + count * mean[self.rows_of(one)].min(axis=0)
        lengths: Array = np.maximum(least, self.beside)
        return lengths

    def with_rows(self, kept: Ints) -> Problem:
        """The problem with some of its rows; each class must keep one."""
        arrays = (
            "row_class",
            "shards",
            "on_nodes",
            "shard_load",
            "everywhere_load",
            "shard_full",
            "everywhere_full",
        )
        own = {name: getattr(self, name)[kept] for name in (*arrays, "shard_host", "everywhere_host")}
        return replace(self, picks=tuple(self.picks[row] for row in kept.tolist()), **own)

    def value(self, load_GK: Array) -> float:
        """The objective at these loads."""
        return float(np.maximum(load_GK.max(axis=0), self.beside).sum() + self.fixed)


@dataclass(frozen=True, slots=True)
class Placement:
    """Row of every unit and the places of its shards."""

    row: Ints
    """(U,)"""
    places: tuple[tuple[int, ...], ...]
    """(U,) GPUs, or nodes where the row lies on nodes."""


@dataclass(frozen=True, slots=True)
class Use:
    """Seconds and bytes that a placement of tables costs each GPU and host."""

    load: Array
    """(G, K)"""
    full: Array
    """(G, M) share of the device memory limit."""
    host: Array
    """(N,) share of the host memory limit."""

    @property
    def fits(self) -> bool:
        """Whether no memory is more than full."""
        return bool(self.full.max() <= FULL and self.host.max(initial=0.0) <= FULL)


def use_of(problem: Problem, placement: Placement) -> Use:
    """What a placement loads and fills, summed from its units."""
    row = placement.row
    load = problem.base_load + problem.everywhere_load[row].sum(axis=0)
    full = problem.base_full + problem.everywhere_full[row].sum(axis=0)
    host = problem.base_host + problem.everywhere_host[row].sum()
    for one, places in zip(row.tolist(), placement.places, strict=True):
        for place in places:
            where = gpus_of(problem, one, place)
            load[where] += problem.shard_load[one]
            full[where] += problem.shard_full[one]
            host[place if problem.on_nodes[one] else place // problem.gpus_per_node] += problem.shard_host[
                one
            ]
    return Use(load, full, host)


def gpus_of(problem: Problem, row: int, place: int) -> slice:
    """GPUs that a shard of a row loads where it lies at `place`."""
    if not problem.on_nodes[row]:
        return slice(place, place + 1)
    return slice(place * problem.gpus_per_node, (place + 1) * problem.gpus_per_node)


def undominated(shards: Ints, on_nodes: Ints, shard: Array, everywhere: Array) -> Ints:
    """Rows that no other row replaces: one with as many shards that needs no more of any resource.

    Of equal rows the first stays. `shard` and `everywhere` are (R, resources).
    """
    less_everywhere = (everywhere[:, None] <= everywhere).all(axis=2)  # [a, b]: a needs no more than b
    less_a_shard = (shard[:, None] <= shard).all(axis=2)
    alike = (shards[:, None] == shards) & (on_nodes[:, None] == on_nodes)
    replaces = less_everywhere & ((alike & less_a_shard) | (shards == 0)[:, None])
    first = np.arange(len(shards))[:, None] < np.arange(len(shards))
    return np.flatnonzero(~(replaces & (~replaces.T | first)).any(axis=0))
