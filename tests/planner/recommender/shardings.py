"""Random prices of sharding options, and all shardings of a few tables, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array
from cost_models.recommender.options import PricedOptions
from cost_models.specs.recommender.sharding import Option

STAGES = 6
OPTIONS = (
    Option("whole"),
    Option("column", shards=2),
    Option("row"),
    Option("copy"),
    Option("row", hot=0.1),
    Option("node-row"),
    Option("whole", tier="host"),
)


def random_prices(seed: int, *, tables: int = 4, gpus: int | None = None) -> PricedOptions:
    """Prices without a pattern: tables of very different sizes, GPUs that barely hold them, half of them in nodes.

    Up to three moments fill memory, each in its own way: shards most, or copies."""
    random = np.random.default_rng(seed)
    gpus = gpus or int(random.integers(2, 5))
    per_node = 2 if gpus % 2 == 0 and gpus > 2 and random.random() < 0.5 else gpus
    distinct = int(random.integers(1, tables + 1))
    counts = np.bincount(random.integers(0, distinct, size=tables), minlength=distinct)
    counts = counts[counts > 0]
    classes = len(counts)
    nodes = per_node < gpus
    menu = [one for one in OPTIONS if (one.form != "node-row" or nodes) and random.random() < 0.7] or [
        OPTIONS[0]
    ]
    options = menu * classes
    rows = len(options)
    size = np.repeat(random.lognormal(0, 1, classes), len(menu))
    factor = size[:, None] * random.uniform(0.5, 2.0, (rows, STAGES)) * 1e-3
    shards = np.array([one.shards if one.placed else 0 for one in options])
    split = np.array(
        [1 / max(one.shards, 1) / (per_node if one.form == "node-row" else 1) for one in options]
    )
    alike = np.array([{"row": 1 / gpus, "copy": 0.5}.get(one.form, 0.0) for one in options])
    hosted = np.array([one.tier == "host" for one in options])
    copied = np.array(
        [1.0 if one.form == "copy" else one.hot + (one.form == "row") / gpus for one in options]
    )
    whole_bytes = size * 1e9
    total = float((counts * size.reshape(classes, -1)[:, 0]).sum()) * 1e9
    device = total / gpus * random.uniform(0.9, 3.0)
    shard = whole_bytes * split * (shards > 0) * np.where(hosted, 0.01, 1.0)
    moments = int(np.random.default_rng(seed).integers(1, 4))
    more = np.random.default_rng(seed + 1)
    return PricedOptions(
        options=tuple(options),
        table_class=np.repeat(np.arange(classes), len(menu)),
        shards=shards,
        shard_seconds=factor * (split * (shards > 0) * (1 + 2 * hosted))[:, None],
        everywhere_seconds=factor * alike[:, None],
        shard_bytes=shard[:, None] * _varied(more, rows, moments, 0.5, 1.0),
        everywhere_bytes=(whole_bytes * copied * (1 - hosted))[:, None]
        * _varied(more, rows, moments, 0.5, 1.5),
        shard_host_bytes=whole_bytes * hosted,
        everywhere_host_bytes=np.zeros(rows),
        counts=counts,
        fixed=random.uniform(0, 1e-4, STAGES),
        stage_floors=random.uniform(0, 1e-3, STAGES) * (random.random(STAGES) < 0.3),
        fixed_bytes=0.05 * device * _varied(more, 1, moments, 0.5, 1.5)[0],
        device_memory=1.05 * device,
        host_memory=float(random.choice([0.0, total * 0.3, total])),
        gpus=gpus,
        gpus_per_node=per_node,
    )


def _varied(random: np.random.Generator, rows: int, moments: int, least: float, most: float) -> Array:
    """(rows, moments) factors: the first moment's are 1."""
    factors: Array = random.uniform(least, most, (rows, moments))
    factors[:, 0] = 1.0
    return factors


class Loads(NamedTuple):
    """Seconds of GPUs by stage and bytes of memories under a sharding, added up apart from the search's sums."""

    load: Array
    device_bytes: Array
    host_bytes: Array
    step_seconds: float

    @property
    def torchrec_seconds(self) -> float:
        """Most that a GPU does in all."""
        return float(self.load.sum(axis=1).max())


def loads_of(priced: PricedOptions, rows: Sequence[int], places: Sequence[tuple[int, ...]]) -> Loads:
    """Loads where table t takes option `rows[t]`, with shards at `places[t]`."""
    per_node = priced.gpus_per_node
    load = np.zeros((priced.gpus, STAGES))
    device = np.tile(priced.fixed_bytes, (priced.gpus, 1))
    host = np.zeros(-(-priced.gpus // per_node))
    for row, at in zip(rows, places, strict=True):
        load += priced.everywhere_seconds[row]
        device += priced.everywhere_bytes[row]
        host += priced.everywhere_host_bytes[row]
        nodes = priced.options[row].form == "node-row"
        for place in at:
            gpus = slice(place * per_node, (place + 1) * per_node) if nodes else slice(place, place + 1)
            load[gpus] += priced.shard_seconds[row]
            device[gpus] += priced.shard_bytes[row]
            host[place if nodes else place // per_node] += priced.shard_host_bytes[row]
    stages = np.maximum(load.max(axis=0), priced.stage_floors)
    return Loads(load, device, host, float(stages.sum() + priced.fixed.sum()))


def least_of_all(priced: PricedOptions, objective: str) -> float:
    """The least objective over all shardings, each added up; infinite where none fits."""
    load = np.zeros((1, priced.gpus, STAGES))
    device = np.tile(priced.fixed_bytes, (1, priced.gpus, 1))
    host = np.zeros((1, -(-priced.gpus // priced.gpus_per_node)))
    for one in np.repeat(np.arange(len(priced.counts)), priced.counts).tolist():
        ways = [_way(priced, row, at) for row, at in _ways(priced, one)]
        load = _crossed(load, np.stack([way.load for way in ways]))
        device = _crossed(device, np.stack([way.device_bytes - priced.fixed_bytes for way in ways]))
        host = _crossed(host, np.stack([way.host_bytes for way in ways]))
        fits = (device <= priced.device_memory * (1 + 1e-9)).all(axis=(1, 2))
        fits &= (host <= priced.host_memory * (1 + 1e-9)).all(axis=1)
        load, device, host = load[fits], device[fits], host[fits]
    if not len(load):
        return np.inf
    if objective == "torchrec":
        return float(load.sum(axis=2).max(axis=1).min())
    return float(np.maximum(load.max(axis=1), priced.stage_floors).sum(axis=1).min() + priced.fixed.sum())


def _ways(priced: PricedOptions, one: int) -> list[tuple[int, tuple[int, ...]]]:
    """Every option of a class at all its places."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for row in np.flatnonzero(priced.table_class == one).tolist():
        nodes = priced.options[row].form == "node-row"
        places = range(priced.gpus // priced.gpus_per_node if nodes else priced.gpus)
        found += [(row, at) for at in combinations(places, int(priced.shards[row]))]
    return found


def _way(priced: PricedOptions, row: int, at: tuple[int, ...]) -> Loads:
    return loads_of(priced, [row], [at])


def _crossed(before: Array, own: Array) -> Array:
    both: Array = (before[:, None] + own[None]).reshape(-1, *before.shape[1:])
    return both
