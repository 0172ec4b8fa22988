"""Tokens on their way to experts: how many ranks and nodes they go to, what hides, and what the host launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.communication.by_axis import expert_seconds
from cost_models.communication.topology import axis_groups
from cost_models.compute.block import block_seconds
from cost_models.compute.gemm import device_of
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.memory.activations import activation_bytes
from cost_models.operators.traffic import destinations
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.seconds import Pieces, layer_backward, layer_forward
from cost_models.question import Question
from cost_models.specs.choices import SelectiveDrops
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import ExpertGroups

SEQUENCE = 4096


def asked(model: str = "deepseek-v3", precision: str = "bf16", **facts: Any) -> Question:
    """On 256 H100 without latencies and start-ups, at the links' full rates."""
    training = TrainingSpec.model_validate(
        {"global_batch": 256, "sequence_length": SEQUENCE, "precision": precision}
    )
    cluster = resolve_cluster("dgx-h100", 256)
    links = cluster.links
    inside = links.intra_node.model_copy(update={"latency": 0.0})
    between = links.inter_node.model_copy(update={"latency": 0.0})
    links = links.model_copy(update={"intra_node": inside, "inter_node": between})
    cluster = cluster.model_copy(update={"links": links})
    question = complete_question(catalog.load_model(model), cluster, training, stack="megatron-core")
    free = {
        "link_efficiency": 1.0,
        "network_efficiency": 1.0,
        "collective_seconds": 0.0,
        "overlap_slowdown": 0.0,
    }
    hardware = question.hardware.model_copy(update=free)
    return replace(question, hardware=hardware, stack=question.stack.model_copy(update=facts))


def columns(*layouts: str) -> LayoutColumns:
    return LayoutColumns.of([parse_layout(text) for text in layouts])


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


def test_inside_a_node_a_rank_gets_a_token_once() -> None:
    """ep8 with 6 of 160 experts: a token goes to 4.1 ranks and not to 6."""
    question = asked("deepseek-v2", expert_dispatch="tokens")
    ranks = destinations(question.model, np.array([8]))[0]
    ratio = exchange(question, "dp256 ep8") / exchange(
        asked("deepseek-v2", expert_dispatch="copies"), "dp256 ep8"
    )
    assert ratio[0] == pytest.approx(ranks / 6)


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
    contended = asked(overlap_expert_exchange=1.0)
    contended = replace(contended, hardware=contended.hardware.model_copy(update={"overlap_slowdown": 0.25}))
    slowed = Pieces(contended, x, data_parallel=False)
    hidden = np.minimum(slowed.experts, window)
    np.testing.assert_allclose(slowed.exposed_experts - behind.exposed_experts, hidden / 4)
    for term in (layer_forward(slowed), layer_backward(slowed)):
        assert (term["ep_comm"] > 0).all()
        assert (term["ep_hidden"] > 0).all()


def test_launches_grow_with_the_experts_of_a_rank_and_graphs_take_them() -> None:
    x = columns("dp256 ep8 zero1", "dp256 ep64 zero1")
    question = asked("qwen3-30b-a3b", "fp8", waits_for_expert_counts=True)
    launches = Pieces(question, x, data_parallel=False).launches
    dense = asked().hardware.host_layer_seconds
    assert launches == pytest.approx(dense + 1e-3 + (3e-5 + 1.1e-4) * np.array([16, 2]))
    captured = asked("qwen3-30b-a3b", "fp8", experts_in_one_kernel=True)
    assert Pieces(captured, x, data_parallel=False).launches == pytest.approx(np.zeros(2))


def test_weights_inside_experts_leave_no_copies_that_came_back() -> None:
    """Qwen3 30B: eight copies of 2048 numbers in bf16 a token and block less."""
    x = columns("dp256 ep8")
    inside, outside = (
        activation_bytes(asked("qwen3-30b-a3b", weighs_inside_experts=fact), x).block[0, 0]
        for fact in (True, False)
    )
    assert outside - inside == SEQUENCE * 8 * 2048 * 2


def test_a_step_over_eight_nodes_has_the_shorter_exchange() -> None:
    """Copies by themselves over eight nodes cost more than twice what tokens do."""
    layout = parse_layout("dp256 ep64 mbs1 zero1")
    tokens, copies = (
        estimate(asked(expert_dispatch=kind), layout).time["ep_comm"] for kind in ("tokens", "copies")
    )
    assert 2 * tokens < copies


def test_deepseeks_own_run_takes_about_what_it_took() -> None:
    """180 thousand H800 hours for 10¹² tokens (arXiv 2412.19437, table 1): 19.9 s a step on 2048 GPUs, with a further
    token predicted (section 4.2)."""
    training = TrainingSpec.model_validate(
        {"global_batch": 15360, "sequence_length": SEQUENCE, "precision": "fp8"}
    )
    model = catalog.load_model("deepseek-v3").model_copy(update={"further_tokens": 1})
    question = complete_question(model, resolve_cluster("hgx-h800", 2048), training, stack="deepseek")
    layout = parse_layout("pp16 dp128 ep64 mbs1 zero1 layers=4*15,1")
    priced = estimate(question, layout)
    seconds = 180e3 * 3600 / 2048 * 15360 * SEQUENCE / 1e12
    assert priced.fits
    assert 0.9 < priced.step_seconds / seconds < 1.1
    assert priced.time["ep_comm"] < priced.hidden_comm["ep_comm"] / 2
    stack = question.stack.model_copy(update={"recomputes_latent_heads": False})
    kept = estimate(replace(question, stack=stack), layout)
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


def test_the_host_reads_counts_before_it_launches_experts() -> None:
    """However fast the host, forward the device waits while it goes through 32 experts of the first product."""
    columns = LayoutColumns.of([parse_layout("pp1 dp256 ep8 mbs1 zero1")])
    each, cast = 3.0e-5, 1.1e-4

    def host(precision: str, **facts: Any) -> tuple[float, float]:
        question = asked(precision=precision, **{"waits_for_expert_counts": True} | facts)
        slow = replace(
            question, hardware=question.hardware.model_copy(update={"memory_efficiency": 0.01})
        )  # a device that its host is far ahead of
        pieces = Pieces(slow, columns, data_parallel=True)
        forward, backward = layer_forward(pieces)["host"], layer_backward(pieces)["host"]
        return float(forward[0]), float(backward[0, 0])

    share = 58 / 61
    assert host("bf16") == pytest.approx((share * 32 * each / 2, 0.0))
    assert host("fp8") == pytest.approx((share * 32 * (each + cast) / 2, 0.0))
    for facts in (
        {"waits_for_expert_counts": False},
        {"experts_in_one_kernel": True},
        {"overlap_expert_exchange": 1.0},
    ):
        assert host("bf16", **facts) == pytest.approx((0.0, 0.0))


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
        "expert-activations": mixture
        * 8
        * model.moe_ffn_hidden_size
        / 2,  # each tensor rank sends its own tokens
        "norms": (1 + mixture) * model.hidden_size,
    }[drops]
    none, selective, _ = activation_bytes(question, x).block[0]
    assert none - selective == pytest.approx(2 * SEQUENCE * gone)
    device = device_of(question)
    _, recomputed, full = block_seconds(question, x, device, data_parallel=False).recomputed[0]
    core = block_seconds(
        asked("deepseek-v3", selective_drops="core"), x, device, data_parallel=False
    ).recomputed[0, 1]
    assert 0 < recomputed < full / 4
    assert recomputed != pytest.approx(core)
    backward = layer_backward(Pieces(question, x, data_parallel=False))
    np.testing.assert_allclose(backward["ep_comm"][0, 1], backward["ep_comm"][0, 0])
    together = asked("deepseek-v3", selective_drops=(drops, "core"))
    both = block_seconds(together, x, device, data_parallel=False).recomputed[0, 1]
    assert both == pytest.approx(recomputed + core)
