"""An engine that is let go of takes its model with it: what tries several in one process would run out of memory."""

from __future__ import annotations

import gc
import weakref

import pytest
from training import engine_and_batches, plan_for

from planner.plan import Plan


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
