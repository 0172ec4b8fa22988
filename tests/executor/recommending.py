"""Jobs of the worker processes that train recommenders, and the small models they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cost_models.arrays import Array
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining

BATCH, STEPS, RATE = 24, 4, 0.2


def model(combiner: str = "sum", interaction: str = "none", *, hashed: bool = False) -> RecommenderSpec:
    """Six tables, of few and of many rows, two alike, one of a wide half."""
    kinds: dict[str, Any] = {"combiner": combiner, "hashed": hashed}
    return RecommenderSpec(
        name="small",
        tables=(
            TableSpec(name="many", rows=211, width=8, pooling=4.0, **kinds),
            TableSpec(name="few", rows=3, width=8, pooling=2.0, **kinds),
            TableSpec(name="twin", rows=40, width=8, pooling=3.0, count=2, **kinds),
            TableSpec(name="once", rows=17, width=8, pooling=1.0),
        ),
        wide=(TableSpec(name="wide", rows=23, width=1, pooling=3.0),),
        dense_features=5,
        bottom_mlp=(6, 8),
        interaction=Interaction(kind=interaction, layers=2, rank=3),
        top_mlp=(12, 1),
    )


def trained(
    spec: RecommenderSpec,
    shardings: list[str],
    optimizer: str,
    per_node: int | None = None,
    shares: int = 1,
    batch: int = BATCH,
    clip: float | None = None,
) -> list[tuple[list[float], dict[str, Array]]]:
    """(losses of all ranks added up, how far rows of every table and the dense weights went) of each sharding."""
    return [one_run(spec, sharding, optimizer, per_node, shares, batch, clip) for sharding in shardings]


def one_run(
    spec: RecommenderSpec,
    sharding: str,
    optimizer: str,
    per_node: int | None,
    shares: int,
    batch: int,
    clip: float | None = None,
) -> tuple[list[float], dict[str, Array]]:
    import torch.distributed as dist

    from executor.data.clicks import MadeUpClicks
    from executor.embeddings.exchanges import Places
    from executor.recommender.engine import RecommenderEngine
    from executor.run_config import EngineOptions

    ranks = dist.get_world_size()
    training = RecommenderTraining(global_batch=batch, precision="fp32", optimizer=optimizer)
    engine = RecommenderEngine(
        spec,
        parse_sharding(sharding, spec.num_tables),
        training,
        Places(ranks, per_node or ranks),
        torch.device("cpu"),
        options=EngineOptions(clip=clip),
    )
    engine.shares = shares
    engine.set_rate(RATE if optimizer == "sgd" else RATE / 10)
    clicks = MadeUpClicks(spec, batch, seed=0, jagged=True)
    losses, before = [], whole_tables(engine)
    for step in range(STEPS):
        loss, _ = engine.step(clicks.slice(step, dist.get_rank(), ranks))
        losses.append(float(engine.embeddings.peers.sum_in_order(torch.tensor([loss]))))
    after = whole_tables(engine)
    return losses, {name: after[name] - before[name] for name in after}


def whole_tables(engine: Any) -> dict[str, Array]:
    """Every table put together from all ranks, and the dense network."""
    import torch.distributed as dist

    found: dict[str, Array] = {}
    for index, (name, table) in enumerate(
        zip(engine.model.table_names, engine.embeddings.tables, strict=True)
    ):
        total = torch.zeros(table.rows, table.width, dtype=torch.float64)
        for part, holding in engine.embeddings.holdings.items():
            if part.table != index or (part.rank is None and dist.get_rank()):
                continue
            rows = part.first + part.residue + part.ways * torch.arange(part.held_rows)
            values = torch.cat([tier.weights for tier, _ in holding.tiers()])
            if holding.keys is not None:
                values = by_key(holding, values, name, table)
            values = values.double()
            total[rows, part.begin : part.end] += values
        dist.all_reduce(total)
        found[name] = total.numpy()
    for name, parameter in engine.network.named_parameters():
        found[name] = parameter.detach().double().numpy().copy()
    return found


def by_key(holding: Any, values: torch.Tensor, name: str, table: TableSpec) -> torch.Tensor:
    """Rows of a hashed slice where direct rows of the keys' numbers would be; those of no key as they begin."""
    from executor.embeddings.holding import EMPTY, InitialRows

    size = {"rows": table.rows, "width": table.width}
    all_rows = InitialRows(name=name, seed=0, **size).of_keys(torch.arange(len(values)), holding.part)
    keys = holding.keys.by_row()
    all_rows[keys[keys != EMPTY]] = values[keys != EMPTY].float()
    return all_rows


def save_and_resume(
    spec: RecommenderSpec,
    sharding: str,
    optimizer: str,
    folder: Path,
    resume: bool,
    steps: int,
    per_node: int | None = None,
) -> tuple[list[float], dict[str, Array], list[str]]:
    """(losses of the steps trained here, whole tables afterwards, notes); saved after the last of them."""
    import torch.distributed as dist

    from executor.checkpoints.checkpointer import Checkpointer
    from executor.data.clicks import MadeUpClicks
    from executor.embeddings.exchanges import Places
    from executor.recommender.engine import RecommenderEngine
    from executor.recommender.train import RecommenderState
    from executor.run_config import EngineOptions, Saving

    ranks = dist.get_world_size()
    training = RecommenderTraining(
        global_batch=BATCH, precision="fp32", optimizer=optimizer, dense_optimizer="adam"
    )
    parsed = parse_sharding(sharding, spec.num_tables)
    places = Places(ranks, per_node or ranks)
    engine = RecommenderEngine(spec, parsed, training, places, torch.device("cpu"))
    engine.shares = 4 // ranks
    engine.set_rate(RATE / 10)
    state = RecommenderState(engine, EngineOptions())
    checkpointer = Checkpointer(state, Saving(folder=folder, every=1, keep=3, resume=resume), "made-up")
    resumed = checkpointer.resume() if resume else None
    first = resumed.step if resumed else 0
    clicks = MadeUpClicks(spec, BATCH, seed=0, jagged=True)
    losses = []
    for step in range(first, first + steps):
        loss, _ = engine.step(clicks.slice(step, dist.get_rank(), ranks))
        losses.append(float(engine.embeddings.peers.sum_in_order(torch.tensor([loss]))))
    checkpointer.save(first + steps)
    checkpointer.wait()
    return losses, whole_tables(engine), list(resumed.notes if resumed else ())


def peak_among_others(plan: Any) -> tuple[dict[str, int], int]:
    """(bytes on the device by part at the peak of the quietest of three steps, bytes of host memory) of this rank:
    gloo's thread may let go of a message late."""
    import torch.distributed as dist

    from executor.data.clicks import MadeUpClicks
    from executor.embeddings.exchanges import Places
    from executor.recommender.engine import RecommenderEngine
    from executor.recommender.train import held_on_host, peak_memory

    ranks, rank = dist.get_world_size(), dist.get_rank()
    places = Places(ranks, plan.cluster.gpus_per_node)
    engine = RecommenderEngine(plan.model, plan.sharding, plan.training, places, torch.device("cpu"))
    engine.set_rate(0.01)
    clicks = MadeUpClicks(plan.model, plan.training.global_batch, seed=0)
    engine.step(clicks.slice(0, rank, ranks))
    peaks = [peak_memory(engine, clicks.slice(step, rank, ranks)) for step in (1, 2, 3)]
    return min(peaks, key=lambda one: sum(one.values())), held_on_host(engine)
