"""HugeCTR's greedy planner beside our search, at HugeCTR's own cost.

    python benchmarks/recommenders/hugectr_side.py      writes hugectr.csv

Its cost of a GPU, for each sample: Σ over shards 4 h w / (k c) + 60 w / c, for hotness h, width w, k row and c column
splits. Its greedy, as its planner describes it, begins with all tables by rows over all GPUs. Then it puts shards by
cost each on the GPU with least cost that holds no shard of that table and has room, splits in two what finds no room,
and the hottest table, twenty times, and keeps the best round. Tables are split by rows, or by columns down to a width
of 32 and by rows from there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.recommenders.instances import Instance, Table, public
from benchmarks.recommenders.run import append
from cost_models.recommender.options import PricedOptions
from cost_models.specs.recommender.sharding import Option
from planner.recommender.search import plan_sharding

WORK, BANDWIDTH = 4.0, 60.0
CAPACITY = 60e9
LEAST_WIDTH = 32
ROUNDS = 20
TIME_LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class Split:
    """Row and column splits of a table."""

    rows: int = 1
    columns: int = 1

    @property
    def shards(self) -> int:
        """Shards of the table."""
        return self.rows * self.columns

    def cost(self, table: Table) -> float:
        """Cost of a shard."""
        work = WORK * table.pooling * table.width / self.shards
        return work + BANDWIDTH * table.width / self.columns

    def size(self, table: Table) -> float:
        """Bytes of a shard, in fp32."""
        return 4.0 * table.width * table.rows / self.shards

    def doubled(self, table: Table, *, columns: bool) -> Split:
        """With twice the shards."""
        if columns and table.width / self.columns >= 2 * LEAST_WIDTH:
            return Split(self.rows, 2 * self.columns)
        return Split(2 * self.rows, self.columns)


def greedy(instance: Instance, *, columns: bool) -> float:
    """The least cost of the busiest GPU that HugeCTR's greedy finds."""
    tables = instance.tables
    splits = [Split() for _ in tables]
    best = sum(Split(rows=instance.gpus).cost(table) for table in tables)
    for _ in range(ROUNDS):
        cost = _placed(instance, splits, columns=columns)
        if cost is None:
            break
        best = min(best, cost)
        order = sorted(range(len(tables)), key=lambda table: -splits[table].cost(tables[table]))
        hottest = next((table for table in order if 2 * splits[table].shards <= instance.gpus), None)
        if hottest is None:
            break
        splits[hottest] = splits[hottest].doubled(tables[hottest], columns=columns)
    return float(best)


def _placed(instance: Instance, splits: list[Split], *, columns: bool) -> float | None:
    """Cost of the busiest GPU with these splits, tables without room split further; None where that ends."""
    tables = instance.tables
    while True:
        shards = sorted(
            (table for table, split in enumerate(splits) for _ in range(split.shards)),
            key=lambda table: -splits[table].cost(tables[table]),
        )
        cost, filled = np.zeros(instance.gpus), np.zeros(instance.gpus)
        holds = np.zeros((instance.gpus, len(tables)), dtype=bool)
        for table in shards:
            size = splits[table].size(tables[table])
            room = (filled + size <= CAPACITY) & ~holds[:, table]
            if not room.any():
                break
            gpu = int(np.where(room, cost, np.inf).argmin())
            cost[gpu] += splits[table].cost(tables[table])
            filled[gpu] += size
            holds[gpu, table] = True
        else:
            return float(cost.max())
        if 2 * splits[table].shards > instance.gpus:
            return None
        splits[table] = splits[table].doubled(tables[table], columns=columns)


def priced(instance: Instance) -> PricedOptions:
    """The same costs for our search: every pair of row and column splits in powers of two."""
    classes = {table: instance.tables.count(table) for table in instance.tables}
    rows = [
        (number, table, split)
        for number, table in enumerate(classes)
        for split in _splits(table, instance.gpus)
    ]
    none = np.zeros(len(rows))
    return PricedOptions(
        options=tuple(
            Option("column", split.shards) if split.shards > 1 else Option("whole") for _, _, split in rows
        ),
        table_class=np.array([number for number, _, _ in rows]),
        shards=np.array([split.shards for _, _, split in rows]),
        shard_seconds=np.array([[split.cost(table)] for _, table, split in rows]),
        everywhere_seconds=none[:, None],
        shard_bytes=np.array([[split.size(table)] for _, table, split in rows]),
        everywhere_bytes=none[:, None],
        shard_host_bytes=none,
        everywhere_host_bytes=none,
        counts=np.array(list(classes.values())),
        fixed=np.zeros(1),
        stage_floors=np.zeros(1),
        fixed_bytes=np.zeros(1),
        device_memory=CAPACITY,
        host_memory=0.0,
        gpus=instance.gpus,
        gpus_per_node=instance.gpus,
    )


def _splits(table: Table, gpus: int) -> Iterator[Split]:
    for columns in (1, 2, 4, 8):
        if columns == 1 or table.width / columns >= LEAST_WIDTH:
            yield from (Split(rows, columns) for rows in (1, 2, 4, 8, 16, 32, 64) if rows * columns <= gpus)


def main() -> None:
    """All public instances."""
    for instance in public():
        start = time.process_time()
        by_rows, by_columns = greedy(instance, columns=False), greedy(instance, columns=True)
        greedy_seconds = time.process_time() - start
        start = time.process_time()
        answer = plan_sharding(priced(instance), objective="torchrec", seconds=TIME_LIMIT)
        apart = all(len(set(one.at)) == len(one.at) for one in answer.sharding.tables)
        append(
            "hugectr.csv",
            {
                "instance": instance.name,
                "gpus": instance.gpus,
                "greedy_rows": round(by_rows, 1),
                "greedy_columns": round(by_columns, 1),
                "greedy_seconds": round(greedy_seconds, 2),
                "ours": round(answer.certificate.value, 1),
                "bound": round(answer.certificate.bound, 1),
                "gap": round(answer.certificate.gap, 6),
                "seconds": round(time.process_time() - start, 2),
                "shards_apart": apart,
            },
        )


if __name__ == "__main__":
    main()
