"""The answer of a search of shardings: where every table lies, what each GPU loads and fills, and the certificate.

Loads are added up table by table from the prices, apart from the search's own sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from cost_models.arrays import Array
from cost_models.base import Spec
from cost_models.errors import InputError
from cost_models.recommender.priced import PricedOptions
from cost_models.specs.recommender.sharding import Placed, Sharding
from planner.recommender.search.problem import Objective, Placement, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Loads of stages and bytes of memories under one sharding."""

    load: Array
    """(G, K) seconds of each GPU in each stage."""
    stage_seconds: Array
    """(K,) seconds of each stage, what no table changes left out."""
    fixed: float
    """Seconds that no table changes."""
    device_bytes: Array
    """(G, M) of each GPU at each moment."""
    host_bytes: Array
    """(N,)"""

    @property
    def step_seconds(self) -> float:
        """Seconds of a step: the longest load of each stage, summed, and the fixed seconds."""
        return float(self.stage_seconds.sum()) + self.fixed

    @property
    def torchrec_seconds(self) -> float:
        """The most that any GPU does, its stages added up; dense network and latencies are no part of it."""
        return float(self.load.sum(axis=1).max())


def loads_of(priced: PricedOptions, rows: Sequence[int], places: Sequence[tuple[int, ...]]) -> Loads:
    """Loads where table t takes row `rows[t]` of the prices and its shards lie at `places[t]`."""
    per_node = priced.gpus_per_node
    nodes = -(-priced.gpus // per_node)
    load = np.zeros((priced.gpus, len(priced.fixed)))
    device = np.tile(priced.fixed_bytes, (priced.gpus, 1))
    host = np.zeros(nodes)
    for row, at in zip(rows, places, strict=True):
        load += priced.everywhere_seconds[row]
        device += priced.everywhere_bytes[row]
        host += priced.everywhere_host_bytes[row]
        on_nodes = priced.options[row].form == "node-row"
        for place in at:
            gpus = slice(place * per_node, (place + 1) * per_node) if on_nodes else slice(place, place + 1)
            load[gpus] += priced.shard_seconds[row]
            device[gpus] += priced.shard_bytes[row]
            host[place if on_nodes else place // per_node] += priced.shard_host_bytes[row]
    return Loads(
        load=load,
        stage_seconds=np.maximum(load.max(axis=0), priced.beside),
        fixed=float(priced.fixed.sum()),
        device_bytes=device,
        host_bytes=host,
    )


def rows_of(priced: PricedOptions, sharding: Sharding) -> tuple[int, ...]:
    """Row of the prices that each table of a sharding takes.

    Raises:
        InputError: tables of another number, or an option that has no price.
    """
    table_class = np.repeat(np.arange(len(priced.counts)), priced.counts).tolist()
    if len(sharding.tables) != len(table_class):
        raise InputError(f"the sharding has {len(sharding.tables)} tables, the prices {len(table_class)}")
    row_of = {
        (one, option): row
        for row, (one, option) in enumerate(zip(priced.table_class.tolist(), priced.options, strict=True))
    }
    found = []
    for table, (one, placed) in enumerate(zip(table_class, sharding.tables, strict=True)):
        row = row_of.get((one, placed.option))
        if row is None:
            raise InputError(f"{priced.name_of(table)} cannot be held as `{placed.option}`: it has no price")
        found.append(row)
    return tuple(found)


Method = Literal["flat", "two levels"]
"""`flat`: options and places in one program; `two levels`: bound over options, places by local search."""


class ShardingCertificate(Spec):
    """The proof that no other covered sharding is better. Method and solver are no part of a plan file."""

    objective: Objective
    space: str
    """What it was proved over, in words."""
    method: Method | None = None
    solver: str = ""
    tables: int
    distinct: int
    """Tables that prices and restrictions tell apart."""
    options: int
    """Ways to hold them, over distinct tables."""
    value: float
    """The objective of the sharding, seconds."""
    bound: float
    """Proven lower bound on the objective of any covered sharding, seconds."""
    gap: float
    """(value − bound) / value; 0 proves that the sharding is optimal."""
    greedy: float | None
    """The objective of the greedy sharding, seconds; None where it does not fit."""
    undecided: bool = False
    """Whether time ran out, or the user ended the search, before it was done."""
    seconds: float = Field(default=0.0, exclude=True)
    """Search time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingAnswer:
    """The best sharding found, with its loads in the given prices."""

    sharding: Sharding
    rows: tuple[int, ...]
    """(T,) row of the prices that each table takes."""
    priced: PricedOptions
    """The prices, with the memories that restrictions leave."""
    loads: Loads
    certificate: ShardingCertificate
    interrupted: bool = False
    """True where Ctrl-C ended the search; the answer is what was found by then."""

    @property
    def step_seconds(self) -> float:
        """Seconds of a step: stages one after another, each as long as its busiest GPU."""
        return self.loads.step_seconds


def sharding_of(problem: Problem, placement: Placement) -> tuple[Sharding, tuple[int, ...]]:
    """The sharding of a placement, and the row of the prices that each table takes."""
    rows = np.full(int(problem.priced.counts.sum()), -1, dtype=np.int64)
    places: dict[int, tuple[int, ...]] = {}
    for table, (row, at) in problem.given.items():
        rows[table], places[table] = row, at
    for unit, row, at in zip(problem.units, placement.row.tolist(), placement.places, strict=True):
        for table, pick in zip(unit, problem.picks[row], strict=True):
            rows[table], places[table] = pick, at
    chosen = tuple(rows.tolist())
    options = problem.priced.options
    tables = tuple(Placed(options[row], tuple(sorted(places[table]))) for table, row in enumerate(chosen))
    return Sharding(tables), chosen
