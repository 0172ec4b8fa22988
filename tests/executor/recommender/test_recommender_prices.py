"""Peak memory, operations and one rank alone of recommenders: as the plan has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from effort import few
from recommending import engine_and_clicks, peak_among_others
from test_recommender_runs import MIXED, plan_of

from cost_models.errors import HostError, InputError, RunError
from cost_models.files.catalog import load_recommender
from cost_models.files.loading import resolve_cluster
from cost_models.recommender.dense import dense_state_bytes
from cost_models.recommender.options import STAGES, option_columns
from cost_models.recommender.prices import fixed_launch_seconds, launch_seconds
from cost_models.recommender.question import complete_recommender
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from executor.emulate.recommender import emulate
from executor.recommender.engine import DENSE_OPTIMIZERS, DenseNetwork
from planner.recommender.plan import make_recommender_plan

CASES = [  # precision: in bf16 the exchange of gradients fills most, in fp32 the dense network
    (2, "bf16", "table:0-7=whole@0,1,0,1,0,1,0,1"),
    (2, "bf16", "table:0-7=row"),
    (1, "fp32", "table:0-7=whole@0,0,0,0,0,0,0,0"),
]


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0.0), ("adagrad", 4.0), ("adam", 8.0)])
def test_the_dense_network_holds_its_optimizers_states(optimizer: str, states: float) -> None:
    """Weights and what the optimizer made of them in a step, as torch has them; numbers of steps apart."""
    from torch import nn

    training = RecommenderTraining(global_batch=64, precision="fp32", dense_optimizer=optimizer)
    question = complete_recommender(load_recommender("dlrm-tiny"), resolve_cluster("local", 1), training)
    network = DenseNetwork(question.model)
    for parameter in network.parameters():
        parameter.grad = nn.Parameter(parameter.detach().clone())
    made = DENSE_OPTIMIZERS[optimizer](network.parameters())
    made.step()
    parameters = sum(one.numel() for one in network.parameters())
    held = sum(one.nbytes for state in made.state.values() for one in state.values() if one.dim())
    assert held == states * parameters
    assert dense_state_bytes(question) == (8 + states) * parameters


@few(1)
@pytest.mark.parametrize(("ranks", "precision", "layout"), CASES)
def test_the_peak_is_the_plans(ranks: int, precision: str, layout: str, processes) -> None:
    training = RecommenderTraining(global_batch=1024, precision=precision)
    question = complete_recommender(load_recommender("dlrm-tiny"), resolve_cluster("local", ranks), training)
    plan = make_recommender_plan(question, parse_sharding(layout, 8))
    for said, (parts, _) in zip(
        plan.prediction.device_bytes, processes.run(ranks, peak_among_others, plan), strict=True
    ):
        assert float(said) == pytest.approx(sum(parts.values()), rel=0.02)


SPREAD = {  # of 64 GPUs: layout, moment at which the first is fullest; how far off at most
    "row": ("table:0-7=row", "forward exchange", 0.02),
    "copy": ("table:0-7=copy", "gradients of copies", 0.15),  # as if all tables came in as many pieces
    "hot": ("table:0-7=hot(0.05)+row", "forward exchange", 0.02),
    "column": ("table:0-7=column2@0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "update", 0.05),
}


@pytest.mark.parametrize("which", SPREAD)
def test_the_peak_of_one_rank_of_64_is_the_plans(which: str) -> None:
    """Rows over all GPUs, copies and hot rows fill most at other moments than the dense network."""
    layout, moment, most = SPREAD[which]
    training = RecommenderTraining(global_batch=8192, precision="fp32", optimizer="rowwise-adagrad")
    cluster = resolve_cluster("dgx-h100", 64)
    question = complete_recommender(load_recommender("dlrm-tiny"), cluster, training, stack="meshwright")
    alone = emulate(make_recommender_plan(question, parse_sharding(layout, 8)), 0, steps=1)
    assert alone.fullest_moment == moment
    assert sum(alone.memory_as_run.values()) == pytest.approx(alone.peak_bytes, rel=most)


LAYOUTS = ("table:0-7=row", "table:0-7=copy", MIXED)


@few(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_alone_a_rank_holds_what_it_holds_among_others(layout: str, processes) -> None:
    """Rows, optimizer states and host memory to the byte, the peak but for ids that differ from step to step."""
    plan = plan_of(layout, 2, optimizer="adagrad", global_batch=1024)
    real = processes.run(2, peak_among_others, plan)
    for rank in (0, 1):
        alone = emulate(plan, rank, steps=1)
        memory, on_host = real[rank]
        assert (alone.memory["tables"], alone.memory["optimizer"]) == (memory["tables"], memory["optimizer"])
        assert alone.memory["host memory"] == on_host
        assert alone.peak_bytes == pytest.approx(sum(memory.values()), rel=0.002)
        assert set(alone.compute_seconds) == {STAGES.lookup, STAGES.dense, STAGES.update}
        assert all(seconds > 0 for seconds in alone.compute_seconds.values())
        assert alone.step_seconds is not None


def test_what_cannot_be_emulated(monkeypatch) -> None:
    """A rank that is not there, too little memory, and a failure, after which no process group is left."""
    plan = plan_of("table:0-7=row", 2)
    with pytest.raises(InputError, match="the plan has no rank 2"):
        emulate(plan, 2)
    monkeypatch.setattr("executor.requirements.free_bytes", lambda device: 2.0**10)
    with pytest.raises(HostError, match=r"rank 1 should need .+; this cpu has .+ free: .+ are missing"):
        emulate(plan, 1)
    monkeypatch.undo()
    monkeypatch.setattr("executor.emulate.recommender.OtherRanks.draw", _failing)
    with pytest.raises(RunError, match="rank 1 cannot be emulated: no samples"):
        emulate(plan, 1)
    assert not dist.is_initialized()


def _failing(self: object, step: int) -> None:
    raise ValueError("no samples")


PRICED = 32
"""Operations of the dense network that are priced for themselves: five layers of five, less the gradient of the
features, copies and `dot`."""
COUNTED_LAYOUTS = {
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
        layouts = COUNTED_LAYOUTS if optimizer == "sgd" else {"whole": COUNTED_LAYOUTS["whole"]}
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
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    found = []
    for layout in layouts:
        engine, clicks = engine_and_clicks(model, layout, training, jagged=False)
        engine.set_rate(0.01)
        engine.step(clicks(0))
        calls = []
        for stage in engine.stages(clicks(0)):
            with Counter() as counter:
                stage()
            calls.append(counter.calls)
        found.append(calls)
    return found
