"""Runs of a vision tower before a decoder: weights in and out, checkpoints under another layout, memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from effort import few
from initialising import initialise
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from training import LLAMA, LLAVA, TWO_IMAGES, plan_for, reported

from cost_models.operators.flops import model_flops
from cost_models.operators.parameters import padded_vocabulary
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import Tower, TransformerSpec
from executor.engine.engine import loss
from executor.measure.report import RunReport
from executor.models.adapters import freeze as freeze_parts
from executor.models.transformer import Projector, Transformer
from planner.plan import Plan


@few(2)
@pytest.mark.parametrize(
    "freeze",
    [(), ("tower",), ("tower", "projector", "embedding"), ("tower", "language"), ("embedding", "first=1")],
)
def test_flops_are_torchs(freeze: tuple[str, ...]) -> None:
    """Those of a step with and without frozen parts, exactly: where nothing before is trained is no backward pass."""
    spec = TransformerSpec.model_validate(LLAVA)
    job = TrainingSpec(global_batch=2, sequence_length=16, precision="fp32", images=2, freeze=freeze)
    model = Transformer(spec, vocabulary=int(padded_vocabulary(spec, 1)))
    initialise(model, 0, tied=False)
    freeze_parts(model, spec, job, torch.float32)
    tokens = torch.arange(2 * 16).reshape(2, 16)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as torchs:
        answer = model(torch.randn(2, 2, 3, 8, 8), tokens_BS=tokens)
        loss(answer, tokens).backward()  # type: ignore[no-untyped-call]
    assert torchs.get_total_flops() == model_flops(spec, job)


@few(2)
@pytest.mark.parametrize(
    ("layout", "model", "job"),
    [
        ("tp2 mbs2", LLAVA, TWO_IMAGES),
        ("pp2 mbs2 zero0", LLAVA, TWO_IMAGES | {"freeze": ("tower",)}),
        ("tp2 mbs2", LLAMA, {"tuning": {"rank": 4, "targets": ("all-linear",), "alpha": 8.0}}),
    ],
)
def test_bytes_are_those_of_the_plan(processes, tmp_path, layout, model, job) -> None:
    """Of towers, frozen parts and adapters."""
    report = processes.run(2, _reported, plan_for(layout, model, **job), tmp_path)[0]
    for rank in report.ranks:
        for part in ("weights", "gradients", "optimizer"):
            assert rank.memory[part] == pytest.approx(rank.predicted_memory[part], rel=0.03, abs=512), part


def _reported(plan: Plan, folder: Path) -> RunReport:
    return reported(plan, folder, steps=1, warm_up=1, waiting_steps=0)


def test_a_tower_that_pools_averages_squares_of_patches() -> None:
    """Four rows of four patches become two rows of two tokens, each the mean of four."""
    tower = Tower(layers=1, hidden_size=8, num_heads=2, image=56, merge=2, pools=True, projector_bias=False)
    projector, patches = Projector(tower, 8), torch.randn(3, 16, 8)
    torch.nn.init.eye_(projector.down.weight)
    means = patches.view(3, 2, 2, 2, 2, 8).mean((2, 4)).reshape(3, 4, 8)
    torch.testing.assert_close(projector(patches), means)
