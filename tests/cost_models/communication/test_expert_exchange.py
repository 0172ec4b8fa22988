"""Tokens on their way to experts: how many ranks and nodes they go to, what hides, and what the host launches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from asking import ask, change, columns, only_links

from cost_models.axes.layout import parse_layout
from cost_models.communication.by_axis import expert_seconds
from cost_models.communication.topology import axis_groups
from cost_models.compute.block import block_seconds
from cost_models.compute.gemm import device_of
from cost_models.files import catalog
from cost_models.memory.activations import activation_bytes
from cost_models.operators.traffic import destinations
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.seconds import Pieces, layer_backward, layer_forward
from cost_models.question import Question
from cost_models.specs.choices import SelectiveDrops
from cost_models.specs.transformer import ExpertGroups

SEQUENCE = 4096


def asked(model: str = "deepseek-v3", precision: str = "bf16", **facts: Any) -> Question:
    """On 256 H100 without latencies and start-ups, at the links' full rates."""
    job = {"global_batch": 256, "sequence_length": SEQUENCE, "precision": precision}
    return only_links(ask(model, "dgx-h100", 256, stack="megatron-core", facts=facts, **job))


def exchange(question: Question, *layouts: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    x = columns(*layouts)
    return expert_seconds(question, x, axis_groups(question.cluster, x))


def choices(experts: int, chosen: int, groups: ExpertGroups | None) -> Iterator[tuple[int, ...]]:
    """Every choice of experts that routing allows, each as often as it is likely."""
    if groups is None:
        yield from combinations(range(experts), chosen)
        return
    size = experts // groups.count
    for open_groups in combinations(range(groups.count), groups.per_token):
        allowed = [group * size + one for group in open_groups for one in range(size)]
        yield from combinations(allowed, chosen)


@pytest.mark.parametrize(
    "groups", [None, ExpertGroups(count=4, per_token=2), ExpertGroups(count=2, per_token=1)]
)
def test_destinations_are_those_of_all_choices(groups: ExpertGroups | None) -> None:
    mixture = {"num_experts": 16, "experts_per_token": 3, "expert_groups": groups}
    model = catalog.load_model("deepseek-v3").model_copy(update=mixture)
    parts = np.array([1, 2, 4, 8, 16])
    reached = [
        [len({expert * int(count) // 16 for expert in choice}) for choice in choices(16, 3, groups)]
        for count in parts
    ]
    np.testing.assert_allclose(destinations(model, parts), np.mean(reached, axis=1), rtol=1e-12)


def test_a_token_crosses_to_a_node_once() -> None:
    """ep64 on 8 nodes: DeepSeek-V3 chooses 4 groups of 8, so 3.63 nodes of 4 at most, 7/8 of them elsewhere; the
    network sets the pace, there and back."""
    question = asked()
    nodes = destinations(question.model, np.array([8]))[0]
    assert 3.5 < nodes < 4
    link = question.cluster.links.inter_node
    by_hand = 2 * nodes * 7 / 8 * SEQUENCE * 7168 * 2 / link.bandwidth * 58 / 61
    assert exchange(question, "dp256 ep64")[0] == pytest.approx(by_hand)
    copies = exchange(asked(expert_dispatch="copies"), "dp256 ep64")[0]
    assert copies == pytest.approx(by_hand * 8 * 56 / 64 / (nodes * 7 / 8))


def test_tokens_travel_in_16_bits_whatever_multiplies_them() -> None:
    wide, narrow = (exchange(asked(precision=precision), "dp256 ep64") for precision in ("bf16", "fp8"))
    assert narrow == wide


def test_what_is_hidden_is_no_longer_than_compute_and_slows_it() -> None:
    x = columns("dp256 ep64 zero1")
    apart = Pieces(asked(overlap_expert_exchange=0.0), x, data_parallel=False)
    behind = Pieces(asked(overlap_expert_exchange=1.0), x, data_parallel=False)
    window = (behind.block.forward + behind.block.backward) / 2
    np.testing.assert_allclose(behind.exposed_experts, np.maximum(0.0, behind.experts - window))
    np.testing.assert_allclose(apart.exposed_experts, apart.experts)
    contended = change(asked(overlap_expert_exchange=1.0), hardware={"overlap_slowdown": 0.25})
    slowed = Pieces(contended, x, data_parallel=False)
    hidden = np.minimum(slowed.experts, window)
    np.testing.assert_allclose(slowed.exposed_experts - behind.exposed_experts, hidden / 4)
    for term in (layer_forward(slowed), layer_backward(slowed)):
        assert (term["ep_comm"] > 0).all()
        assert (term["ep_hidden"] > 0).all()


def test_deepseeks_own_run_takes_about_what_it_took() -> None:
    """180 thousand H800 hours for 10¹² tokens (arXiv 2412.19437, table 1): 19.9 s a step on 2048 GPUs, with a further
    token predicted (section 4.2)."""
    model = catalog.load_model("deepseek-v3").model_copy(update={"further_tokens": 1})
    job = {"global_batch": 15360, "sequence_length": SEQUENCE, "precision": "fp8"}
    question = ask(model, "hgx-h800", 2048, stack="deepseek", **job)
    layout = parse_layout("pp16 dp128 ep64 mbs1 zero1 layers=4*15,1")
    priced = estimate(question, layout)
    seconds = 180e3 * 3600 / 2048 * 15360 * SEQUENCE / 1e12
    assert priced.fits
    assert 0.9 < priced.step_seconds / seconds < 1.1
    assert priced.time["ep_comm"] < priced.hidden_comm["ep_comm"] / 2
    kept = estimate(change(question, stack={"recomputes_latent_heads": False}), layout)
    assert kept.peak_bytes > priced.peak_bytes
    assert kept.step_seconds < priced.step_seconds


def test_recomputing_experts_keeps_their_input_and_exchanges_again() -> None:
    """`--recompute-modules moe`: of the mixture a block keeps what its norm returned, and the rest runs twice."""
    x = columns("dp256 ep8 zero1")
    question = asked("qwen3-30b-a3b", selective_drops="experts")
    none, selective, full = activation_bytes(question, x).block[0]
    copies, inner, rows = 8 * 2048 * 2, 8 * 768 * 2, 2048 * 2
    gone = SEQUENCE * (copies + 3 * inner) + SEQUENCE * rows  # inputs of up, activation, down; router's input
    back = SEQUENCE * copies if not question.stack.weighs_inside_experts else 0
    assert none - selective == pytest.approx(gone + back - SEQUENCE * rows)
    assert full < selective < none
    backward = layer_backward(Pieces(question, x, data_parallel=False))
    np.testing.assert_allclose(backward["ep_comm"][0, 1], 2 * backward["ep_comm"][0, 0])
    np.testing.assert_allclose(backward["cp_comm"][0], 0)
    assert 0 < backward["recompute"][0, 1] < backward["recompute"][0, 2]


@pytest.mark.parametrize("drops", ["latent-heads", "expert-activations", "norms"])
def test_outputs_that_are_made_again_are_not_kept(drops: SelectiveDrops) -> None:
    """`--recompute-modules mla_up_proj moe_act layernorm`: what reads an output drops it, what makes it runs again."""
    x = columns("tp2 dp128 ep8 etp1 zero1")
    question = asked("deepseek-v3", selective_drops=drops)
    model = question.model
    latent, mixture = model.latent_attention, model.moe_share
    assert latent is not None
    heads = model.query_size + model.kv_size + model.value_size
    gone = {
        "latent-heads": heads / 2,
        # each tensor rank sends its own tokens
        "expert-activations": mixture * 8 * model.moe_ffn_hidden_size / 2,
        "norms": (1 + mixture) * model.hidden_size,
    }[drops]
    none, selective, _ = activation_bytes(question, x).block[0]
    assert none - selective == pytest.approx(2 * SEQUENCE * gone)
    again = [
        block_seconds(asked("deepseek-v3", selective_drops=own), x, device_of(question), data_parallel=False)
        for own in (drops, "core", (drops, "core"))
    ]
    recomputed, core, both = (seconds.recomputed[0, 1] for seconds in again)
    assert 0 < recomputed < again[0].recomputed[0, 2] / 4
    assert both == pytest.approx(recomputed + core)
