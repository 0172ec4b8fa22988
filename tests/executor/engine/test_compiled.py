"""Compiled blocks train what the others do; and over tensor ranks only because they wait."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex
from effort import few, some_of
from torch.utils.flop_counter import FlopCounterMode
from training import GPT, LATENT, LLAMA, MOE, SHARED, plan_for, traced, train

from cost_models.specs.transformer import TransformerSpec
from executor.models import positions as sequences
from executor.models.transformer import Block
from planner.plan import Plan

STEPS = 2
ALIBI = GPT | {"positions": "alibi"}
WINDOWED = LLAMA | {"attention_window": 4}
IN_TURNS = WINDOWED | {"window_pattern": ["window", "full"], "norm_placement": "around"}
SIDE_BY_SIDE = GPT | {"parallel_block": True}
TWO_NORMS = SIDE_BY_SIDE | {"parallel_norms": 2}


def compiled(plan: Plan, steps: int = STEPS) -> list[tuple[float, float]]:
    """As `training.train`, with blocks that are compiled."""
    with traced():
        return train(plan, steps, True, compile=True)


LAYOUTS = {
    "recomputed": (ALIBI, "mbs4 recompute=full:2/selective"),
    "shared experts": (SHARED, "dp2 mbs2 ep2 zero3"),
    "context": (MOE, "cp2 mbs4 ep2"),
    "tensor, zero3": (LLAMA, "tp2 sp mbs2 zero3 recompute=full:2/selective"),
    "tensor, latent": (LATENT, "tp2 mbs4"),
    "pipeline": (LLAMA, "tp2 sp pp2 mbs2 vpp2 schedule=interleaved"),
    "in turns": (IN_TURNS, "mbs4 recompute=selective"),
    "tensor, two norms": (TWO_NORMS, "tp2 sp mbs4 zero3 recompute=full:1"),
}
USUAL = ("recomputed", "shared experts", "tensor, zero3", "tensor, latent")


@pytest.mark.parametrize("case", some_of(list(LAYOUTS), *USUAL))
@few(1)
def test_compiled_blocks_train_the_same(case: str, processes) -> None:
    """Routed experts stay as they are inside compiled blocks, since how many copies each gets is known in the step."""
    model, layout = LAYOUTS[case]
    plan = plan_for(layout, model)
    expected = processes.run(plan.layout.num_gpus, train, plan, STEPS, True)[0]
    got = processes.run(plan.layout.num_gpus, compiled, plan)[0]
    assert got == [pytest.approx(step, rel=1e-5) for step in expected]


@few(1)
@pytest.mark.parametrize(
    "change", [{"attention_window": 24}, {"positions": "alibi"}], ids=["window", "alibi"]
)
def test_blocks_of_windows_are_compiled_whole(change: dict[str, Any], monkeypatch) -> None:
    """As for a GPU: no break of the graph at attention, and output and gradients are those of the dense mask."""
    spec = TransformerSpec(**LLAMA, head_dim=16).model_copy(update=change)
    torch.manual_seed(0)
    block = Block(spec, dropout=0.0)
    x_BSD = torch.randn(2, 40, spec.hidden_size, requires_grad=True)
    expected = outcome(block, x_BSD)
    monkeypatch.setattr(sequences, "_DEVICES", ("cpu",))
    # it wants a GPU for the backward pass
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)
    assert sequences.suits_flex(torch.zeros(1, 1, 1, 16))
    with FlopCounterMode(display=False):
        assert not sequences.suits_flex(torch.zeros(1, 1, 1, 16))  # whoever watches sees a dense mask
    try:
        got = outcome(torch.compile(block, backend="aot_eager", fullgraph=True), x_BSD)
    finally:
        torch._dynamo.reset()
    for one, other in zip(got, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def outcome(block: Any, x_BSD: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What it makes of them, and the gradient of its sum."""
    out = block(x_BSD)
    return out, *torch.autograd.grad(out.square().sum(), (x_BSD,))
