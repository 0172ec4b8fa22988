"""Mixtures of experts: what is stored, computed, sent and kept, against figures worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asking import ask, columns, only_links

from cost_models.axes.layout import parse_layout
from cost_models.communication.by_axis import expert_seconds, tensor_seconds
from cost_models.communication.topology import axis_groups
from cost_models.compute.gemm import device_of, gemm_seconds, matrix_seconds
from cost_models.files import catalog
from cost_models.operators.block import attention_operators
from cost_models.operators.flops import forward_flops
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.operators.record import tokens_on_rank
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.specs.stack import StackSpec
from cost_models.specs.transformer import TransformerSpec

GPUS, SEQUENCE = 64, 4096
MIXTURES = [model for model in map(catalog.load_model, catalog.names("models")) if model.has_experts]


def asked(
    model: str | TransformerSpec = "mixtral-8x7b", stack: str = "megatron-core", **training: Any
) -> Question:
    facts = {name: training.pop(name) for name in list(training) if name in StackSpec.model_fields}
    job = {"global_batch": 64, "sequence_length": SEQUENCE} | training
    return ask(model, "dgx-h100", GPUS, stack=stack, facts=facts, **job)


def test_latent_attention_multiplies_what_it_stores() -> None:
    """DeepSeek-V3, elements of the projections: down to 1536 and 576, up to 128 heads of 192 and of 128 + 128, out."""
    model = catalog.load_model("deepseek-v3")
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    stored = sum(sum(one.weights.values()) for one in attention_operators(model))
    assert stored == attention + 1536 + 512
    flops = forward_flops(model, SEQUENCE)
    assert flops.block_attention == 2 * SEQUENCE**2 * 128 * (192 + 128)
    dense, expert = 3 * 7168 * 18432, 9 * 3 * 7168 * 2048 + 7168 * 256
    assert flops.block_matrices == pytest.approx(2 * SEQUENCE * (attention + (3 * dense + 58 * expert) / 61))


@pytest.mark.parametrize(
    "text", ["dp64", "ep8 dp64", "tp4 dp16 ep8 etp1", "tp2 cp2 dp16 ep4", "tp2 dp32 ep4 etp4"]
)
def test_every_expert_is_somewhere(text: str) -> None:
    """Experts of all ranks of a stage, less their replicas, are those of the model."""
    x = columns(text)
    for model in MIXTURES:
        split = parameters(model, x.tp, ep=x.ep, etp=x.etp)
        whole = parameters(model, np.array([1]))
        held = split.experts * x.tp * x.replicas / x.expert_replicas
        etp = int(x.etp[0])  # each part of an expert has its last bias
        last_biases = model.moe_share * model.num_experts * model.hidden_size * model.mlp_bias
        assert held[0] == pytest.approx(whole.experts[0] + (etp - 1) * last_biases), model.name
        assert split.block[0] < whole.block[0] or int(x.tp[0]) == 1


def test_rows_are_the_copies_of_all_tokens() -> None:
    """Work is conserved: over the ranks that share one set of experts the rows are k times their tokens."""
    x = columns("dp64", "dp64 ep8", "tp4 dp16 sp ep8 etp1", "tp4 dp16 sp ep8", "tp2 cp4 dp8 sp ep2 etp4")
    copies, inner = (tokens_on_rank(asked(), x, place) for place in ("copies", "expert"))
    tokens_of_a_stage = SEQUENCE * x.dp  # microbatches of one sequence
    np.testing.assert_allclose(copies * x.tp * x.replicas / x.etp, 2 * tokens_of_a_stage)
    np.testing.assert_allclose(inner * x.tp * x.replicas, 2 * tokens_of_a_stage)


def test_a_mixture_of_one_is_a_dense_model() -> None:
    """One expert that takes every token costs the device what the MLP does, but for its routing."""
    dense = catalog.load_model("mistral-7b")
    fields = dense.model_dump() | {"num_experts": 1, "experts_per_token": 1, "name": "one"}
    fields.pop("moe_ffn_hidden_size"), fields.pop("num_moe_layers")
    one = TransformerSpec.model_validate(fields)
    assert total_parameters(one) == total_parameters(dense) + one.num_layers * one.hidden_size
    x = columns("dp64 zero1", "tp2 dp32 zero1")
    # neither waits for its host, and nothing of dense tensor parallelism hides in products
    bare: dict[str, Any] = {"waits_for_expert_counts": False, "overlap_tensor_parallel": 0.0}
    bare |= {"experts_in_one_kernel": True}
    plain, routed = stage_costs(asked(dense, **bare), x), stage_costs(asked(one, **bare), x)
    np.testing.assert_allclose(routed.layer_static, plain.layer_static, rtol=1e-4)
    assert (routed.layer_forward > plain.layer_forward).all()
    assert (routed.layer_forward < 1.15 * plain.layer_forward).all()
    assert (routed.layer_activation[:, 0] > plain.layer_activation[:, 0]).all()
    np.testing.assert_allclose(routed.layer_activation[:, 2], plain.layer_activation[:, 2])


def test_experts_are_one_grouped_product() -> None:
    """Eight experts with a quarter of the copies each fill the device like one product of as many tiles."""
    question, x = asked(experts_in_one_kernel=True), columns("dp64")
    device = device_of(question)
    rows, h, f = np.array([SEQUENCE * 2 / 8]), np.array(4096.0), np.array(14336.0)
    experts = gemm_seconds(rows, 2 * f, h, device, 8) + gemm_seconds(rows, h, f, device, 8)
    router = gemm_seconds(np.array([float(SEQUENCE)]), np.array(8.0), h, device)
    attention = gemm_seconds(np.array([float(SEQUENCE)]), np.array(6144.0), h, device)
    attention = attention + gemm_seconds(np.array([float(SEQUENCE)]), h, h, device)
    assert matrix_seconds(question, x, device)[0] == pytest.approx(experts + router + attention)


def test_four_exchanges_a_block_by_hand() -> None:
    """ep8 in a node: each rank sends 7/8 of 4096·2 copies of 4096 bf16 elements, there and back, both ways."""
    question = only_links(asked())
    inside = question.cluster.links.intra_node
    x = columns("dp64 ep8", "dp64 ep1", "tp4 dp16 sp ep1 etp4", "tp4 dp16 sp ep8 etp1")
    seconds = expert_seconds(question, x, axis_groups(question.cluster, x))
    copies = SEQUENCE * 2 * 4096 * 2
    assert seconds[0] == pytest.approx(2 * 7 / 8 * copies / inside.bandwidth)
    assert seconds[1] == 0
    # gathered and scattered over etp
    assert seconds[2] == pytest.approx(2 * 3 / 4 * copies / inside.bandwidth)
    assert seconds[3] == pytest.approx(seconds[0] / 4)  # a quarter of the tokens on each rank


def test_routed_tokens_need_no_tensor_parallel_messages() -> None:
    """With sp the MLP of a mixture gathers nothing; shared experts do."""
    x = columns("tp8 dp8 sp ep8 etp1")
    seconds = {
        name: tensor_seconds(question, x, axis_groups(question.cluster, x).tp)
        for name in ("mixtral-8x7b", "deepseek-v2")
        if (question := asked(name))
    }
    routed, shared = seconds["mixtral-8x7b"], seconds["deepseek-v2"]
    assert routed.block_forward == pytest.approx(routed.embedding_forward + routed.head_forward)
    assert shared.block_forward == pytest.approx(2 * (shared.embedding_forward + shared.head_forward))


def test_expert_states_shard_over_the_ranks_that_hold_them() -> None:
    """Mixtral on 64 ranks, ep8: weights of 1/8 of the experts, their optimizer states on 8 ranks; the rest on 64."""
    question = asked()
    model = question.model
    one = parameters(model, np.array([1]))
    shared = total_parameters(model) - model.num_layers * one.experts[0]
    experts = model.num_layers * one.experts[0]
    memory = estimate(question, parse_layout("dp64 ep8 zero1")).rank_memory[0]
    assert memory["weights"] == pytest.approx(2 * (shared + experts / 8))
    assert memory["optimizer"] == pytest.approx(12 * (shared / 64 + experts / 8 / 8))
