"""The learning rate's schedule and clipping, and engines that are let go of."""

from __future__ import annotations

import gc
import weakref

import pytest
from effort import few
from training import engine_and_batches, plan_for, train, train_weights

from cost_models.errors import InputError
from executor.launch.launch import run_plan
from executor.run_config import Rate, RunConfig
from planner.plan import Plan

RATE = Rate(peak=0.2, warm_up=3, decay=6)
CLIP = 0.5
STEPS = 5
"""The rate rises for three of them."""


def test_a_rate_rises_and_falls_to_a_tenth() -> None:
    rate = Rate(peak=1.0, warm_up=4, decay=8)
    assert [rate.at(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert rate.at(4) == 1.0
    assert rate.at(6) == pytest.approx((1.0 + 0.1) / 2)
    assert rate.at(8) == rate.at(80) == pytest.approx(0.1)
    falling = [rate.at(step) for step in range(4, 9)]
    assert falling == sorted(falling, reverse=True)


def test_without_a_decay_the_peak_stays() -> None:
    assert {Rate(peak=2.0).at(step) for step in (0, 1, 1000)} == {2.0}


@few(1)
@pytest.mark.parametrize(
    "layout",
    ["pp2 dp2 mbs1 zero2", "cp2 dp2 mbs2 zero1 shard2", "tp2 cp2 mbs8 sp", "pp2 dp2 mbs2 zero3 shard1"],
)
def test_a_scheduled_and_clipped_run_is_that_of_one_process(layout: str, processes) -> None:
    """Every gradient is longer than the clip, and its norm is told as it was before."""
    (expected,) = processes.run(1, train, plan_for("mbs8"), STEPS, True, RATE, CLIP)
    assert min(norm for _, norm in expected) > CLIP
    plan = plan_for(layout)
    for curve in processes.run(plan.layout.num_gpus, train, plan, STEPS, True, RATE, CLIP):
        for got, wanted in zip(curve, expected, strict=True):
            assert got == pytest.approx(wanted, rel=1e-5)


def test_a_clipped_step_is_as_long_as_it_may_be(processes) -> None:
    """Of plain gradient descent, rate times the largest norm."""
    ((_, way),) = processes.run(1, train_weights, plan_for("mbs8"), 1, True, Rate(peak=0.2), CLIP)
    assert sum((gone**2).sum() for gone in way.values()) ** 0.5 == pytest.approx(0.2 * CLIP, rel=1e-3)


def test_what_makes_no_sense_is_told_at_once() -> None:
    with pytest.raises(InputError, match="the optimizer cannot step like that") as refused:
        run_plan(plan_for("mbs2"), RunConfig(learning_rate=-1.0, rate_warm_up=5, rate_decay=3, clip=0.0))
    assert [problem.what for problem in refused.value.problems] == [
        "a learning rate of -1.0 is not above zero",
        "a decay by step 3 ends before its start at 5",
        "a largest gradient norm of 0.0 is not above zero",
    ]


def outlives(plan: Plan) -> tuple[bool, bool]:
    """Whether the engine, and a parameter of it, are still there after a step and their last use."""
    engine, batch = engine_and_batches(plan)
    engine.step(*batch(0))
    seen = weakref.ref(engine), weakref.ref(next(engine.parts[0].parameters()))
    del engine
    gc.collect()
    return seen[0]() is not None, seen[1]() is not None


@pytest.mark.parametrize("layout", ["mbs2", "tp2 mbs2", "dp2 mbs2 zero1"])
def test_nothing_holds_an_engine(layout: str, processes) -> None:
    plan = plan_for(layout)
    assert processes.run(plan.layout.num_gpus, outlives, plan) == [(False, False)] * plan.layout.num_gpus
