"""Jobs of the worker processes that train recommenders, and the small models they train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cost_models.arrays import Array
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining

if TYPE_CHECKING:
    from executor.data.clicks import Clicks
    from executor.recommender.engine import RecommenderEngine

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


def engine_and_clicks(
    spec: RecommenderSpec,
    sharding: str,
    training: RecommenderTraining,
    per_node: int | None = None,
    **how: Any,
) -> tuple[RecommenderEngine, Callable[[int], Clicks]]:
    """The engine of this rank, and its share of the samples of a step; `jagged` bags are of unlike length."""
    import torch.distributed as dist

    from executor.data.clicks import MadeUpClicks
    from executor.embeddings.exchanges import Places
    from executor.recommender.engine import RecommenderEngine
    from executor.run_config import EngineOptions

    ranks, rank = dist.get_world_size(), dist.get_rank()
    clicks = MadeUpClicks(spec, training.global_batch, seed=0, jagged=how.pop("jagged", True))
    places, parsed = Places(ranks, per_node or ranks), parse_sharding(sharding, spec.num_tables)
    options = EngineOptions(**how)
    engine = RecommenderEngine(spec, parsed, training, places, torch.device("cpu"), options=options)
    return engine, lambda step: clicks.slice(step, rank, ranks)


def steps_of(engine: RecommenderEngine, clicks: Callable[[int], Clicks], steps: Iterable[int]) -> list[float]:
    """Losses of all ranks, added up in their order."""
    losses = [engine.step(clicks(step))[0] for step in steps]
    return [float(engine.embeddings.peers.sum_in_order(torch.tensor([loss]))) for loss in losses]


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
    training, runs = RecommenderTraining(global_batch=batch, precision="fp32", optimizer=optimizer), []
    for sharding in shardings:
        engine, clicks = engine_and_clicks(spec, sharding, training, per_node, clip=clip)
        engine.shares = shares
        engine.set_rate(RATE if optimizer == "sgd" else RATE / 10)
        before = whole_tables(engine)
        losses, after = steps_of(engine, clicks, range(STEPS)), whole_tables(engine)
        runs.append((losses, {name: after[name] - before[name] for name in after}))
    return runs


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
    from executor.recommender.train import RecommenderState
    from executor.run_config import EngineOptions, RunConfig

    kinds = {"optimizer": optimizer, "dense_optimizer": "adam"}
    training = RecommenderTraining(global_batch=BATCH, precision="fp32", **kinds)  # type: ignore[arg-type]
    engine, clicks = engine_and_clicks(spec, sharding, training, per_node)
    engine.shares = 4 // dist.get_world_size()
    engine.set_rate(RATE / 10)
    state = RecommenderState(engine, EngineOptions())
    checkpointer = Checkpointer(
        state, RunConfig(checkpoint=folder, every=1, keep=3, resume=resume), "made-up"
    )
    resumed = checkpointer.resume() if resume else None
    first = resumed.step if resumed else 0
    losses = steps_of(engine, clicks, range(first, first + steps))
    checkpointer.save(first + steps)
    checkpointer.wait()
    return losses, whole_tables(engine), list(resumed.notes if resumed else ())


def peak_among_others(plan: Any) -> tuple[dict[str, int], int]:
    """(bytes on the device by part at the peak of the quietest of three steps, bytes of host memory) of this rank:
    gloo's thread may let go of a message late."""
    from executor.recommender.train import held_on_host, peak_memory

    job = (plan.model, plan.layout, plan.training, plan.cluster.gpus_per_node)
    engine, clicks = engine_and_clicks(*job, jagged=False)
    engine.set_rate(0.01)
    engine.step(clicks(0))
    peaks = [peak_memory(engine, clicks(step)) for step in (1, 2, 3)]
    return min(peaks, key=lambda one: sum(one.values())), held_on_host(engine)
