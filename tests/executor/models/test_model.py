"""The module has the parameters and runs the FLOPs that the cost model, and torch, count."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from flop_counter import FlopCounter
from initialising import initialise
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from training import GPT, LATENT, LLAMA, MOE, SHARED, T5

from cost_models.operators.flops import model_flops
from cost_models.operators.parameters import padded_vocabulary, total_parameters
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import RotaryScaling, TransformerSpec
from executor.engine.engine import loss
from executor.models import attention
from executor.models.attention import WrittenOut
from executor.models.experts import MoE, choose_experts
from executor.models.positions import slowed
from executor.models.transformer import Transformer

SPECS: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "llama": LLAMA,
    "alibi": GPT | {"positions": "alibi", "attention_bias": False, "vocab_multiple": 96},
    "gemma": LLAMA
    | {"norm_placement": "around", "qk_norm": True, "activation": "gelu-tanh", "embedding_scale": 5.7},
    "phi": GPT | {"parallel_block": True, "tied_embeddings": False, "head_bias": True},
    "bloom": GPT | {"embedding_norm": True},
    "part of a head": LLAMA | {"rotary": {"dim": 4, "pattern": [True, False]}, "attention_scale": 0.1},
    "mixture": MOE,
    "routed": SHARED
    | {"router_bias": True, "shared_expert_gate": True, "num_moe_layers": 2, "moe_layers": [0, 2]},
    "latent": LATENT | {"latent_attention": LATENT["latent_attention"] | {"value_dim": 12}},
}


def build(fields: dict[str, Any], **slice_of: Any) -> tuple[TransformerSpec, Transformer]:
    spec = TransformerSpec.model_validate(fields)
    model = Transformer(spec, vocabulary=int(padded_vocabulary(spec, 1)), **slice_of)
    initialise(model, 0, tied=spec.tied_embeddings)
    return spec, model


def test_what_attention_found_is_gone_when_the_feed_forward_begins() -> None:
    """Nothing keeps it for the backward pass; over tensor ranks it is one of the largest tensors of a block."""
    _, model = build(GPT)
    found: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []
    for block in model.blocks.values():
        block.attention.register_forward_hook(lambda module, given, out: found.append(weakref.ref(out)))
        block.mlp.register_forward_pre_hook(lambda module, given: alive.append(found[-1]() is not None))
    model(torch.zeros(1, 8, dtype=torch.long))
    assert alive == [False] * len(model.blocks)


def test_a_gpt_block_has_12hh_plus_13h_parameters() -> None:
    """h = 32: attention 4h² + 4h, MLP 8h² + 5h, two layer norms 4h."""
    _, model = build(GPT)
    assert sum(p.numel() for p in model.blocks["0"].parameters()) == 12 * 32**2 + 13 * 32


@pytest.mark.parametrize("name", SPECS)
def test_parameters_are_those_of_the_cost_model(name: str) -> None:
    spec, model = build(SPECS[name])
    assert sum(p.numel() for p in model.parameters()) == total_parameters(spec)


@pytest.mark.parametrize(
    ("change", "farthest"),
    [
        ({}, 2 * 3),  # two blocks, each as far as its window
        ({"window_pattern": ["window", "full"]}, 15),
        ({"window_pattern": ["full", "window"]}, 15),
        ({"window_kind": "chunked"}, 3),  # 12 to 15 are the last chunk
    ],
    ids=["window", "window, full", "full, window", "chunked"],
)
def test_each_block_sees_as_far_as_its_window(change: dict[str, Any], farthest: int) -> None:
    """Which tokens the last of sixteen hangs on: change one, and see whether the answer there changes."""
    _, model = build(LLAMA | {"num_layers": 2, "attention_window": 4} | change)
    tokens = torch.arange(16)
    changed = torch.stack([tokens, *(tokens.index_fill(0, torch.tensor([at]), 63) for at in range(16))])
    with torch.no_grad():
        answers = model(changed)[:, -1]
    moved = [(one != answers[0]).any().item() for one in answers[1:]]
    assert moved == [15 - at <= farthest for at in range(16)]


def test_experts_are_in_the_blocks_that_are_named() -> None:
    _, model = build(SHARED | {"num_moe_layers": 2, "moe_layers": [0, 2]})
    assert [isinstance(block.mlp, MoE) for block in model.blocks.values()] == [True, False, True, False]


@pytest.mark.parametrize(
    ("scored_by", "chosen"),
    [("best", [1, 0]), ("two best", [2, 3])],  # of groups 0-1 (0.6, 0.9) and 2-3 (0.8, 0.75)
)
def test_a_token_chooses_its_group_first(scored_by: str, chosen: list[int]) -> None:
    """The best expert is in the first group, the two best together are in the second; weights sum to the scale."""
    groups = {"count": 2, "per_token": 1, "scored_by": scored_by}
    spec = TransformerSpec.model_validate(SHARED | {"expert_groups": groups, "routing_scale": 2.5})
    scores = torch.tensor([0.6, 0.9, 0.8, 0.75]).logit().view(1, 1, 4)
    _, weights, found = choose_experts(spec, scores)
    assert found.flatten().tolist() == chosen
    assert weights.sum().item() == pytest.approx(2.5)


def test_llama3_slows_turns_that_a_first_sequence_does_not_complete() -> None:
    """Of turns made 8, 2.5 and 0.5 times in 100 tokens: the first is kept, the last slowed, the second halfway."""
    scaling = RotaryScaling(kind="llama3", factor=10.0, first_positions=100, low_turns=1.0, high_turns=4.0)
    speeds = torch.tensor([8.0, 2.5, 0.5]) * 2 * math.pi / 100
    assert torch.allclose(slowed(speeds, scaling) / speeds, torch.tensor([1.0, 0.55, 0.1]))
    sharp = scaling.model_copy(update={"high_turns": 1.0})
    assert torch.allclose(slowed(speeds, sharp) / speeds, torch.tensor([1.0, 1.0, 0.1]))


@pytest.mark.parametrize("name", [name for name, fields in SPECS.items() if "num_experts" not in fields])
def test_flops_of_a_step_are_torchs_and_the_models(name: str) -> None:
    """All three exactly: torch's counter, ours, and the numerator of MFU."""
    spec, model = build(SPECS[name])
    tokens = torch.arange(2 * 16).reshape(2, 16)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as torchs, FlopCounter() as ours:
        loss(model(tokens), tokens).backward()  # type: ignore[no-untyped-call]
    job = TrainingSpec(global_batch=2, sequence_length=16, precision="fp32")
    assert ours.products == torchs.get_total_flops() == model_flops(spec, job)


def test_two_stacks_run_what_is_counted(monkeypatch) -> None:
    """And scores inside a stack once more: the backward pass makes them again, as flash kernels do."""
    monkeypatch.setattr(attention, "kernel_for", lambda met: WrittenOut())
    spec = TransformerSpec.model_validate(T5)
    model = Transformer(spec, vocabulary=spec.vocab_size)
    initialise(model, 0, tied=spec.tied_embeddings)
    source, target = (torch.arange(2 * length).reshape(2, length) for length in (16, 12))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as torchs:
        loss(model(source, target), target).backward()  # type: ignore[no-untyped-call]
    job = TrainingSpec(global_batch=2, sequence_length=16, target_length=12, precision="fp32")
    again = 2 * 2 * spec.query_size * (2 * 16 * 16 + 2 * 12 * 12)
    assert torchs.get_total_flops() == model_flops(spec, job) + again
