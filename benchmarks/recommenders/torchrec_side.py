"""TorchRec's planner: its own plan of an instance, and the prices that it enumerates, for our search.

TorchRec 1.8.0 is installed by hand, in an environment of its own (see results.md).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.recommenders.instances import Instance
from cost_models.recommender.options import PricedOptions
from cost_models.specs.recommender.sharding import Option
from planner.recommender.search import ShardingAnswer

GIB = 1024**3
PER_MS = GIB / 1000
HBM_CAP, HBM_RATE, NODE_RATE = 80 * GIB, 2039 * PER_MS, 300 * PER_MS
KINDS = {"data_parallel": "copy", "table_wise": "whole", "column_wise": "column", "row_wise": "row"}
PARTS = ("fwd_compute", "fwd_comms", "bwd_comms", "bwd_compute")
"""Parts of a shard's price, here as stages."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What TorchRec did with an instance."""

    value: float
    """Its objective: milliseconds of the GPU that does most."""
    stages: float
    """Milliseconds of its plan where each part ends before the next begins."""
    seconds: float
    """CPU time of its `plan`."""


class TorchRec:
    """Its view of one instance."""

    def __init__(self, instance: Instance) -> None:
        import torch
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner import ParameterConstraints, Topology

        self.instance = instance
        self.topology = Topology(
            world_size=instance.gpus,
            local_world_size=min(8, instance.gpus),
            compute_device="cuda",
            hbm_cap=HBM_CAP,
            hbm_mem_bw=HBM_RATE,
            intra_host_bw=NODE_RATE,
        )
        names = [f"t{number}" for number in range(len(instance.tables))]
        self.constraints = {
            name: ParameterConstraints(
                sharding_types=list(KINDS),
                compute_kernels=["dense", "fused"],
                pooling_factors=[table.pooling],
            )
            for name, table in zip(names, instance.tables, strict=True)
        }
        self.module = EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    num_embeddings=table.rows,
                    embedding_dim=table.width,
                    feature_names=[f"f_{name}"],
                )
                for name, table in zip(names, instance.tables, strict=True)
            ],
        )
        self.sharders = [EmbeddingBagCollectionSharder()]

    def planner(self, **kind: Any) -> Any:
        """A planner of this instance; by default TorchRec's own."""
        from torchrec.distributed.planner import EmbeddingShardingPlanner

        return EmbeddingShardingPlanner(
            topology=self.topology,
            batch_size=self.instance.batch,
            constraints=self.constraints,
            stats=[],
            debug=False,
            **kind,
        )

    def plan(self) -> Peer:
        """Its plan, priced by itself."""
        planner = self.planner()
        start = time.process_time()
        planner.plan(self.module, self.sharders)
        seconds = time.process_time() - start
        best = planner._best_plan
        return Peer(self.rate(best), stages(best, self.instance.gpus), seconds)

    def rate(self, plan: list[Any]) -> float:
        """TorchRec's own objective of a plan."""
        from torchrec.distributed.planner.perf_models import NoopPerfModel

        return float(NoopPerfModel(self.topology).rate(plan))

    def enumerated(self) -> tuple[list[Any], PricedOptions, float]:
        """Its options with prices, the same as ours read them, and the seconds that it took to price them."""
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
        from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation

        start = time.process_time()
        reserved = HeuristicalStorageReservation(percentage=0.15).reserve(
            topology=self.topology,
            batch_size=self.instance.batch,
            module=self.module,
            sharders=self.sharders,
            constraints=self.constraints,
        )
        enumerator = EmbeddingEnumerator(
            topology=reserved, batch_size=self.instance.batch, constraints=self.constraints
        )
        options = enumerator.enumerate(self.module, self.sharders)
        seconds = time.process_time() - start
        return options, _priced(options, self.instance, reserved), seconds

    def ranked(self, options: list[Any], answer: ShardingAnswer) -> list[Any]:
        """TorchRec's options as our answer chooses and places them."""
        by_table = _by_table(options)
        plan = []
        firsts = _first_of_class(options)
        rows_of = {}
        at = 0
        for name in dict.fromkeys(firsts.values()):
            for option in by_table[name]:
                rows_of[at] = (name, by_table[name].index(option))
                at += 1
        order = _order(options)
        for name, row, placed in zip(order, answer.rows, answer.sharding.tables, strict=True):
            option = by_table[name][rows_of[row][1]]
            for nth, shard in enumerate(option.shards):
                shard.rank = placed.at[nth] if placed.at else nth
            plan.append(option)
        return plan


def stages(plan: list[Any], gpus: int) -> float:
    """Milliseconds of a plan where each part of all tables ends before the next begins."""
    load = np.zeros((gpus, len(PARTS)))
    for option in plan:
        for shard in option.shards:
            load[shard.rank] += [getattr(shard.perf, part) for part in PARTS]
    return float(load.max(axis=0).sum())


def _by_table(options: list[Any]) -> dict[str, list[Any]]:
    """Options of each table that can be told apart, in TorchRec's order."""
    found: dict[str, list[Any]] = {}
    for option in options:
        found.setdefault(option.name, []).append(option)
    return found


def _key(options: list[Any]) -> tuple[Any, ...]:
    """What prices of a table look like: alike tables have equal ones."""
    return tuple(
        (
            one.sharding_type,
            one.compute_kernel,
            tuple(
                (
                    *(getattr(shard.perf, part) for part in PARTS),
                    shard.perf.prefetch_compute,
                    shard.storage.hbm,
                    shard.storage.ddr,
                )
                for shard in one.shards
            ),
        )
        for one in options
    )


def _first_of_class(options: list[Any]) -> dict[tuple[Any, ...], str]:
    """Of each class of alike tables the name of the first."""
    first: dict[tuple[Any, ...], str] = {}
    for name, own in _by_table(options).items():
        first.setdefault(_key(own), name)
    return first


def _order(options: list[Any]) -> list[str]:
    """Names of all tables, class by class, as our tables are numbered."""
    classes: dict[tuple[Any, ...], list[str]] = {}
    for name, own in _by_table(options).items():
        classes.setdefault(_key(own), []).append(name)
    return [name for names in classes.values() for name in names]


def _priced(options: list[Any], instance: Instance, reserved: Any) -> PricedOptions:
    """TorchRec's prices; of options over all GPUs each holds as much as the one that holds most."""
    by_table, firsts = _by_table(options), _first_of_class(options)
    classes = [[by_table[name] for name in [first]] for first in dict.fromkeys(firsts.values())]
    sizes = dict.fromkeys(firsts.values(), 0)
    for own in by_table.values():
        sizes[firsts[_key(own)]] += 1
    rows = [(number, one) for number, [own] in enumerate(classes) for one in own]
    forms = [KINDS[one.sharding_type] for _, one in rows]
    placed = np.array([form in ("whole", "column") for form in forms])
    seconds = np.array(
        [
            np.max([[getattr(shard.perf, part) for part in PARTS] for shard in one.shards], axis=0)
            for _, one in rows
        ]
    )
    device = np.array([max(shard.storage.hbm for shard in one.shards) for _, one in rows], dtype=float)
    host = np.array([max(shard.storage.ddr for shard in one.shards) for _, one in rows], dtype=float)
    shards = np.where(placed, [len(one.shards) for _, one in rows], 0)
    return PricedOptions(
        options=tuple(
            Option("column", int(number)) if number > 1 else Option(form if form != "column" else "whole")  # type: ignore[arg-type]
            for form, number in zip(forms, shards.tolist(), strict=True)
        ),
        table_class=np.array([number for number, _ in rows]),
        shards=shards,
        shard_seconds=seconds * placed[:, None],
        everywhere_seconds=seconds * ~placed[:, None],
        shard_bytes=(device * placed)[:, None],
        everywhere_bytes=(device * ~placed)[:, None],
        shard_host_bytes=host * placed,
        everywhere_host_bytes=host * ~placed * min(8, instance.gpus),
        counts=np.array([sizes[first] for first in dict.fromkeys(firsts.values())]),
        fixed=np.zeros(len(PARTS)),
        stage_floors=np.zeros(len(PARTS)),
        fixed_bytes=np.zeros(1),
        device_memory=float(min(one.storage.hbm for one in reserved.devices)),
        host_memory=float(sum(one.storage.ddr for one in reserved.devices[: min(8, instance.gpus)])),
        gpus=instance.gpus,
        gpus_per_node=min(8, instance.gpus),
    )
