"""Compiled blocks train what the others do; where they would not, a rule refuses them.

Traced and differentiated as ever, but run operator by operator (`aot_eager`), for which no compiler is needed.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from processes import Processes
from training import LLAMA, MOE, SHARED, plan_for, train

from cost_models.asking import OWN_COMPILED
from cost_models.specs.catalog import load_stack
from planner.legality import check
from planner.plan import Plan

STEPS = 2


def compiled(plan: Plan) -> list[tuple[float, float]]:
    """As `training.train`, with blocks that are compiled."""
    plain = torch.nn.Module.compile
    torch.nn.Module.compile = functools.partialmethod(plain, backend="aot_eager")  # type: ignore[method-assign]
    try:
        return train(plan, STEPS, True, compile=True)
    finally:
        torch.nn.Module.compile = plain  # type: ignore[method-assign]
        torch._dynamo.reset()


@pytest.mark.parametrize(
    ("model", "layout"),
    [(LLAMA, "mbs4"), (MOE, "mbs4"), (SHARED, "dp2 mbs2 ep2 zero3"), (MOE, "cp2 mbs4 ep2")],
)
def test_compiled_blocks_train_the_same(model: dict[str, Any], layout: str, processes: Processes) -> None:
    """Routed experts stay as they are inside compiled blocks, since how many copies each gets is known in the step."""
    plan = plan_for(layout, model)
    expected = processes.run(plan.layout.num_gpus, train, plan, STEPS, True)[0]
    got = processes.run(plan.layout.num_gpus, compiled, plan)[0]
    assert got == [pytest.approx(step, rel=1e-5) for step in expected]


def test_compiled_tensor_parallel_blocks_train_wrong(processes: Processes) -> None:
    """Every step runs, and the gradients are others: the first loss is right, and its norm is not."""
    plan = plan_for("tp2 mbs4 zero2", LLAMA)
    expected, got = processes.run(2, train, plan, 1, True)[0][0], processes.run(2, compiled, plan)[0][0]
    assert got[0] == pytest.approx(expected[0], rel=1e-5)
    assert abs(got[1] / expected[1] - 1.0) > 1e-2
    question = replace(plan.question, stack=load_stack(OWN_COMPILED))
    assert "PyTorch trains wrong without a word" in str([one.what for one in check(question, plan.layout)])
