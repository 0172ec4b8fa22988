"""Predicted peak memory against torch's own tracker on fake tensors: models far larger than a test may allocate."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from effort import few
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from training import GPT, LLAMA, plan_for

from executor.axes.context import share_sequence
from executor.engine.blocks import recompute_activations
from executor.engine.engine import loss
from executor.measure.report import predicted_parts
from executor.models.positions import WholeSequence
from executor.models.transformer import Transformer
from planner.plan import Plan

MICROBATCH, SEQUENCE = 2, 1024
SIZE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_heads": 16,
    "num_layers": 12,
    "vocab_size": 8192,
    "max_positions": SEQUENCE,
}
SHAPES: dict[str, dict[str, Any]] = {"gpt": GPT | SIZE, "llama": LLAMA | SIZE | {"ffn_hidden_size": 2752}}
ERROR = 0.0005
NORMS_KEPT = 0.025
"""A Llama shape without recomputation: RMS norms written out keep a little less than the model says."""


@pytest.mark.parametrize(("shape", "recompute"), [*product(SHAPES, ("none", "full", "selective"))])
@few(1)
def test_the_peak_of_a_step_is_what_torch_tracks(shape: str, recompute: str) -> None:
    plan = plan_for(
        f"mbs{MICROBATCH} recompute={recompute}", SHAPES[shape], global_batch=8, sequence_length=SEQUENCE
    )
    predicted = predicted_parts(plan.prediction.rank_memory[0])
    training = sum(predicted.values()) - predicted["optimizer"]  # no update is tracked
    loose = shape == "llama" and recompute == "none"
    assert training == pytest.approx(tracked_peak(plan), rel=NORMS_KEPT if loose else ERROR)


def tracked_peak(plan: Plan) -> float:
    """Bytes at the peak of one microbatch, forward and backward, with gradients that stay from step to step."""
    model = plan.model
    with FakeTensorMode():
        part = Transformer(model, vocabulary=model.vocab_size, dropout=0.0, has_embedding=True, has_head=True)
        share_sequence(part, WholeSequence())
        recompute_activations(part, plan.layout.stage_recompute[0])
        for parameter in part.parameters():
            parameter.grad = torch.zeros_like(parameter)
        tracker = MemTracker()
        tracker.track_external(part)
        tokens = torch.zeros((MICROBATCH, SEQUENCE), dtype=torch.long)
        with tracker:
            loss(part(tokens), tokens).backward()  # type: ignore[no-untyped-call]
    (device,) = tracker.get_tracker_snapshot("peak").values()
    return float(device["Total"])
