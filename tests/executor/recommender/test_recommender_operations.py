"""Operations that the executor's host launches: the stack's file has as many as torch's dispatcher sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.files.catalog import load_recommender
from cost_models.files.loading import resolve_cluster
from cost_models.recommender.options import option_columns
from cost_models.recommender.prices import fixed_launch_seconds, launch_seconds
from cost_models.recommender.question import complete_recommender
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining

PRICED = 32
"""Operations of the dense network that are priced for themselves: five layers of five, less the gradient of the
features, copies and `dot`."""
LAYOUTS = {
    "whole": "table:0-7=whole@0,1,0,1,0,1,0,1",
    "copy": "table:0-7=copy",
    "row": "table:0-7=row",
    "column": "table:0-7=column2@0,1,0,1,0,1,0,1,0,1,0,1,0,1,0,1",
    "hot": "table:0-7=hot(0.1)+whole@0,1,0,1,0,1,0,1",
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_operations_are_those_of_the_stack(precision: str, processes) -> None:
    for optimizer in ("sgd", "rowwise-adagrad"):
        training = RecommenderTraining(global_batch=64, precision=precision, optimizer=optimizer)
        question = complete_recommender(load_recommender("dlrm-tiny"), resolve_cluster("local", 2), training)
        layouts = LAYOUTS if optimizer == "sgd" else {"whole": LAYOUTS["whole"]}
        counted = processes.run(2, _counted, question.model, training, list(layouts.values()))[0]
        for (name, layout), seen in zip(layouts.items(), counted, strict=True):
            said = _said(question, layout)
            said[3] += PRICED
            placed = [1, 1, 1, 1, 1, 1] if name != "copy" else [0, 1, 0, 1, 0, 1]
            for stage, (one, other) in enumerate(zip(said, seen, strict=True)):
                if placed[stage]:
                    assert one == pytest.approx(other, rel=0.06, abs=3), (name, optimizer, stage)


def _said(question: Any, layout: str) -> np.ndarray:
    """(K,) operations of rank 0, which has every other table."""
    model = question.model
    tables = parse_sharding(layout, model.num_tables).tables
    kinds = list(zip(model.class_of_table, (one.option for one in tables), strict=True))
    shard, everywhere = launch_seconds(question, option_columns(question, kinds))
    mine = np.array([placed.at.count(0) if placed.at else placed.option.form == "row" for placed in tables])
    total = mine @ shard + everywhere.sum(axis=0) + fixed_launch_seconds(question)
    return np.asarray(total / question.hardware.kernel_seconds)


def _counted(model: Any, training: RecommenderTraining, layouts: list[str]) -> list[list[int]]:
    import torch
    import torch.distributed as dist
    from torch.utils._python_dispatch import TorchDispatchMode

    from executor.data.clicks import MadeUpClicks
    from executor.embeddings.exchanges import Places
    from executor.recommender.engine import RecommenderEngine

    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    ranks, found = dist.get_world_size(), []
    for layout in layouts:
        sharding = parse_sharding(layout, model.num_tables)
        engine = RecommenderEngine(model, sharding, training, Places(ranks, ranks), torch.device("cpu"))
        engine.set_rate(0.01)
        clicks = MadeUpClicks(model, training.global_batch, seed=0).slice(0, dist.get_rank(), ranks)
        engine.step(clicks)
        calls = []
        for stage in engine.stages(clicks):
            with Counter() as counter:
                stage()
            calls.append(counter.calls)
        found.append(calls)
    return found
