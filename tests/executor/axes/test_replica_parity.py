"""Replicas that take different numbers of microbatches train as one process does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from effort import few, first_of, number
from training import GPT, LLAMA, MOE, plan_for, question_for, stray, train_weights

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.pipeline.pricing import estimate
from cost_models.question import mixed_question
from cost_models.specs.cluster import MixedCluster
from executor.axes.axis import share_of
from executor.doctor.examine import assumptions_of
from planner.plan import Plan, make_plan
from planner.rules.stack import require_runnable

STEPS = number(2, 4)
TOLERANCE, WAY_TOLERANCE = 1e-5, 1e-3
MODELS = {"gpt": GPT, "llama": LLAMA, "moe": MOE}


def pooled_plan(text: str, model: dict[str, Any], sizes: tuple[int, int]) -> Plan:
    """A plan on two pools of this machine's processes, of which the first is said to share its cores with others."""
    jobs = [question_for(model, gpus) for gpus in sizes]
    links = [job.cluster.links.with_inter_node(job.cluster.links.intra_node) for job in jobs]
    clusters = tuple(
        job.cluster.model_copy(update={"name": name, "links": link})
        for name, job, link in zip(("old", "new"), jobs, links, strict=True)
    )
    mixed = MixedCluster(name="mixed", pools=clusters)
    question = complete_question(jobs[0].model, mixed, jobs[0].training, stack="meshwright")
    assert question.has_pools
    old, new = question.pools
    slower = old.hardware.model_copy(update={"contention": 2.0})
    question = mixed_question(mixed, (replace(old, hardware=slower), new))
    return make_plan(question, estimate(question, parse_layout(text)))


CASES = first_of(
    3,
    [
        ("gpt", "mbs1 zero0 replicas=old,new", (1, 1)),
        ("gpt", "mbs1 zero1 replicas=old,new*3", (1, 3)),
        ("gpt", "pp2 mbs1 zero1 overlap=dp,pp replicas=old,new", (2, 2)),
        ("gpt", "mbs1 zero1 replicas=old,new", (1, 1)),
        ("llama", "tp2 mbs1 zero1 replicas=old,new", (2, 2)),
        ("moe", "mbs1 zero1 replicas=new,old*2", (2, 1)),
    ],
)


@few(2)
@pytest.mark.parametrize(("model", "text", "sizes"), CASES, ids=[f"{m} {t}" for m, t, _ in CASES])
def test_unequal_shares_train_as_one_process_does(processes, model, text, sizes) -> None:
    plan = pooled_plan(text, MODELS[model], sizes)
    shares = [share_of(plan, replica) for replica in range(plan.layout.dp)]
    assert len({share.microbatches for share in shares}) > 1
    assert [share.first for share in shares[1:]] == [share.last for share in shares[:-1]]
    assert (shares[0].first, shares[-1].last) == (0, plan.training.global_batch)
    require_runnable(plan.question, plan.layout)
    expected, way = processes.run(1, train_weights, plan_for("mbs1", MODELS[model]), STEPS, True)[0]
    for curve, own in processes.run(plan.layout.num_gpus, train_weights, plan, STEPS, True):
        for got, wanted in zip(curve, expected, strict=True):
            assert got == pytest.approx(wanted, rel=TOLERANCE)
        assert stray(own, way) < (WAY_TOLERANCE, "")


def test_of_several_pools_the_doctor_assumes_memory_alone() -> None:
    assumed = assumptions_of(pooled_plan("mbs1 zero0 replicas=old,new", GPT, (1, 1)))
    assert (assumed.seconds, assumed.known) == ({}, False)
    assert assumed.bytes_needed > 0


def test_alone_a_rank_has_its_replicas_share(processes) -> None:
    plan = pooled_plan("mbs1 zero0 replicas=old,new", GPT, (1, 1))
    for rank, shape in enumerate(processes.run(2, batch_shape, plan)):
        assert shape == (share_of(plan, rank).sequences, plan.training.sequence_length)


def batch_shape(plan: Plan) -> tuple[int, ...]:
    """Of what this rank is emulated with."""
    from executor.emulate.one_rank import tokens_of
    from executor.engine.engine import Engine
    from executor.run_config import EngineOptions

    inputs, _ = tokens_of(Engine(plan, torch.device("cpu"), EngineOptions()))
    return tuple(inputs.shape)
