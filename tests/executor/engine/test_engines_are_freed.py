"""An engine that is let go of takes its model with it: what tries several in one process would run out of memory."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from processes import Processes
from training import plan_for

from executor.data.batches import Batches
from executor.engine.engine import Engine
from executor.run_config import EngineOptions
from planner.plan import Plan


def outlives(plan: Plan) -> tuple[bool, bool]:
    """Whether the engine, and a parameter of it, are still there after a step and their last use."""
    engine = Engine(plan, torch.device("cpu"), EngineOptions())
    batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
    engine.step(*batches.slice(0, engine.place.dp, plan.layout.dp))
    seen = weakref.ref(engine), weakref.ref(next(engine.parts[0].parameters()))
    del engine
    gc.collect()
    return seen[0]() is not None, seen[1]() is not None


@pytest.mark.parametrize("layout", ["mbs2", "tp2 mbs2", "dp2 mbs2 zero1"])
def test_nothing_holds_an_engine(layout: str, processes: Processes) -> None:
    plan = plan_for(layout)
    assert processes.run(plan.layout.num_gpus, outlives, plan) == [(False, False)] * plan.layout.num_gpus
