"""Laws every price obeys: parts sum, nothing is lost when it is split, and better hardware is never slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.kinds import decoder_of
from cost_models.specs.training import TrainingSpec

GPUS, BATCH, BLOCKS = 64, 64, 32  # llama2-7b: 32 blocks, 32 heads


def asked(stack: str = "megatron-core", cluster: str = "dgx-a100-80gb", **training: Any) -> Question:
    spec = TrainingSpec(**{"global_batch": BATCH, "sequence_length": 2048} | training)
    return complete_question(
        catalog.load_model("llama2-7b"), resolve_cluster(cluster, GPUS), spec, stack=stack
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """A legal, evenly placed layout on 64 GPUs."""
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([p for p in (1, 2, 4, 8) if tp * p <= GPUS]))
    dp = GPUS // (tp * pp)
    mbs = draw(st.sampled_from([b for b in (1, 2, 4) if BATCH % (dp * b) == 0 and BATCH // (dp * b) >= pp]))
    microbatches = BATCH // (dp * mbs)
    vpp = draw(st.sampled_from([1, 2, 4])) if pp > 1 and microbatches % pp == 0 else 1
    schedule = draw(st.sampled_from(["1f1b", "gpipe"])) if pp > 1 and vpp == 1 else None
    return Layout(
        tp=tp,
        pp=pp,
        vpp=vpp,
        dp=dp,
        mbs=mbs,
        zero=draw(st.sampled_from([0, 1])) if dp > 1 else 0,
        sp=tp > 1 and draw(st.booleans()),
        recompute=(draw(st.sampled_from(["none", "selective", "full"])),),
        layers=(BLOCKS // (pp * vpp),) * (pp * vpp),
        **({"schedule": schedule} if schedule else {}),
    )


@settings(max_examples=60, deadline=None)
@given(layout=layouts(), stack=st.sampled_from(["megatron-2021", "megatron-core", "nemo", "meshwright"]))
def test_parts_sum_to_the_step_and_nothing_is_negative(layout: Layout, stack: str) -> None:
    priced = estimate(asked(stack), layout)
    assert priced.time.total == pytest.approx(priced.step_seconds, rel=1e-9)
    assert all(seconds >= 0 for seconds in (*priced.time.values(), *priced.hidden_comm.values()))
    assert all(size >= 0 for rank in priced.rank_memory for size in rank.values())
    assert 0 < priced.mfu <= priced.hfu < 1


@pytest.mark.parametrize("microbatches", [1, 2, 5, 16])
@pytest.mark.parametrize("chunks", ["vpp2", "vpp4", "schedule=zero-bubble", "vpp2 schedule=zero-bubble"])
def test_few_microbatches_leave_no_part_of_memory_negative(chunks: str, microbatches: int) -> None:
    question = asked("torchtitan", global_batch=microbatches)
    priced = estimate(question, parse_layout(f"tp8 pp8 dp1 {chunks}"))
    assert all(size >= 0 for rank in priced.rank_memory for size in rank.values())


@settings(max_examples=40, deadline=None)
@given(layout=layouts(), faster=st.sampled_from(["intra", "inter", "memory", "compute"]))
def test_better_hardware_is_never_slower(layout: Layout, faster: str) -> None:
    question = asked()
    cluster = question.cluster
    links, gpu = cluster.links, cluster.gpu
    assert links.inter_node is not None
    better = {
        "intra": {"links": links.model_copy(update={"intra_node": _doubled(links.intra_node, "bandwidth")})},
        "inter": {"links": links.model_copy(update={"inter_node": _doubled(links.inter_node, "bandwidth")})},
        "memory": {"gpu": _doubled(gpu, "memory_bandwidth")},
        "compute": {
            "gpu": gpu.model_copy(update={"peak": {name: 2 * rate for name, rate in gpu.peak.items()}})
        },
    }[faster]
    upgraded = replace(question, cluster=cluster.model_copy(update=better))
    assert estimate(upgraded, layout).step_seconds <= estimate(question, layout).step_seconds * (1 + 1e-12)


@pytest.mark.parametrize(
    ("model", "cluster", "stack", "batch", "layout"),
    [
        # the host lags behind
        ("qwen2-7b", "hgx-a800", "megatron-core", 2, "tp4 pp4 vpp2 dp2 zero1 sp layers=3,4*4,3*3"),
        ("megatron-39b", "hgx-a800", "deepspeed", 16, "tp4 pp2 dp8 zero1 recompute=full layers=24*2"),
        # gathers over tp, steps of a ring and data-parallel communication, all longer than compute
        ("gemma2-9b", "hgx-h800", "fsdp", 4, "tp8 dp4 zero3 sp recompute=selective layers=42"),
        ("llama3-8b", "hgx-h800", "megatron-core", 4, "tp4 cp2 dp4 zero1 layers=32"),
        # gathers, each of which waits for the device and is waited for
        ("llama2-13b", "hgx-a800", "deepspeed-v0.5", 16, "dp8 zero3 recompute=full layers=40"),
        # the head's besides that of the blocks
        ("llama3-70b", "hgx-h200", "nemo", 64, "tp2 dp64 zero1 sp layers=80"),
    ],
)
@pytest.mark.parametrize("factor", [1.1, 1.7, 4.0])
def test_a_faster_gpu_is_not_slower_where_communication_is_in_sight(
    model: str, cluster: str, stack: str, batch: int, layout: str, factor: float
) -> None:
    placed = parse_layout(layout)
    spec = TrainingSpec(global_batch=batch, sequence_length=512)
    slow = complete_question(
        catalog.load_model(model), resolve_cluster(cluster, placed.num_gpus), spec, stack=stack
    )
    gpu = slow.cluster.gpu
    peak = {name: factor * rate for name, rate in gpu.peak.items()}
    faster = {"peak": peak, "memory_bandwidth": factor * gpu.memory_bandwidth}
    for field, value in faster.items():
        better = slow.cluster.model_copy(update={"gpu": gpu.model_copy(update={field: value})})
        quick = replace(slow, cluster=better)
        assert estimate(quick, placed).step_seconds <= estimate(slow, placed).step_seconds * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(layout=layouts(), stack=st.sampled_from(["megatron-2021", "megatron-core", "meshwright"]))
def test_more_recompute_takes_longer_and_keeps_less(layout: Layout, stack: str) -> None:
    question = asked(stack, dropout=0.1)
    priced = [
        estimate(question, layout.model_copy(update={"recompute": (policy,)}))
        for policy in ("none", "selective", "full")
    ]
    seconds = [one.step_seconds for one in priced]
    kept = [max(rank["activations"] for rank in one.rank_memory) for one in priced]
    assert seconds == sorted(seconds)
    assert kept == sorted(kept, reverse=True)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_shards_what_it_says(zero: int) -> None:
    question = asked("fsdp" if zero >= 2 else "megatron-core")
    one = estimate(question, Layout(dp=GPUS, zero=0, layers=(BLOCKS,)))
    sharded = estimate(question, Layout(dp=GPUS, zero=zero, layers=(BLOCKS,)))
    before, after = one.rank_memory[0], sharded.rank_memory[0]
    assert after["optimizer"] == pytest.approx(before["optimizer"] / (GPUS if zero >= 1 else 1))
    if zero >= 2:
        assert after["gradients"] == pytest.approx(before["gradients"] / GPUS)
    if zero == 3:
        assert after["weights"] == pytest.approx(before["weights"] / GPUS, rel=0.2)


@pytest.mark.parametrize("name", catalog.names("models"))
def test_every_model_of_the_catalogue_splits_without_loss(name: str) -> None:
    """Summed over tensor ranks, matrices are the model's; only norms, positions and row-parallel biases are copies."""
    model = decoder_of(catalog.load_model(name)).model_copy(update={"vocab_multiple": 1})
    one, split = parameters(model, np.array([1])), parameters(model, np.array([2]))
    copies = 2 * split.block - one.block
    norm = model.hidden_size * (2 if model.norm == "layernorm" else 1)
    dense = 0.0 if model.moe_share == 1 and not model.shared_expert_ffn_hidden_size else 1.0
    biases = model.hidden_size * (dense * model.mlp_bias + model.attention_output_bias)
    norms = (4 if model.norm_placement == "around" else 2) / (1 + model.separate_halves)
    if model.parallel_block and model.parallel_norms == 1:  # both halves read one norm
        norms /= 2
    if model.stacks:  # a decoder's blocks have one more
        norms += 1 - model.stacks.encoder_layers / model.num_layers
    copied = norms * norm + biases
    if model.diffusion:  # norms without parameters, and on every rank all that modulates
        copied += 6 * model.hidden_size * (model.hidden_size + 1) - norms * norm
    copied += 2 * model.head_dim * model.attention_share * (model.qk_norm and model.qk_norm_over == "head")
    copied += model.moe_share * model.hidden_size * model.shared_expert_gate
    if model.recurrence and model.recurrence.kind == "gated-delta":  # one gain for the heads' norms
        copied += (1 - model.attention_share) * model.recurrence.head_dim
    if (recurrence := model.recurrence) and recurrence.latent_norms and recurrence.step_rank:
        latents = recurrence.step_rank + 2 * recurrence.state_dim
        copied += (1 - model.attention_share) * latents
    copied += model.moe_share * model.num_experts * (model.hidden_size + model.router_bias)
    if latent := model.latent_attention:  # what goes down to the latents, and their norms
        ranks = latent.kv_rank + (latent.query_rank or 0)
        copied += model.hidden_size * (ranks + latent.position_dim) + ranks
        if indexer := latent.indexer:  # every rank scores all tokens, and norms keys with gains and biases
            of_queries = (latent.query_rank or model.hidden_size) * indexer.heads * indexer.head_dim
            copied += (
                of_queries + model.hidden_size * (indexer.head_dim + indexer.heads) + 2 * indexer.head_dim
            )
    assert copies[0] == pytest.approx(copied, rel=1e-6)
    last_biases = model.moe_share * model.num_experts * model.hidden_size * model.mlp_bias
    assert 2 * split.experts[0] == pytest.approx(one.experts[0] + last_biases)
    assert total_parameters(model) > 0


def _doubled(spec: Any, field: str) -> Any:
    return spec.model_copy(update={field: 2 * getattr(spec, field)})


@pytest.mark.parametrize("length", [2047, 2046, 2000])
def test_tokens_that_fill_no_whole_rows_cost_no_more(length: int) -> None:
    layout = parse_layout("tp1 pp1 dp64 mbs1 zero1")
    whole = estimate(asked(), layout)
    assert estimate(asked(sequence_length=length), layout).step_seconds <= whole.step_seconds


def test_widths_that_fill_no_whole_rows_do() -> None:
    model = catalog.load_model("llama2-7b")
    question = asked()
    odd = replace(question, model=model.model_copy(update={"ffn_hidden_size": model.ffn_hidden_size - 1}))
    layout = parse_layout("tp1 pp1 dp64 mbs1 zero1")
    assert estimate(odd, layout).step_seconds > 1.5 * estimate(question, layout).step_seconds
