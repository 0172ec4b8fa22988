"""Operators of a block besides attention: experts, recurrence, adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from asking import ask, change, columns, only_links
from torch.utils.flop_counter import FlopCounterMode

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.communication.by_axis import expert_seconds, tensor_seconds
from cost_models.communication.topology import axis_groups
from cost_models.compute.gemm import device_of, gemm_seconds, matrix_seconds
from cost_models.compute.mixing import scan_flops, scan_seconds
from cost_models.files import catalog
from cost_models.memory.activations import activation_bytes
from cost_models.memory.states import state_bytes
from cost_models.operators.block import attention_operators, block_operators
from cost_models.operators.flops import causal_flops, forward_flops, model_flops
from cost_models.operators.parameters import missing_targets, parameters, total_parameters, trained_parameters
from cost_models.operators.record import tokens_on_rank
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import memory_terms, stage_costs, time_terms
from cost_models.question import Question
from cost_models.specs.kinds import kinds_of
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec, TuningSpec
from cost_models.specs.transformer import Recurrence, TransformerSpec
from planner.rules.legality import check

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


def test_every_expert_is_somewhere() -> None:
    """Experts of all ranks of a stage, less their replicas, are those of the model."""
    for text in ["dp64", "ep8 dp64", "tp4 dp16 ep8 etp1", "tp2 cp2 dp16 ep4", "tp2 dp32 ep4 etp4"]:
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


LENGTH = 64
MAMBA = Recurrence(kind="mamba2", heads=8, head_dim=16, groups=2, state_dim=32, chunk=16)
DELTA = Recurrence(kind="gated-delta", heads=4, head_dim=16, groups=2, state_dim=32, chunk=16)


def recurrent(name: str, *, stack: str = "megatron-core", gpus: int = 64, sequence: int = 4096) -> Question:
    return ask(name, "dgx-h100", gpus, stack=stack, global_batch=512, sequence_length=sequence)


def test_a_block_of_nemotron_h_by_hand() -> None:
    """h = 4096, 128 heads of 64, 8 groups of 128: inputs 2 x 8192 + 2 x 1024 + 128 = 18,560 wide, convolution of 4 taps
    and a bias over 10,240, three numbers a head, 8,192 gains, outputs 8192 x 4096; one norm."""
    mamba, mlp, attention = kinds_of(catalog.load_model("nemotron-h-8b"), 8192)[1]
    ends = 2 * 131072 * 4096 + 4096
    counts = [(total_parameters(one) - ends) // 52 for one in (mamba, mlp, attention)]
    assert counts[0] == 4096 * 18560 + 5 * 10240 + 3 * 128 + 8192 + 8192 * 4096 + 4096
    assert counts[1:] == [2 * 4096 * 21504 + 4096, 4096 * (2 * 4096 + 2 * 1024) + 4096]


def test_a_block_of_jamba_by_hand() -> None:
    """h = 4096, 8,192 channels of 16 numbers, steps of rank 256: inputs 2 x 8192 wide, four taps and a bias, 288
    numbers of all channels and their gains, steps back to channels, A of 16 a channel, D and the step's bias."""
    recurrence = {one.name: one for one in block_operators(catalog.load_model("jamba-52b"))}
    counts = {name: sum(one.weights.values()) for name, one in recurrence.items()}
    assert counts["state inputs"] == 4096 * 2 * 8192
    assert counts["short convolution"] == 5 * 8192
    assert counts["keys, queries, step latent"] == 8192 * (256 + 2 * 16)
    assert (counts["norms of keys, queries, step latent"], counts["step sizes"]) == (288, 256 * 8192)
    assert (counts["state scan"], counts["gated norm"]) == ((16 + 2) * 8192, 0)
    assert counts["state outputs"] == 8192 * 4096


def test_mamba_keeps_what_its_kernel_saves_and_is_split_by_channels() -> None:
    """`MambaInnerFn` saves what came in, twice as wide as channels, what it returned, the latent, keys and queries,
    these also as laid out, and 2 x 16 numbers in fp32 a channel for each 2,048 tokens; the block its input twice."""
    fields: dict[str, Any] = {"kind": "mamba1", "heads": 256, "state_dim": 16, "step_rank": 8}
    question = replace(recurrent("jamba-52b"), model=model_with(Recurrence(**fields), separate_halves=True))
    kept = activation_bytes(question, columns("dp64 mbs1")).block[0, 0]
    token = 2 * (3 * 256 + 8 + 2 * 16 * 2) + 2 * 4 * 256 * 16 / 2048 + 2 * 2 * 128
    assert kept == pytest.approx(4096 * token)
    told = [words.what for words in check(question, parse_layout("tp8 dp8 mbs1"))]
    assert not any("states" in one for one in told)
    split = columns("tp8 dp8 mbs1")
    links = axis_groups(question.cluster, split).tp
    less = question.model.recurrence.model_copy(update={"state_dim": 1})  # type: ignore[union-attr]
    thin = replace(question, model=question.model.model_copy(update={"recurrence": less}))
    sent, sent_thin = (tensor_seconds(one, split, links).block_forward[0] for one in (question, thin))
    assert sent > sent_thin


def test_an_indexer_scores_all_tokens_and_attention_sees_those_it_picks() -> None:
    """64 heads of 128 from a latent of 1,536, one key of 7,168 with its norm, 64 weights; of 65,536 tokens attention
    has 2,048, and the indexer's scores are 2 x 64 x 128 each."""
    model, dense = catalog.load_model("deepseek-v3.2"), catalog.load_model("deepseek-v3")
    own = 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128
    assert total_parameters(model) - total_parameters(dense) == 61 * own
    ours, theirs = (forward_flops(one, 65536) for one in (model, dense))
    assert ours.block_attention == theirs.block_attention * 2048 / 65536
    assert ours.indexer == 2 * 65536**2 * 64 * 128
    assert forward_flops(model, 2048).indexer == 0
    training = TrainingSpec(global_batch=8, sequence_length=65536)
    assert model_flops(model, training) < model_flops(dense, training)
    masked = ours.block_attention * 2048 / 65536 / 2 + ours.indexer / 2  # where fewer tokens are before it
    found = model_flops(model, training) - causal_flops(model, training)
    assert found == pytest.approx(3 * 8 * 61 * masked, rel=1e-9)


def test_an_indexer_goes_round_no_ring() -> None:
    question = recurrent("deepseek-v3.2", sequence=65536, gpus=64)
    for way, refused in (("ring", True), ("all-gather", False)):
        told = [words.what for words in check(question, parse_layout(f"cp8 dp8 mbs1 context={way}"))]
        assert any("an indexer" in one for one in told) == refused


@pytest.mark.parametrize("mixer", [MAMBA, DELTA])
def test_states_token_by_token_take_the_flops_that_mfu_counts(mixer: Recurrence) -> None:
    state = torch.zeros(mixer.heads, mixer.state_dim, mixer.head_dim, device="meta")
    key, value = (
        torch.zeros(mixer.heads, 1, width, device="meta") for width in (mixer.state_dim, mixer.head_dim)
    )
    with FlopCounterMode(display=False) as counted:
        if mixer.delta:
            value = value - torch.bmm(key, state)
        state = state + torch.bmm(key.transpose(1, 2), value)
        torch.bmm(key, state)
    (scan,) = [one for one in block_operators(model_with(mixer)) if one.kind == "scan"]
    assert scan.flops == counted.get_total_flops()


def model_with(mixer: Recurrence, **more: Any) -> TransformerSpec:
    fields = {"num_layers": 4, "hidden_size": 128, "num_heads": 4, "vocab_size": 1000}
    return TransformerSpec(**fields, recurrence=mixer, **more)


@pytest.mark.parametrize("mixer", [MAMBA, DELTA])
def test_a_scan_chunk_by_chunk_executes_what_is_priced(mixer: Recurrence) -> None:
    """Products of every chunk, all of it: kernels may leave out what the causal mask hides."""
    chunks, c = LENGTH // mixer.chunk, mixer.chunk
    delta = mixer.delta
    shared = mixer.heads if delta else mixer.groups

    def rows(heads: int, width: int) -> torch.Tensor:
        return torch.zeros(heads * chunks, c, width, device="meta")

    keys, values = rows(mixer.heads, mixer.state_dim), rows(mixer.heads, mixer.head_dim)
    with FlopCounterMode(display=False) as counted:
        scores = torch.bmm(rows(shared, mixer.state_dim), rows(shared, mixer.state_dim).transpose(1, 2))
        mixed = rows(mixer.heads, c) if scores.shape[0] != keys.shape[0] else scores
        states = torch.bmm(keys.transpose(1, 2), values)
        if delta:
            inverse = torch.bmm(keys, keys.transpose(1, 2))
            values, decayed = torch.bmm(inverse, values), torch.bmm(inverse, keys)
            values = values - torch.bmm(decayed, states)
        torch.bmm(mixed, values) + torch.bmm(keys, states)
    assert scan_flops(mixer) * LENGTH == counted.get_total_flops()


def test_flops_and_parameters_are_sums_over_kinds() -> None:
    for name in ("qwen3-next-80b", "nemotron3-nano"):
        model = catalog.load_model(name)
        kinds, each = kinds_of(model, 4096)
        blocks = [forward_flops(one, 4096).block for one in each]
        assert forward_flops(model, 4096).block * model.num_layers == pytest.approx(
            sum(count * value for count, value in zip(kinds.counts, blocks, strict=True))
        )
        weights = [parameters(one, np.array([2])) for one in each]
        assert parameters(model, np.array([2])).block[0] * model.num_layers == pytest.approx(
            sum(count * one.block[0] for count, one in zip(kinds.counts, weights, strict=True))
        )
        training = TrainingSpec(global_batch=8, sequence_length=4096)
        assert causal_flops(model, training) < model_flops(model, training)


def test_degrees_that_split_no_heads_are_refused() -> None:
    for layout, told in [
        ("tp16 dp4 mbs1", "`tp16` splits 8 groups of heads with states"),
        ("tp8 cp32 mbs1", "tp8 x cp32 ranks share 128 heads of its state spaces"),
    ]:
        question = recurrent("nemotron-h-8b", gpus=256 if "cp" in layout else 64, sequence=8192)
        assert any(told in words.what for words in check(question, parse_layout(layout)))


def test_a_scan_costs_as_much_a_token_at_any_length_and_its_heads_are_shared() -> None:
    def seconds(layout: str, length: int) -> float:
        question = recurrent("nemotron-h-8b", sequence=length)
        return float(np.sum(scan_seconds(question, columns(layout), device_of(question))))

    once = seconds("tp1 dp64 mbs1", 8192)
    assert seconds("tp1 dp64 mbs1", 32768) == pytest.approx(4 * once)
    assert [seconds("tp4 dp16 mbs1", 8192), seconds("tp1 cp4 dp16 mbs1", 8192)] == pytest.approx(
        [once / 4] * 2
    )


SIZES = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 1024}
BARE = dict.fromkeys(("tied_embeddings", "attention_bias", "attention_output_bias", "mlp_bias"), False)
KINDS = {"name": "small", "gated_mlp": True, "norm": "rmsnorm", "positions": "rotary"}
SMALL = TransformerSpec.model_validate(SIZES | BARE | KINDS)
SHORT = 32


def tuned(*, precision: str = "fp32", stack: str = "meshwright", **tuning: Any) -> Question:
    job = {"global_batch": 8, "sequence_length": SHORT, "precision": precision}
    return ask(SMALL, "dgx-h100", stack=stack, tuning=TuningSpec(**tuning), **job)


def test_llama_by_hand() -> None:
    """Rank 16 on all matrices of Llama 3 8B trains 41,943,040 parameters, on q and v alone 6,815,744."""
    llama = catalog.load_model("llama3-8b")
    assert trained_parameters(llama, TuningSpec()) == 41_943_040
    assert trained_parameters(llama, TuningSpec(targets=("q", "v"))) == 6_815_744
    assert missing_targets(llama, ("q", "experts", "kv_a")) == ("experts", "kv_a")
    assert missing_targets(catalog.load_model("gpt2-xl"), ("gate", "mlp")) == ("gate",)


def test_states_and_flops_of_adapters_by_hand() -> None:
    """Frozen matrices multiply forward and towards inputs, adapters towards weights as well and alone have states."""
    h, kv, f, rank = SMALL.hidden_size, SMALL.kv_size, SMALL.ffn_hidden_size, 8
    matrices = [(h, h), (h, kv), (h, kv), (h, h), (h, f), (h, f), (f, h)]
    frozen = 2 * sum(m * n for m, n in matrices) + h * SMALL.vocab_size
    trained = 2 * rank * sum(m + n for m, n in matrices)
    question = tuned(rank=rank)
    core = 3 * SMALL.num_layers * forward_flops(SMALL, SHORT, 1).block_attention
    flops = model_flops(SMALL, question.training) / 8 - core
    assert flops == 2 * SHORT * (2 * frozen + 3 * trained)
    vectors = (2 * SMALL.num_layers + 1) * h + h * SMALL.vocab_size  # norms, embedding
    held = {"weights": frozen + trained + vectors, "gradients": trained, "optimizer": 2 * trained}
    terms = memory_terms(question, LayoutColumns.of([Layout()]))
    for part, elements in held.items():
        priced = SMALL.num_layers * terms["layer_static"][part] + terms["embedding_static"][part]
        assert float((priced + terms["head_static"][part])[0]) == pytest.approx(4 * elements, rel=1e-12)


def test_tensor_ranks_split_adapters_as_their_matrices() -> None:
    """By hand: A of q whole and B split, A of o split and B whole; what all have is summed once a step."""
    question = tuned(rank=8, targets=("q", "o"))
    h, columns = SMALL.hidden_size, LayoutColumns.of([Layout(tp=2)])
    counts = parameters(SMALL, columns.tp)
    states = state_bytes(question, columns)
    trained = 8 * h + 8 * h / 2 + 8 * h / 2 + 8 * h
    assert float((states.gradients * counts.block)[0]) == pytest.approx(4 * trained)
    assert time_terms(question, columns)["layer_sync"]["tp_comm"][0] > 0


@pytest.mark.parametrize(("base", "bits"), [("nf4", 4.127), ("int8", 8.5)])
def test_quantised_matrices(base: str, bits: float) -> None:
    """QLoRA's 4.127 bits a parameter, and a byte with an fp32 scale for each row of 64; norms stay as they are."""
    kept, plain = (tuned(precision="bf16", base=own) for own in (base, None))
    columns = LayoutColumns.of([Layout()])
    matrices = float(parameters(SMALL, columns.tp).block[0]) - 2 * SMALL.hidden_size
    saved = [float(memory_terms(own, columns)["layer_static"]["weights"][0]) for own in (plain, kept)]
    assert 8 * (2 - (saved[0] - saved[1]) / matrices) == pytest.approx(bits, rel=0.015)
    seconds = [time_terms(own, columns)["layer_forward"]["compute"][0] for own in (plain, kept)]
    assert seconds[1] > seconds[0]


def test_moments_of_optimizers() -> None:
    for optimizer, each in [("adamw-8bit", 2 + 8 / 256), ("adamw", 8.0), ("muon", 4.0), ("sgd", 0.0)]:
        question = tuned(precision="bf16", stack="deepspeed")
        columns, kept = LayoutColumns.of([Layout()]), {}
        for name in ("sgd", optimizer):
            own = change(question, training={"tuning": None, "optimizer": name})
            kept[name] = memory_terms(own, columns)
            assert state_bytes(own, columns).optimizer[0] == state_bytes(own, columns, "experts").optimizer[0]
        blocks = [kept[name]["layer_static"]["optimizer"][0] for name in (optimizer, "sgd")]
        assert blocks[0] - blocks[1] == pytest.approx(each * float(parameters(SMALL, columns.tp).block[0]))
        if optimizer == "muon":  # embedding and head have Adam's two
            ends = [kept[name]["head_static"]["optimizer"][0] for name in (optimizer, "sgd")]
            head = parameters(SMALL, columns.tp)
            assert ends[0] - ends[1] == pytest.approx(8 * float((head.head_matrix + head.head_vectors)[0]))
