"""What each axis exchanges in a step: by axis, over context parallel ranks, and of tokens between experts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from asking import ask, change, columns, on_a_cpu, only_links, straight

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.communication.by_axis import (
    TensorSeconds,
    boundary_seconds,
    context_seconds,
    data_seconds,
    expert_seconds,
    exposed_seconds,
    tensor_seconds,
)
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import axis_groups
from cost_models.compute.block import block_seconds
from cost_models.compute.gemm import device_of
from cost_models.compute.measured_operators import gathering_seconds, measured_block
from cost_models.files import catalog
from cost_models.memory.activations import activation_bytes
from cost_models.operators.accumulation import copied_bytes
from cost_models.operators.parameters import total_parameters
from cost_models.operators.traffic import destinations
from cost_models.pipeline.pricing import LinkUse, estimate, link_use
from cost_models.pipeline.seconds import Pieces, layer_backward, layer_forward
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, Context, SelectiveDrops
from cost_models.specs.cluster import Precision
from cost_models.specs.hardware import OperatorCurve
from cost_models.specs.transformer import ExpertGroups


def question(stack: str, gpus: int = 8) -> Question:
    """7 B parameters, 4 microbatches of 2 × 2048 tokens a rank on A100s with four adapters a node."""
    cluster = catalog.load_cluster("a100-80gb-roce").model_copy(update={"nodes": gpus // 8, "rails": 4})
    return ask("llama2-7b", cluster, stack=stack, global_batch=8 * gpus, sequence_length=2048)


@pytest.mark.parametrize("all_reduces", [False, True])
def test_each_zero_stage_sends_what_its_collectives_take(all_reduces: bool) -> None:
    """Replicas all-reduce; ZeRO scatters gradients and gathers weights, ZeRO-3 before each pass and not once more; over
    groups of replicas each shard is all-reduced among its copies. A stack may all-reduce at stage 1, too."""
    facts = {"scatters_by_all_reduce": all_reduces, "zero3_gathers_every_microbatch": True}
    asked = change(question("torchtitan", 16), stack=facts)
    columns = LayoutColumns.of(
        [Layout(dp=16, mbs=2, zero=zero, shard=8 if zero else None) for zero in (0, 1, 2, 3)]
    )
    groups, profile, number = axis_groups(asked.cluster, columns).data, asked.hardware, np.full(4, 1e8)
    found = data_seconds(asked, columns, groups, number)
    scattered = reduce_scatter_seconds(4 * number, groups.shard, profile)
    scattered = scattered + all_reduce_seconds(4 * number / 8, groups.copies, profile)
    everywhere = all_reduce_seconds(4 * number, groups.replicas, profile)
    assert scattered[1] > reduce_scatter_seconds(4 * number, groups.shard, profile)[1]
    reduced = np.where(columns.zero <= all_reduces, everywhere, scattered)
    np.testing.assert_allclose(found.backward_reduce + found.step_reduce, reduced)
    gathered = all_gather_seconds(2 * number, groups.shard, profile)
    np.testing.assert_allclose(
        found.step_gather, np.where((columns.zero == 1) | (columns.zero == 2), gathered, 0.0)
    )
    np.testing.assert_allclose(found.gather, np.where(columns.zero == 3, gathered, 0.0))


def test_overlapped_communication_and_compute_slow_each_other_down() -> None:
    """Both together take max(C, M) + 0.25 min(C, M), so less compute or less to send never takes longer."""
    profile = catalog.load_profile("datasheet-gpu").model_copy(update={"overlap_slowdown": 0.25})
    communication, window = np.array([4.0, 10.0, 4.0]), np.array([10.0, 4.0, 0.0])
    left = exposed_seconds(communication, window, profile, overlapped=True)
    np.testing.assert_allclose(window + left, [11.0, 11.0, 4.0])
    np.testing.assert_allclose(
        exposed_seconds(communication, window, profile, overlapped=False), communication
    )


def test_copies_around_collectives_by_hand() -> None:
    """bf16 weights in fully_shard: 2 + 2 bytes after each gather, 2 + 4 before gradients are scattered in fp32.

    ZeRO-2 with four microbatches gathers once. FSDP 1 gathers in place, and joins and divides bf16 gradients; InternEvo
    joins them once a step and takes them apart again.
    """
    layouts = LayoutColumns.of([Layout(dp=8, mbs=2, zero=zero, layers=(32,)) for zero in (0, 2, 3)])
    torchtitan = copied_bytes(question("torchtitan"), layouts)
    np.testing.assert_allclose(torchtitan, [[0, 0, 4], [6 / 4, 6, 4 + 6]])
    joined_and_divided = copied_bytes(question("fsdp"), layouts)
    np.testing.assert_allclose(joined_and_divided, [[0, 0, 0], [2 * 4 / 4, 2 * 4, 2 * 4]])
    replicas = LayoutColumns.of([Layout(dp=8, mbs=2, zero=1, layers=(32,)), Layout(dp=1, layers=(32,))])
    np.testing.assert_allclose(copied_bytes(question("internevo"), replicas), [[0, 0], [2 * 4 / 4, 0]])


COPY = 1e-9
"""Seconds of an element."""


def question_on_a_cpu() -> Question:
    return on_a_cpu(4, operators=(OperatorCurve(operator="copy", forward=straight(COPY)),))


def test_each_all_reduce_copies_the_activations_and_each_exchange_along_the_sequence() -> None:
    """32 tokens of 64: two all-reduces in a pass, or two gathers and two scatters."""
    question = question_on_a_cpu()
    passes = measured_block(question, columns("dp2", "tp2", "tp2 sp"))
    assert passes[0] == pytest.approx(COPY * 32 * 64 * np.array([0, 2, 4]))
    assert passes[1] == pytest.approx(COPY * 32 * 64 * np.array([0, 2, 4]))


def test_gathered_weights_are_copied_in_every_pass_and_gradients_once_a_step() -> None:
    """8 sequences over two ranks: four microbatches of one."""
    question = question_on_a_cpu()
    layouts = columns("dp2 zero3", "dp2 zero2", "zero3", "dp4 zero3 shard2")
    passes = gathering_seconds(question, layouts, np.full(4, 1000.0))
    assert passes[0] == pytest.approx(COPY * np.array([1500, 0, 0, 1500]))
    assert passes[1] == pytest.approx(COPY * np.array([1500 + 250, 0, 0, 1500 + 500]))


def test_a_cpu_waits_for_every_gather() -> None:
    """It has no streams to gather in behind its compute: nothing of the gathers is hidden."""
    question = question_on_a_cpu()
    priced = estimate(question, parse_layout("dp2 zero3"))
    assert priced.hidden_comm["dp_comm"] == 0.0
    gathers = 2 * 2 * 4  # blocks, passes, microbatches
    assert priced.time["dp_comm"] > gathers * question.hardware.collective_seconds


MODEL = catalog.load_model("gpt2-small")


def used(cluster: str, gpus: int, layout: str) -> tuple[dict[tuple[str, str], LinkUse], float]:
    """(level, axis) → its use, and seconds of a step."""
    question = ask(MODEL, cluster, gpus, stack="megatron-core", global_batch=64, sequence_length=1024)
    found = estimate(question, parse_layout(layout))
    return {(one.level.name, one.axis): one for one in link_use(question, found)}, found.step_seconds


def test_gradients_and_weights_go_round_every_level_by_hand() -> None:
    """dp16 with ZeRO-1: 15/16 of fp32 gradients and bf16 weights leave every GPU; an eighth of it is on an adapter."""
    use, step = used("dgx-h100", 16, "dp16 mbs4 zero1")
    out = 15 / 16 * (4 + 2) * total_parameters(MODEL)
    assert set(use) == {("node", "dp"), ("network", "dp")}
    assert use["node", "dp"].gpu_bytes == pytest.approx(out, rel=0.01)
    assert use["network", "dp"].gpu_bytes == pytest.approx(out / 8, rel=0.01)
    assert use["node", "dp"].share == pytest.approx(use["node", "dp"].gpu_bytes / 450e9 / step)


def test_stages_hand_on_activations_and_gradients_by_hand() -> None:
    """Three stages of a node each: from the middle one b·s·h in bf16 goes both ways for each of 64 / 8 microbatches."""
    use, _ = used("dgx-h100", 24, "pp3 dp8 mbs1")
    assert use["network", "pp"].gpu_bytes == pytest.approx(2 * 8 * 1024 * MODEL.hidden_size * 2)
    assert ("network", "dp") not in use
    assert ("node", "pp") not in use


MESSAGE = 4096 * 4096 * 2.0
"""Bytes of the stream of a microbatch: 4,096 tokens of 4,096 numbers in bf16."""


def asked(stack: str) -> Question:
    return ask("llama3-8b", "dgx-h100", 16, stack=stack, global_batch=8, sequence_length=4096)


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-2021"])
def test_a_stage_hands_on_its_part_of_the_stream(stack: str) -> None:
    """With sequence parallelism each tensor rank sends its tokens. Without, it sends all, unless the stack scatters
    them before and gathers them behind."""
    question = asked(stack)
    columns = LayoutColumns.of([Layout(tp=8, pp=2, sp=True), Layout(tp=8, pp=2), Layout(tp=8, dp=2)])
    groups, profile = axis_groups(question.cluster, columns), question.hardware
    part = point_to_point_seconds(MESSAGE / 8, groups.pp, profile)
    other = point_to_point_seconds(MESSAGE, groups.pp, profile)
    if stack == "megatron-2021":
        other = part + all_gather_seconds(MESSAGE, groups.tp, profile)
    np.testing.assert_allclose(boundary_seconds(question, columns, groups), [part[0], other[1], 0.0])
    assert part[0] < other[1]


def test_head_and_embedding_gather_and_scatter_with_sequence_parallelism_and_sum_without() -> None:
    question = asked("megatron-core")
    columns = LayoutColumns.of([Layout(tp=8, dp=2, sp=True), Layout(tp=8, dp=2)])
    group, profile = axis_groups(question.cluster, columns).tp, question.hardware
    found = tensor_seconds(question, columns, group)
    gather, scatter, total = (
        send(MESSAGE, group, profile)
        for send in (all_gather_seconds, reduce_scatter_seconds, all_reduce_seconds)
    )
    np.testing.assert_allclose(found.embedding_forward, [scatter[0], total[1]])
    np.testing.assert_allclose(found.embedding_backward, [gather[0], 0.0])
    np.testing.assert_allclose(found.head_forward, [gather[0], 0.0])
    np.testing.assert_allclose(found.head_backward, [scatter[0], total[1]])
    assert scatter[0] < total[1]


def tensor_parallel_seconds(
    stack: str, *, sp: bool, precision: Precision = "bf16", sequence: int = 4096
) -> TensorSeconds:
    """Of tp8 on one node."""
    job = {"global_batch": 8, "sequence_length": sequence, "precision": precision}
    question = ask("llama3-8b", "dgx-h100", 8, stack=stack, **job)
    columns = LayoutColumns.of([Layout(tp=8, sp=sp, layers=(32,))])
    return tensor_seconds(question, columns, axis_groups(question.cluster, columns).tp)


def repeated(found: TensorSeconds) -> list[float]:
    """Share of the forward pass that each policy repeats."""
    return (found.block_recomputed[0] / found.block_forward[0]).tolist()


def test_recompute_repeats_what_the_forward_pass_sent() -> None:
    """Two gathers and two scatters of as many bytes: Megatron repeats all, torchtitan's per-operator policy the
    gathers; recomputation that stops early does without the last scatter, or the second of two all-reduces."""
    for stack, sp, shares in [
        ("megatron-core", True, (0, 0, 1)),
        ("torchtitan", True, (0, 0.5, 0.75)),
        ("torchtitan", False, (0, 0, 0.5)),
    ]:
        assert repeated(tensor_parallel_seconds(stack, sp=sp)) == pytest.approx(shares, abs=1e-6)


def test_what_is_cast_is_gathered_as_it_was_cast() -> None:
    """Transformer Engine casts to fp8 before it gathers, forward and backward: one byte in place of two, where sums are
    scattered in two; torchtitan's default gathers, and everybody's head, stay in 16 bits."""
    wide, narrow = (
        tensor_parallel_seconds("megatron-lm", sp=True, precision=one, sequence=2**20)
        for one in ("bf16", "fp8")
    )
    np.testing.assert_allclose(narrow.block_forward, 3 / 4 * wide.block_forward, rtol=0.01)
    back, wide_back = (one.block_backward + one.block_summed for one in (narrow, wide))
    np.testing.assert_allclose(back, 3 / 4 * wide_back, rtol=0.01)
    np.testing.assert_allclose(narrow.block_regather, 1 / 2 * wide.block_regather, rtol=0.01)
    assert narrow.head_forward == wide.head_forward
    own, ours = (tensor_parallel_seconds("torchtitan", sp=True, precision=one) for one in ("bf16", "fp8"))
    assert own.block_forward == ours.block_forward
    assert (
        tensor_parallel_seconds("megatron-lm", sp=False, precision="fp8").block_forward
        == tensor_parallel_seconds("megatron-lm", sp=False).block_forward
    )


GPUS, BATCH, SEQUENCE = 64, 64, 8192


def long_context(how: Context = "ring", stack: str = "megatron-core", **training: Any) -> Question:
    job = {"global_batch": BATCH, "sequence_length": SEQUENCE} | training
    return ask("llama3-8b", "dgx-h100", GPUS, stack=stack, facts={"context_parallel": how}, **job)


def test_a_ring_passes_every_key_and_value_round_and_hides_behind_attention() -> None:
    """Llama 3 8B, cp4: three steps of 2·b·s/4·1024 bf16 elements; the backward pass carries as many gradients."""
    question, layout = only_links(long_context()), columns("tp1 cp4 dp16")
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
    question, layout = (only_links(long_context("all-gather", stack="torchtitan")), columns("tp1 cp4 dp16"))
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
    gathers, trades = (only_links(long_context("all-gather")), only_links(long_context("all-to-all")))
    group, link = axis_groups(gathers.cluster, layout).cp, gathers.cluster.links.intra_node.bandwidth
    gathered = context_seconds(gathers, layout, group, none, none)
    keys_values = 3 * 2 * 1024 * rank_bytes / link  # three quarters of what four ranks hold
    assert gathered.forward == pytest.approx(keys_values)
    assert gathered.backward == pytest.approx(2 * keys_values)
    traded = context_seconds(trades, layout, group, none, none)
    assert traded.forward == pytest.approx(3 / 4 * (4096 + 2 * 1024 + 4096) * rank_bytes / link)
    assert traded.backward == pytest.approx(traded.forward)


@pytest.mark.parametrize("usual", CONTEXTS)
def test_a_named_way_costs_what_the_usual_one_does(usual: Context) -> None:
    """Row by row, times and memory."""
    rows = list(product((1, 2), (1, 2, 4), (None, *CONTEXTS)))
    layouts = [Layout(tp=tp, cp=cp, dp=GPUS // (tp * cp), context=way) for tp, cp, way in rows]
    together = stage_costs(long_context(usual), LayoutColumns.of(layouts))
    for row, layout in enumerate(layouts):
        unnamed = layout.model_copy(update={"context": None})
        alone = stage_costs(long_context(layout.context or usual), LayoutColumns.of([unnamed]))
        for name in ("layer_forward", "layer_backward", "layer_activation", "working"):
            np.testing.assert_array_equal(getattr(together, name)[row], getattr(alone, name)[0])


def test_recomputed_attention_exchanges_keys_and_values_again() -> None:
    question = change(long_context("all-gather"), stack={"selective_drops": "core"})
    exposed = [
        estimate(question, Layout(cp=4, dp=16, recompute=(policy,))).time["cp_comm"]
        for policy in ("none", "selective", "full")
    ]
    assert exposed[1] == pytest.approx(exposed[0] * 4 / 3)
    assert exposed[2] == pytest.approx(exposed[1])


def test_hybrid_sharding_scatters_inside_and_reduces_across() -> None:
    """Groups of a node: scatter and gather stay on its links, an eighth of the gradients crosses the network."""
    question, layouts = (only_links(long_context(stack="fsdp")), columns("dp64 zero3", "dp64 zero3 shard8"))
    groups = axis_groups(question.cluster, layouts).data
    assert groups.shard.nodes.tolist() == [8, 1]
    assert groups.copies.size.tolist() == [1, 8]
    million = np.full(2, 1e6)
    seconds = data_seconds(question, layouts, groups, million)
    links = question.cluster.links
    inside, across = links.intra_node.bandwidth, links.inter_node.bandwidth
    element = {"fp32": 4.0, "bf16": 2.0}[question.stack.gradient_dtype]
    assert seconds.gather[1] == pytest.approx(7 / 8 * 2e6 / inside)
    reduced = 2 * 7 / 8 * element * 1e6 / 8 / across
    latency = 2 * min(7, 3) * links.inter_node.latency
    reduce = (seconds.step_reduce + seconds.backward_reduce)[1]
    assert reduce == pytest.approx(7 / 8 * element * 1e6 / inside + reduced + latency, rel=1e-6)


def test_hybrid_shards_are_held_by_fewer_ranks() -> None:
    question = long_context(stack="fsdp")
    over_all, hybrid = (
        estimate(question, parse_layout(f"dp64 zero3 {word}")).rank_memory[0] for word in ("", "shard8")
    )
    assert hybrid["optimizer"] == pytest.approx(8 * over_all["optimizer"])
    assert hybrid["gradients"] == pytest.approx(8 * over_all["gradients"])


TOKENS = 4096


def exchanging(model: str = "deepseek-v3", precision: str = "bf16", **facts: Any) -> Question:
    """On 256 H100 without latencies and start-ups, at the links' full rates."""
    job = {"global_batch": 256, "sequence_length": TOKENS, "precision": precision}
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


def test_destinations_are_those_of_all_choices() -> None:
    for groups in [None, ExpertGroups(count=4, per_token=2), ExpertGroups(count=2, per_token=1)]:
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
    question = exchanging()
    nodes = destinations(question.model, np.array([8]))[0]
    assert 3.5 < nodes < 4
    link = question.cluster.links.inter_node
    by_hand = 2 * nodes * 7 / 8 * TOKENS * 7168 * 2 / link.bandwidth * 58 / 61
    assert exchange(question, "dp256 ep64")[0] == pytest.approx(by_hand)
    copies = exchange(exchanging(expert_dispatch="copies"), "dp256 ep64")[0]
    assert copies == pytest.approx(by_hand * 8 * 56 / 64 / (nodes * 7 / 8))


def test_tokens_travel_in_16_bits_whatever_multiplies_them() -> None:
    wide, narrow = (exchange(exchanging(precision=precision), "dp256 ep64") for precision in ("bf16", "fp8"))
    assert narrow == wide


def test_what_is_hidden_is_no_longer_than_compute_and_slows_it() -> None:
    x = columns("dp256 ep64 zero1")
    apart = Pieces(exchanging(overlap_expert_exchange=0.0), x, data_parallel=False)
    behind = Pieces(exchanging(overlap_expert_exchange=1.0), x, data_parallel=False)
    window = (behind.block.forward + behind.block.backward) / 2
    np.testing.assert_allclose(behind.exposed_experts, np.maximum(0.0, behind.experts - window))
    np.testing.assert_allclose(apart.exposed_experts, apart.experts)
    contended = change(exchanging(overlap_expert_exchange=1.0), hardware={"overlap_slowdown": 0.25})
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
    job = {"global_batch": 15360, "sequence_length": TOKENS, "precision": "fp8"}
    question = ask(model, "hgx-h800", 2048, stack="deepseek", **job)
    layout = parse_layout("pp16 dp128 ep64 mbs1 zero1 layers=4*15,1")
    priced = estimate(question, layout)
    seconds = 180e3 * 3600 / 2048 * 15360 * TOKENS / 1e12
    assert priced.fits
    assert 0.9 < priced.step_seconds / seconds < 1.1
    assert priced.time["ep_comm"] < priced.hidden_comm["ep_comm"] / 2
    kept = estimate(change(question, stack={"recomputes_latent_heads": False}), layout)
    assert kept.peak_bytes > priced.peak_bytes
    assert kept.step_seconds < priced.step_seconds


def test_recomputing_experts_keeps_their_input_and_exchanges_again() -> None:
    """`--recompute-modules moe`: of the mixture a block keeps what its norm returned, and the rest runs twice."""
    x = columns("dp256 ep8 zero1")
    question = exchanging("qwen3-30b-a3b", selective_drops="experts")
    none, selective, full = activation_bytes(question, x).block[0]
    copies, inner, rows = 8 * 2048 * 2, 8 * 768 * 2, 2048 * 2
    gone = TOKENS * (copies + 3 * inner) + TOKENS * rows  # inputs of up, activation, down; router's input
    back = TOKENS * copies if not question.stack.weighs_inside_experts else 0
    assert none - selective == pytest.approx(gone + back - TOKENS * rows)
    assert full < selective < none
    backward = layer_backward(Pieces(question, x, data_parallel=False))
    np.testing.assert_allclose(backward["ep_comm"][0, 1], 2 * backward["ep_comm"][0, 0])
    np.testing.assert_allclose(backward["cp_comm"][0], 0)
    assert 0 < backward["recompute"][0, 1] < backward["recompute"][0, 2]


@pytest.mark.parametrize("drops", ["latent-heads", "expert-activations", "norms"])
def test_outputs_that_are_made_again_are_not_kept(drops: SelectiveDrops) -> None:
    """`--recompute-modules mla_up_proj moe_act layernorm`: what reads an output drops it, what makes it runs again."""
    x = columns("tp2 dp128 ep8 etp1 zero1")
    question = exchanging("deepseek-v3", selective_drops=drops)
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
    assert none - selective == pytest.approx(2 * TOKENS * gone)
    again = [
        block_seconds(
            exchanging("deepseek-v3", selective_drops=own), x, device_of(question), data_parallel=False
        )
        for own in (drops, "core", (drops, "core"))
    ]
    recomputed, core, both = (seconds.recomputed[0, 1] for seconds in again)
    assert 0 < recomputed < again[0].recomputed[0, 2] / 4
    assert both == pytest.approx(recomputed + core)
