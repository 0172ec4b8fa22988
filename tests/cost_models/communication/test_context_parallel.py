"""Context parallelism and hybrid sharding: nothing changes without them, and what they cost is what is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asking import ask, change, columns, only_links
from effort import number
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.communication.by_axis import context_seconds, data_seconds
from cost_models.communication.topology import axis_groups
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, Context

GPUS, BATCH, SEQUENCE = 64, 64, 8192


def asked(how: Context = "ring", stack: str = "megatron-core", **training: Any) -> Question:
    job = {"global_batch": BATCH, "sequence_length": SEQUENCE} | training
    return ask("llama3-8b", "dgx-h100", GPUS, stack=stack, facts={"context_parallel": how}, **job)


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


def test_pytorch_gathers_behind_the_first_step_and_rotates_gradients_in_fp32() -> None:
    """Llama 3 8B, cp4: keys and values of 8 heads repeated to 32; four rounds of fp32 gradients, the last in sight."""
    question, layout = only_links(asked("all-gather", stack="torchtitan")), columns("tp1 cp4 dp16")
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


@settings(max_examples=number(30, 100))
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.sampled_from([None, *CONTEXTS])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(CONTEXTS),
)
def test_a_named_way_costs_what_the_usual_one_does(
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


@pytest.mark.parametrize("how", CONTEXTS)
def test_memory_falls_with_context(how: Context) -> None:
    """More ranks a sequence, fewer replicas: states stay, activations are split."""
    one, split = (
        estimate(asked(how), Layout(tp=2, cp=cp, dp=32 // cp, zero=1, sp=True)).rank_memory[0]
        for cp in (1, 4)
    )
    assert split["activations"] == pytest.approx(one["activations"] / 4)
    for part in ("weights", "gradients", "optimizer"):
        assert split[part] == pytest.approx(one[part])


def test_recomputed_attention_exchanges_keys_and_values_again() -> None:
    question = change(asked("all-gather"), stack={"selective_drops": "core"})
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
