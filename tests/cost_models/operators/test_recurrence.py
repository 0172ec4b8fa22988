"""Blocks whose heads carry states: parameters by hand, FLOPs as torch counts them, shares of ranks, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from asking import ask, columns
from torch.utils.flop_counter import FlopCounterMode

from cost_models.axes.layout import parse_layout
from cost_models.communication.by_axis import tensor_seconds
from cost_models.communication.topology import axis_groups
from cost_models.compute.gemm import device_of
from cost_models.compute.mixing import scan_flops, scan_seconds
from cost_models.files import catalog
from cost_models.memory.activations import activation_bytes
from cost_models.operators.block import block_operators
from cost_models.operators.flops import causal_flops, forward_flops, model_flops
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.question import Question
from cost_models.specs.kinds import kinds_of
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import Recurrence, TransformerSpec
from planner.rules.legality import check

LENGTH = 64
MAMBA = Recurrence(kind="mamba2", heads=8, head_dim=16, groups=2, state_dim=32, chunk=16)
DELTA = Recurrence(kind="gated-delta", heads=4, head_dim=16, groups=2, state_dim=32, chunk=16)


def asked(name: str, *, stack: str = "megatron-core", gpus: int = 64, sequence: int = 4096) -> Question:
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
    question = replace(asked("jamba-52b"), model=model_with(Recurrence(**fields), separate_halves=True))
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
    question = asked("deepseek-v3.2", sequence=65536, gpus=64)
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


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ("tp16 dp4 mbs1", "`tp16` splits 8 groups of heads with states"),
        ("tp8 cp32 mbs1", "tp8 x cp32 ranks share 128 heads of its state spaces"),
    ],
)
def test_degrees_that_split_no_heads_are_refused(layout: str, told: str) -> None:
    question = asked("nemotron-h-8b", gpus=256 if "cp" in layout else 64, sequence=8192)
    assert any(told in words.what for words in check(question, parse_layout(layout)))


def test_a_scan_costs_as_much_a_token_at_any_length_and_its_heads_are_shared() -> None:
    def seconds(layout: str, length: int) -> float:
        question = asked("nemotron-h-8b", sequence=length)
        return float(np.sum(scan_seconds(question, columns(layout), device_of(question))))

    once = seconds("tp1 dp64 mbs1", 8192)
    assert seconds("tp1 dp64 mbs1", 32768) == pytest.approx(4 * once)
    assert [seconds("tp4 dp16 mbs1", 8192), seconds("tp1 cp4 dp16 mbs1", 8192)] == pytest.approx(
        [once / 4] * 2
    )
