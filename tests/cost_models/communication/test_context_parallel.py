"""Context parallelism and hybrid sharding: nothing changes without them, and what they cost is what is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.communication.by_axis import context_seconds, data_seconds
from cost_models.communication.topology import axis_groups
from cost_models.compute.gemm import device_of
from cost_models.compute.mixing import flash_seconds
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, Context
from cost_models.specs.training import TrainingSpec

GPUS, BATCH, SEQUENCE = 64, 64, 8192


def asked(how: Context = "ring", stack: str = "megatron-core", **training: Any) -> Question:
    spec = TrainingSpec(**{"global_batch": BATCH, "sequence_length": SEQUENCE} | training)
    question = complete_question(
        catalog.load_model("llama3-8b"), resolve_cluster("dgx-h100", GPUS), spec, stack=stack
    )
    return replace(question, stack=question.stack.model_copy(update={"context_parallel": how}))


def columns(*layouts: str) -> LayoutColumns:
    return LayoutColumns.of([parse_layout(text) for text in layouts])


def only_links(question: Question) -> Question:
    """No start-up, no latency, links at their full rate: times are bytes / bandwidth."""
    hardware = question.hardware.model_copy(
        update={
            "link_efficiency": 1.0,
            "network_efficiency": 1.0,
            "collective_seconds": 0.0,
            "overlap_slowdown": 0.0,
        }
    )
    links = question.cluster.links
    inside = links.intra_node.model_copy(update={"latency": 0.0})
    cluster = question.cluster.model_copy(update={"links": links.model_copy(update={"intra_node": inside})})
    return replace(question, hardware=hardware, cluster=cluster)


def test_a_ring_passes_every_key_and_value_round_and_hides_behind_attention() -> None:
    """Llama 3 8B, cp4: three steps of 2·b·s/4·1024 bf16 elements; the backward pass carries as many gradients."""
    question, layout = only_links(asked()), columns("tp1 cp4 dp16")
    group = axis_groups(question.cluster, layout).cp
    step = 2 * SEQUENCE / 4 * 1024 * 2 / question.cluster.links.intra_node.bandwidth
    none, half, long = np.zeros(1), np.full(1, 4 * step / 2), np.ones(1)
    alone = context_seconds(question, layout, group, none, none)
    assert alone.forward == pytest.approx(3 * step)
    assert alone.backward == pytest.approx(6 * step)
    behind = context_seconds(question, layout, group, half, half)
    assert behind.forward == pytest.approx(3 * step / 2)
    assert behind.backward == pytest.approx(6 * step - 3 * step / 2)
    assert behind.forward + behind.forward_hidden == pytest.approx(3 * step)
    assert context_seconds(question, layout, group, long, long).forward == 0


def test_what_runs_behind_attention_holds_it_up() -> None:
    """C seconds of kernels and M of messages take max(C, M) + a share of the smaller: a ring is not free."""
    question, layout = only_links(asked()), columns("tp1 cp4 dp16")
    group = axis_groups(question.cluster, layout).cp
    long = np.ones(1)
    alone = context_seconds(question, layout, group, np.zeros(1), np.zeros(1))
    shared = replace(question, hardware=question.hardware.model_copy(update={"overlap_slowdown": 0.1}))
    behind = context_seconds(shared, layout, group, long, long)
    assert behind.forward == pytest.approx(0.1 * alone.forward)
    assert behind.backward + behind.backward_hidden == pytest.approx(alone.backward)


def test_pytorch_gathers_behind_the_first_step_and_rotates_gradients_in_fp32() -> None:
    """Llama 3 8B, cp4: keys and values of 8 heads repeated to 32; four rounds of fp32 gradients, the last in sight."""
    question, layout = only_links(asked(stack="torchtitan")), columns("tp1 cp4 dp16")
    question = replace(question, stack=question.stack.model_copy(update={"context_parallel": "all-gather"}))
    group, link = axis_groups(question.cluster, layout).cp, question.cluster.links.intra_node.bandwidth
    ranks, gradients = SEQUENCE / 4 * 2 * 4096 * 2 / link, SEQUENCE / 4 * 2 * 4096 * 4 / link
    alone = context_seconds(question, layout, group, np.zeros(1), np.zeros(1))
    assert alone.forward == pytest.approx(3 * ranks)
    assert alone.backward == pytest.approx(3 * ranks + 4 * gradients)
    step = np.full(1, ranks)
    behind = context_seconds(question, layout, group, 4 * step, 4 * step)
    assert behind.forward == pytest.approx(2 * ranks)  # behind one step of four
    assert behind.backward == pytest.approx(2 * ranks + (3 * gradients - 3 * ranks) + gradients)
    long = np.ones(1)
    assert context_seconds(question, layout, group, long, long).forward == 0
    assert context_seconds(question, layout, group, long, long).backward == pytest.approx(gradients)


def test_pytorch_merges_every_step_in_fp32_however_keys_and_values_came() -> None:
    """By hand, cp2, bytes a column: both steps widened, one merged in eight passes of fp32, one sum narrowed."""
    question = asked("all-gather", stack="torchtitan")
    native = replace(question, stack=question.stack.model_copy(update={"torch_context_parallel": False}))
    layout, device = columns("tp1 cp2 dp32"), device_of(question)
    token = SEQUENCE / 2 / device.memory_rate
    slow, quick = flash_seconds(question, layout, device), flash_seconds(native, layout, device)
    forward = token * (4096 * (2 * 6 + 32 + 6) + 2 * 4096 * 4 * 2)
    assert slow[0] - quick[0] == pytest.approx(forward)
    once = (4 + 6) * (4096 + 8192) + 4 * 8192
    backward = token * (2 * (10 * 4096 + (5 + 16) * 8192) + once)
    assert slow[1] - quick[1] == pytest.approx(backward)


def test_short_parts_of_a_sequence_attend_slowly() -> None:
    """A ring of eight calls a kernel for an eighth of the keys at a time, and adds up what the calls return."""
    question = asked(sequence_length=32768, global_batch=64)
    ring, traded = (
        replace(question, stack=question.stack.model_copy(update={"context_parallel": how}))
        for how in ("ring", "all-to-all")
    )
    layout, device = columns("tp1 cp8 dp8"), device_of(question)
    slow, quick = flash_seconds(ring, layout, device), flash_seconds(traded, layout, device)
    tokens, heads = 32768 / 8, 32 * 128
    merged = 8 * tokens * heads * (2 + 8) / device.memory_rate
    assert slow[0] == pytest.approx(quick[0] * (1 + 600 / 4096) / (1 + 600 / 32768) + merged, rel=1e-6)
    merged = 8 * tokens * 3 * 2 * (heads + 2 * 1024) / device.memory_rate
    assert slow[1] == pytest.approx(quick[1] * (1 + 600 / 4096) / (1 + 600 / 32768) + merged, rel=1e-6)


def test_gathering_and_trading_heads_by_hand() -> None:
    layout = columns("tp2 cp4 dp8")
    none, rank_bytes = np.zeros(1), SEQUENCE / 4 / 2 * 2
    gathers, trades = only_links(asked("all-gather")), only_links(asked("all-to-all"))
    group, link = axis_groups(gathers.cluster, layout).cp, gathers.cluster.links.intra_node.bandwidth
    gathered = context_seconds(gathers, layout, group, none, none)
    keys_values = 3 * 2 * 1024 * rank_bytes / link  # three quarters of what four ranks hold
    assert gathered.forward == pytest.approx(keys_values)
    assert gathered.backward == pytest.approx(2 * keys_values)
    traded = context_seconds(trades, layout, group, none, none)
    assert traded.forward == pytest.approx(3 / 4 * (4096 + 2 * 1024 + 4096) * rank_bytes / link)
    assert traded.backward == pytest.approx(traded.forward)


@pytest.mark.parametrize("how", ["ring", "all-gather", "all-to-all"])
def test_without_context_ranks_nothing_is_exchanged(how: Context) -> None:
    question, layouts = asked(how), columns("tp1 dp64", "tp2 cp4 dp8")
    group = axis_groups(question.cluster, layouts).cp
    seconds = context_seconds(question, layouts, group, np.zeros(2), np.zeros(2))
    for value in (seconds.forward, seconds.backward):
        assert value[0] == 0
        assert value[1] > 0
    assert estimate(question, Layout(dp=GPUS)).time["cp_comm"] == 0


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.sampled_from([None, *CONTEXTS])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(CONTEXTS),
)
def test_a_layout_that_names_its_way_costs_what_a_stack_costs_that_usually_goes_it(
    rows: list[tuple[int, int, Context | None]], usual: Context
) -> None:
    """Row by row, times and memory."""
    layouts = [Layout(tp=tp, cp=cp, dp=GPUS // (tp * cp), context=way) for tp, cp, way in rows]
    together = stage_costs(asked(usual), LayoutColumns.of(layouts))
    for row, (layout, (_, _, way)) in enumerate(zip(layouts, rows, strict=True)):
        unnamed = layout.model_copy(update={"context": None})
        alone = stage_costs(asked(way or usual), LayoutColumns.of([unnamed]))
        for name in ("layer_forward", "layer_backward", "layer_activation", "working"):
            np.testing.assert_array_equal(getattr(together, name)[row], getattr(alone, name)[0])


def test_gathered_keys_and_values_take_memory_where_they_outgrow_the_mlp() -> None:
    """cp8: the keys and values of eight ranks, 2·1024 in 16 bits, and their gradients, against the MLP's gradients."""
    question, size = asked(sequence_length=131072), 131072 / 8 * 2
    ring, gathers = (
        float(stage_costs(question, columns(f"cp8 dp8 context={way}")).working[0, 0])
        for way in ("ring", "all-gather")
    )
    widest = max(14336, 2 * 14336)  # gate and up; the stack adds weight gradients up by itself
    holes = 1 + question.stack.fragmentation
    assert gathers - ring == pytest.approx(holes * size * (2 * 8 * 2 * 1024 - widest))


@settings(max_examples=30, deadline=None)
@given(
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1]),
    how=st.sampled_from(["ring", "all-gather", "all-to-all"]),
    policy=st.sampled_from(["none", "selective", "full"]),
)
def test_memory_falls_with_context_and_parts_sum(
    tp: int, pp: int, zero: int, how: Context, policy: Any
) -> None:
    """More ranks a sequence, fewer replicas: states stay, activations are split."""
    priced = [
        estimate(
            asked(how),
            Layout(tp=tp, pp=pp, cp=cp, dp=GPUS // (tp * pp * cp), zero=zero, sp=tp > 1, recompute=(policy,)),
        )
        for cp in (1, 2, 4)
    ]
    kept = [one.rank_memory[0]["activations"] for one in priced]
    assert kept[1] == pytest.approx(kept[0] / 2)
    assert kept[2] == pytest.approx(kept[0] / 4)
    for part in ("weights", "gradients", "optimizer"):
        assert len({round(one.rank_memory[0][part]) for one in priced}) == 1
    for one in priced:
        assert one.time.total == pytest.approx(one.step_seconds, rel=1e-9)
        assert all(seconds >= 0 for seconds in (*one.time.values(), *one.hidden_comm.values()))


def test_each_rank_computes_its_share_of_a_sequence() -> None:
    """On a device without tiles and start-ups a microbatch takes 1/cp of the time."""
    question = asked("all-to-all")  # a ring calls its kernel for shorter parts
    flat = question.hardware.model_copy(update={"kernel_seconds": 0.0, "host_layer_seconds": 0.0})
    gpu = question.cluster.gpu.model_copy(update={"sm_count": 1})
    question = replace(question, hardware=flat, cluster=question.cluster.model_copy(update={"gpu": gpu}))
    costs = stage_costs(question, columns("dp1 cp1", "dp1 cp2"))
    matrices = estimate(question, Layout(dp=GPUS)).time["compute"]
    halves = estimate(question, Layout(cp=2, dp=GPUS // 2)).time["compute"]
    assert halves == pytest.approx(matrices, rel=0.02)  # twice the microbatches, each half as long
    assert costs.layer_forward[1] < costs.layer_forward[0]


def test_recomputed_attention_exchanges_keys_and_values_again() -> None:
    question = asked("all-gather")
    question = replace(question, stack=question.stack.model_copy(update={"selective_drops": "core"}))
    exposed = [
        estimate(question, Layout(cp=4, dp=16, recompute=(policy,))).time["cp_comm"]
        for policy in ("none", "selective", "full")
    ]
    assert exposed[1] == pytest.approx(exposed[0] * 4 / 3)
    assert exposed[2] == pytest.approx(exposed[1])


def test_hybrid_sharding_scatters_inside_and_reduces_across() -> None:
    """Groups of a node: scatter and gather stay on its links, an eighth of the gradients crosses the network."""
    question, layouts = only_links(asked(stack="fsdp")), columns("dp64 zero3", "dp64 zero3 shard8")
    groups = axis_groups(question.cluster, layouts).data
    assert groups.shard.nodes.tolist() == [8, 1]
    assert groups.copies.size.tolist() == [1, 8]
    million = np.full(2, 1e6)
    seconds = data_seconds(question, layouts, groups, million)
    links = question.cluster.links
    assert links.inter_node is not None
    inside, across = links.intra_node.bandwidth, links.inter_node.bandwidth
    element = {"fp32": 4.0, "bf16": 2.0}[question.stack.gradient_dtype]
    assert seconds.gather[1] == pytest.approx(7 / 8 * 2e6 / inside)
    reduced = 2 * 7 / 8 * element * 1e6 / 8 / across
    latency = 2 * min(7, 3) * links.inter_node.latency
    reduce = (seconds.step_reduce + seconds.backward_reduce)[1]
    assert reduce == pytest.approx(7 / 8 * element * 1e6 / inside + reduced + latency, rel=1e-6)


def test_hybrid_shards_are_held_by_fewer_ranks() -> None:
    question = asked(stack="fsdp")
    over_all, hybrid = (
        estimate(question, parse_layout(f"dp64 zero3 {word}")).rank_memory[0] for word in ("", "shard8")
    )
    assert hybrid["optimizer"] == pytest.approx(8 * over_all["optimizer"])
    assert hybrid["gradients"] == pytest.approx(8 * over_all["gradients"])


def test_zero_shards_over_context_ranks_too() -> None:
    question = asked()
    data = estimate(question, Layout(dp=64, zero=1)).rank_memory[0]["optimizer"]
    both = estimate(question, Layout(cp=8, dp=8, zero=1)).rank_memory[0]["optimizer"]
    assert both == data
