"""Which GPU and which tables bind: of every stage the GPU that ends it, and what each large table on it costs the step.

A table is repriced with all others left where they are: taken out, and held in each other way that fits, its shards
where they lengthen the step least. What a new search of all tables would gain may be more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.recommender.priced import STAGES, Array, Ints, PricedOptions
from cost_models.specs.recommender.sharding import Placed, Sharding
from planner.recommender.loads import Loads, loads_of
from planner.recommender.problem import FULL

NAMED = 3
"""Tables named of each GPU that ends a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingTable:
    """A table on a GPU that ends a stage."""

    table: int
    held: Placed
    seconds: float
    """What it loads this GPU with in this stage."""
    without_seconds: float
    """The step without this table."""
    otherwise: Placed | None
    """The best other way to hold it; None where no other fits."""
    otherwise_seconds: float | None
    """The step if it were held so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingStage:
    """A stage, and the GPU that ends it."""

    stage: str
    seconds: float
    gpu: int | None
    """None where what stands beside the tables lasts longer than any GPU."""
    mean_seconds: float
    """What GPUs are busy with tables on average: the stage would last so long if they were even."""
    tables: tuple[BindingTable, ...]
    """Those that load this GPU most, most first."""


def binding_stages(
    priced: PricedOptions, rows: tuple[int, ...], sharding: Sharding, *, named: int = NAMED
) -> tuple[BindingStage, ...]:
    """What binds in every stage that tables load, in the order of the step."""
    places = [placed.at for placed in sharding.tables]
    loads = loads_of(priced, rows, places)
    repriced: dict[int, tuple[float, Placed | None, float | None]] = {}
    found = []
    for stage, name in enumerate(_names(priced)):
        gpu = int(loads.load[:, stage].argmax())
        longest = float(loads.load[gpu, stage])
        if longest <= 0:
            continue
        beside = longest < priced.beside[stage]
        own = [] if beside else _largest(priced, rows, places, gpu, stage, named)
        for table, _ in own:
            if table not in repriced:
                repriced[table] = _repriced(priced, loads, rows[table], places[table], table)
        tables = tuple(
            BindingTable(
                table=table,
                held=sharding.tables[table],
                seconds=seconds,
                without_seconds=repriced[table][0],
                otherwise=repriced[table][1],
                otherwise_seconds=repriced[table][2],
            )
            for table, seconds in own
        )
        found.append(
            BindingStage(
                stage=name,
                seconds=float(loads.stage_seconds[stage]),
                gpu=None if beside else gpu,
                mean_seconds=float(loads.load[:, stage].mean()),
                tables=tables,
            )
        )
    return tuple(found)


def _names(priced: PricedOptions) -> tuple[str, ...]:
    stages = len(priced.fixed)
    return tuple(STAGES) if stages == len(STAGES) else tuple(f"stage {k}" for k in range(stages))


def _largest(
    priced: PricedOptions,
    rows: tuple[int, ...],
    places: list[tuple[int, ...]],
    gpu: int,
    stage: int,
    named: int,
) -> list[tuple[int, float]]:
    """Tables that load a GPU most in a stage, and with how many seconds."""
    node = gpu // priced.gpus_per_node
    seconds = []
    for table, (row, at) in enumerate(zip(rows, places, strict=True)):
        here = node if priced.options[row].form == "node-row" else gpu
        own = priced.everywhere_seconds[row, stage] + at.count(here) * priced.shard_seconds[row, stage]
        seconds.append((table, float(own)))
    return sorted((one for one in seconds if one[1] > 0), key=lambda one: (-one[1], one[0]))[:named]


def _repriced(
    priced: PricedOptions, loads: Loads, row: int, at: tuple[int, ...], table: int
) -> tuple[float, Placed | None, float | None]:
    """The step without a table; the best other way to hold it, and the step with that."""
    own = loads_of(priced, [row], [at])
    left = loads.load - own.load
    device = loads.device_bytes - own.device_bytes + priced.fixed_bytes
    host = loads.host_bytes - own.host_bytes
    best: tuple[Placed | None, float | None] = None, None
    for other in np.flatnonzero(priced.table_class == priced.table_class[row]).tolist():
        if other == row:
            continue
        tried = put(priced, other, left, device, host)
        if tried is not None and (best[1] is None or tried[1] < best[1]):
            best = Placed(priced.options[other], tried[0]), tried[1]
    return _step(priced, left), *best


def put(
    priced: PricedOptions, row: int, load: Array, device: Array, host: Array
) -> tuple[tuple[int, ...], float] | None:
    """Places of a table in an option, each shard where it lengthens the step least; None where it does not fit."""
    per_node = priced.gpus_per_node
    load = load + priced.everywhere_seconds[row]
    device = device + priced.everywhere_bytes[row]
    host = host + priced.everywhere_host_bytes[row]
    node: Ints = np.arange(priced.gpus) // per_node
    on_nodes = priced.options[row].form == "node-row"
    places: list[int] = []
    if priced.shards[row] > (-(-priced.gpus // per_node) if on_nodes else priced.gpus):
        return None
    for _ in range(int(priced.shards[row])):
        after = load + priced.shard_seconds[row]
        longest = np.maximum(load.max(axis=0), priced.beside)
        step = np.maximum(after, longest).sum(axis=1)
        room = (device + priced.shard_bytes[row] <= priced.device_memory * FULL).all(axis=1)
        room &= (host[node] + priced.shard_host_bytes[row]) <= priced.host_memory * FULL
        step = np.where(room, step + 1e-6 * after.sum(axis=1), np.inf)
        if on_nodes:
            step = np.maximum.reduceat(step, np.arange(0, priced.gpus, per_node))
        step[places] = np.inf
        place = int(step.argmin())
        if not np.isfinite(step[place]):
            return None
        gpus = np.flatnonzero(node == place) if on_nodes else np.array([place])
        load[gpus] += priced.shard_seconds[row]
        device[gpus] += priced.shard_bytes[row]
        host[place if on_nodes else place // per_node] += priced.shard_host_bytes[row]
        places.append(place)
    if device.max() > priced.device_memory * FULL or host.max() > priced.host_memory * FULL:
        return None
    return tuple(sorted(places)), _step(priced, load)


def _step(priced: PricedOptions, load: Array) -> float:
    return float(np.maximum(load.max(axis=0), priced.beside).sum() + priced.fixed.sum())
