"""Peak memory of recommenders on CPUs: what the tracker sees in a step is what the plan says, within 2 %."""

from __future__ import annotations

import pytest
from effort import few
from recommending import peak_among_others

from cost_models.files.catalog import load_recommender
from cost_models.files.loading import resolve_cluster
from cost_models.recommender.dense import dense_state_bytes
from cost_models.recommender.question import complete_recommender
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from executor.emulate.recommender import emulate
from executor.recommender.engine import DENSE_OPTIMIZERS, DenseNetwork
from planner.recommender.plan import make_recommender_plan

CASES = [  # precision: in bf16 the exchange of gradients fills most, in fp32 the dense network
    (2, "bf16", "table:0-7=whole@0,1,0,1,0,1,0,1"),
    (2, "fp32", "table:0-7=whole@0,1,1,1,0,0,1,0"),
    (2, "bf16", "table:0-7=row"),
    (2, "fp32", "table:0-7=row"),
    (1, "bf16", "table:0-7=whole@0,0,0,0,0,0,0,0"),
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
