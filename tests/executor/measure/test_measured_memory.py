"""The storage tracker against torch's own, and against what can be counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from training import GPT, engine_and_batches, plan_for

from executor.measure.memory import OTHER_PART, StorageTracker
from planner.plan import Plan


def two_layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))


def test_equals_torch_mem_tracker() -> None:
    """Same model, same step: the same peak to the byte."""
    model, x = two_layers(), torch.randn(32, 64)
    theirs = MemTracker()
    theirs.track_external(model, x)
    with theirs:
        model(x).sum().backward()
    expected = theirs.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    model.zero_grad()
    ours = StorageTracker()
    ours.name("weights", model.parameters())
    ours.name(OTHER_PART, [x])
    with ours:
        model(x).sum().backward()
    assert sum(ours.peak.values()) == expected


def test_what_dies_is_forgotten_and_what_shrinks_counts_less() -> None:
    with StorageTracker() as tracker:
        kept = torch.zeros(1000)
        dropped = torch.zeros(500)
        assert tracker.now[OTHER_PART] == 6000
        del dropped
        assert tracker.now[OTHER_PART] == 4000
        kept.untyped_storage().resize_(0)
        assert tracker.now[OTHER_PART] == 0
        kept.untyped_storage().resize_(4000)
        tracker.name("weights", [kept[10:20]])
        assert tracker.now == {OTHER_PART: 0, "weights": 4000}
    assert tracker.peak == {OTHER_PART: 6000}


def peak(plan: Plan) -> dict[str, int]:
    """Measured parts of this rank, after a first step.

    Of several ranks the lesser of two steps: what gloo's threads have sent but not yet let go of counts too, so where
    others keep a machine busy a step may hold more than it needs, never less.
    """
    from executor.measure.memory import measure_memory

    engine, batch = engine_and_batches(plan)
    engine.step(*batch(0))
    steps = (1, 2) if plan.layout.num_gpus > 1 else (1,)
    measured = [measure_memory(engine, *batch(step)) for step in steps]
    return min(measured, key=lambda parts: sum(parts.values()))


MEDIUM: dict[str, Any] = GPT | {"hidden_size": 64, "vocab_size": 512}
STEP_COUNTER = 4
"""AdamW keeps its step in a tensor of one element for each parameter, one here."""


@pytest.mark.parametrize("layout", ["mbs2", "dp2 mbs2 zero0", "dp2 mbs2 zero1", "tp2 mbs2", "pp2 mbs2"])
def test_states_are_what_the_plan_says(layout: str, processes) -> None:
    """Weights, gradients and moments of ZeRO-0 and 1, to the byte."""
    plan = plan_for(layout, MEDIUM)
    ranks = processes.run(plan.layout.num_gpus, peak, plan)
    per_stage = plan.layout.tp * plan.layout.dp
    for rank, measured in enumerate(ranks):
        predicted = plan.prediction.rank_memory[rank // per_stage]
        assert measured["weights"] == predicted["weights"]
        assert measured["gradients"] == predicted["gradients"]
        assert measured["optimizer"] == predicted["optimizer"] + STEP_COUNTER
