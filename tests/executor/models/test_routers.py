"""What a report says of loads that are known, and what a router does with scores that are."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from flop_counter import FlopCounter
from initialising import initialise
from training import MOE

from cost_models.specs.transformer import TransformerSpec
from executor.models import experts
from executor.models.experts import ExpertPlace, MoE, Routed, RoutedExperts
from executor.transformer.train import router_reports


def test_an_even_load_and_one_expert_for_all() -> None:
    even, single = router_reports(torch.tensor([[5, 5, 5, 5], [0, 0, 0, 0], [0, 12, 0, 0]]), 40.0)
    assert (even.layer, even.largest_load, even.smallest_load) == (0, 1.0, 1.0)
    assert even.entropy == pytest.approx(1.0)
    assert even.mean_load == 10.0
    assert (single.layer, single.largest_load, single.smallest_load, single.entropy) == (2, 4.0, 0.0, 0.0)


def make_routed(**fields: Any) -> tuple[TransformerSpec, Routed]:
    spec = TransformerSpec.model_validate(MOE | fields)
    routed = Routed(spec, ExpertPlace())
    initialise(routed, 0, tied=False)
    return spec, routed


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalized", [True, False])
def test_weights_are_those_of_the_chosen(scores: str, normalized: bool) -> None:
    """Token by token, expert by expert, as the definition has it."""
    spec, routed = make_routed(router_scores=scores, normalized_routing=normalized)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, spec.hidden_size, generator=generator)
    out = routed(x)
    values = routed.router(x).softmax(-1) if scores == "softmax" else routed.router(x).sigmoid()
    for token, value, got in zip(x.flatten(0, 1), values.flatten(0, 1), out.flatten(0, 1), strict=True):
        weights, chosen = value.topk(spec.experts_per_token)
        if normalized:
            weights = weights / weights.sum()
        expected = torch.zeros(spec.hidden_size)
        for weight, number in zip(weights, chosen.tolist(), strict=True):
            held = routed.experts
            gate, up = held.gate[number] @ token, held.up[number] @ token
            expected += weight * (held.down[number] @ (torch.nn.functional.silu(gate) * up))
        assert torch.allclose(got, expected, atol=1e-6)


def test_the_balance_loss_is_least_where_load_is_even() -> None:
    """By hand: 4 experts, 2 a token. Even: coefficient · 4 · Σ ¼ · ¼ = the coefficient. All on two: twice that."""
    spec, routed = make_routed(load_balance=0.5)
    even = torch.full((1, 8, 4), 0.25)
    assert routed._balance(even, torch.tensor([[4, 4, 4, 4]])) == pytest.approx(0.5)
    lopsided = torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(1, 8, 4)
    assert routed._balance(lopsided, torch.tensor([[8, 8, 0, 0]])) == pytest.approx(1.0)
    assert spec.load_balance == 0.5


def test_the_balance_loss_evens_the_load() -> None:
    """Gradient descent on nothing but the balance loss brings a lopsided router nearer to an even load."""
    _, routed = make_routed(load_balance=1.0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 32, 32, generator=generator) + 0.5
    torch.nn.init.normal_(routed.router.weight, std=0.3, generator=generator)
    entropies = []
    for _ in range(40):
        routed(x).backward(torch.zeros_like(x))
        with torch.no_grad():
            routed.router.weight -= 0.3 * routed.router.weight.grad
        routed.router.weight.grad = None
        (report,) = router_reports(routed.take_load()[None], 1.0)
        entropies.append(report.entropy)
    assert entropies[-1] > entropies[0] + 0.02


@pytest.mark.parametrize("biased", [False, True])
def test_the_grouped_product_is_the_loop(biased: bool, monkeypatch) -> None:
    """Same values, gradients and FLOPs, with an expert that gets nothing."""
    spec = TransformerSpec.model_validate(MOE | {"mlp_bias": biased})
    module = RoutedExperts(spec, ExpertPlace())
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    results = []
    for grouped in (False, True):
        monkeypatch.setattr(experts, "_has_grouped_product", lambda rows, weight, grouped=grouped: grouped)
        rows = torch.randn(9, spec.hidden_size, generator=torch.Generator().manual_seed(1)).requires_grad_()
        module.zero_grad()
        with FlopCounter() as counter:
            out = module(rows, [4, 0, 3, 2])
            out.square().sum().backward()
        gradients = [rows.grad, *(parameter.grad for parameter in module.parameters())]
        results.append((out.detach(), gradients, counter.products))
    (out, gradients, products), (other, other_gradients, other_products) = results
    assert torch.allclose(out, other, atol=1e-6)
    for one, two in zip(gradients, other_gradients, strict=True):
        assert torch.allclose(one, two, atol=1e-5)
    assert products == other_products == 3 * 3 * 2 * 9 * 32 * 48


def test_experts_that_are_all_here_wait_for_no_count(monkeypatch) -> None:
    """On a GPU a number read by the host would wait for all that was launched, once a mixture and microbatch."""
    module = MoE(TransformerSpec.model_validate(MOE), ExpertPlace())
    initialise(module, 3, tied=False)
    read = mock.Mock(side_effect=AssertionError("the host reads a tensor"))
    for name in ("tolist", "item", "__int__", "__bool__", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, read)
    module(torch.randn(2, 8, MOE["hidden_size"])).sum().backward()


def test_parts_of_the_experts_make_the_whole() -> None:
    """What ranks hold of them, by expert and by width, is what one rank would."""
    spec = TransformerSpec.model_validate(MOE | {"mlp_bias": True})
    whole = MoE(spec, ExpertPlace())
    initialise(whole, 3, tied=False)
    second_of_upper = MoE(spec, ExpertPlace(first=2, count=2, part=1, parts=2))
    initialise(second_of_upper, 3, tied=False)
    mine, theirs = second_of_upper.routed.experts, whole.routed.experts
    assert torch.equal(mine.up, theirs.up[2:, 24:])
    assert torch.equal(mine.down, theirs.down[2:, :, 24:])
    assert torch.equal(mine.down_bias, theirs.down_bias[2:])
