"""What each axis sends in a step and what of it is in sight: gradients, weights, copies, stage boundaries, tensors."""

from __future__ import annotations

import numpy as np
import pytest
from asking import ask, change, columns

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.communication.by_axis import (
    TensorSeconds,
    boundary_seconds,
    data_seconds,
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
from cost_models.compute.measured_operators import gathering_seconds, measured_block
from cost_models.files import catalog
from cost_models.operators.accumulation import copied_bytes
from cost_models.operators.parameters import total_parameters
from cost_models.pipeline.pricing import LinkUse, estimate, link_use
from cost_models.question import Question
from cost_models.specs.cluster import Precision
from cost_models.specs.hardware import CurvePoint, OperatorCurve
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec


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
    points = tuple(CurvePoint(size=size, seconds=COPY * size) for size in (1.0, 1e9))
    curve = OperatorCurve(operator="copy", forward=points)
    model = TransformerSpec.model_validate(
        {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 1000}
    )
    return Question(
        model=model,
        cluster=catalog.local_cluster(4),
        training=TrainingSpec(global_batch=8, sequence_length=32, precision="fp32"),
        stack=catalog.load_stack("meshwright"),
        hardware=catalog.load_profile("datasheet-cpu").model_copy(update={"operators": (curve,)}),
    )


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


@pytest.mark.parametrize(
    ("stack", "sp", "shares"),
    [("megatron-core", True, (0, 0, 1)), ("torchtitan", True, (0, 0.5, 0.75)), ("torchtitan", False, (0, 0, 0.5))],
)  # fmt: skip
def test_recompute_repeats_what_the_forward_pass_sent(
    stack: str, sp: bool, shares: tuple[float, ...]
) -> None:
    """Two gathers and two scatters of as many bytes: Megatron repeats all, torchtitan's per-operator policy the
    gathers; recomputation that stops early does without the last scatter, or the second of two all-reduces."""
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
