"""Gradients of the dense network are added up while the tables exchange theirs and update rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from recommending import BATCH, model

from cost_models.files.catalog import load_recommender
from cost_models.files.loading import resolve_cluster
from cost_models.recommender.options import STAGES
from cost_models.recommender.prices import fixed_seconds, links_of, reduction_seconds
from cost_models.recommender.question import complete_recommender
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining

_LONGEST = 20.0


def test_sums_arrive_while_the_tables_are_at_work(processes) -> None:
    """Rank 1 stays away from the tables' exchange, and from its rows, until the dense network's messages are here: so
    they travel while rank 0 is in that exchange, and while rows are updated."""
    assert processes.run(2, _held_back, model())[1] == ["shares", "sums"]


def _held_back(spec: Any) -> list[str]:
    import torch
    import torch.distributed as dist

    from executor.data.clicks import MadeUpClicks
    from executor.embeddings.exchanges import Places
    from executor.recommender.engine import RecommenderEngine

    training = RecommenderTraining(global_batch=BATCH, precision="fp32")
    sharding = parse_sharding("table:0-5=whole@0,1,0,0,1,0", spec.num_tables)
    engine = RecommenderEngine(spec, sharding, training, Places(2, 2), torch.device("cpu"))
    arrived: list[str] = []

    def after(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def held(*arguments: Any) -> Any:
            work, until = engine._sums._work, time.monotonic() + _LONGEST
            assert work is not None
            while not work.is_completed():
                assert time.monotonic() < until, f"{what} do not travel beside the tables"
                time.sleep(1e-3)
            arrived.append(what)
            return call(*arguments)

        return held

    if dist.get_rank() == 1:
        tables = engine.embeddings
        tables.backward_exchange = after("shares", tables.backward_exchange)  # type: ignore[method-assign]
        tables.update = after("sums", tables.update)  # type: ignore[method-assign]
    engine.set_rate(0.1)
    engine.step(MadeUpClicks(spec, BATCH, seed=0).slice(0, dist.get_rank(), 2))
    return arrived


def test_the_price_has_them_behind_the_update_where_devices_have_links_of_their_own() -> None:
    training, update = RecommenderTraining(global_batch=4096), STAGES.index(STAGES.update)
    for cluster, hidden in (("dgx-h100", True), ("local", False)):
        question = complete_recommender(
            load_recommender("dlrm-tiny"), resolve_cluster(cluster, 8), training, stack="meshwright"
        )
        fixed, beside = (of[update] for of in fixed_seconds(question, links_of(question)))
        seconds = reduction_seconds(question, links_of(question))
        assert (beside == seconds) if hidden else (beside == 0 and fixed > seconds), cluster
