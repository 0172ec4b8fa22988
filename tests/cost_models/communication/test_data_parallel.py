"""Data-parallel communication of a step: who owns what, and what it takes to tell the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication.by_axis import data_seconds, exposed_seconds
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import axis_groups
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.operators.accumulation import copied_bytes
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec


def question(stack: str, gpus: int = 8) -> Question:
    """7 B parameters, 4 microbatches of 2 × 2048 tokens a rank on A100s with four adapters a node."""
    cluster = catalog.load_cluster("a100-80gb-roce").model_copy(update={"nodes": gpus // 8, "rails": 4})
    training = TrainingSpec(global_batch=8 * gpus, sequence_length=2048)
    return complete_question(catalog.load_model("llama2-7b"), cluster, training, stack=stack)


def step_seconds(stack: str, gpus: int, shard: int | None = None) -> float:
    """Of ZeRO-1 over so many replicas."""
    layout = Layout(dp=gpus, mbs=2, zero=1, shard=shard, layers=(32,))
    return estimate(question(stack, gpus), layout).step_seconds


@pytest.mark.parametrize("all_reduces", [False, True])
def test_each_zero_stage_sends_what_its_collectives_take(all_reduces: bool) -> None:
    """Replicas all-reduce; ZeRO scatters gradients and gathers weights, ZeRO-3 before each pass and not once more; over
    groups of replicas each shard is all-reduced among its copies. A stack may all-reduce at stage 1, too."""
    asked = question("torchtitan", 16)
    facts = {"scatters_by_all_reduce": all_reduces, "zero3_gathers_every_microbatch": True}
    asked = replace(asked, stack=asked.stack.model_copy(update=facts))
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


def test_updates_by_owner_cost_a_chain_for_every_tensor() -> None:
    """Weights that a gather collects from shards grow hardly dearer with more ranks; broadcasts, an owner after
    another, do by the length of each chain. Inside a node few owners have many tensors each."""
    spread, inside = (
        np.array([step_seconds("internevo", n, shard) for n in (128, 1024)]) for shard in (None, 8)
    )
    assert spread[1] / spread[0] > 1.3
    assert inside[1] / inside[0] < 1.05
    gathered = np.array([step_seconds("megatron-core", n) for n in (128, 1024)])
    assert gathered[1] / gathered[0] < 1.1


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


@pytest.mark.parametrize(("field", "value"), [("unfused_update_bytes", 60.0), ("casts_norm_inputs", True)])
def test_what_a_stack_leaves_unfused_takes_time(field: str, value: float) -> None:
    layout = Layout(dp=8, zero=1, layers=(32,))
    plain = question("megatron-core")
    slower = replace(plain, stack=plain.stack.model_copy(update={field: value}))
    assert estimate(slower, layout).step_seconds > estimate(plain, layout).step_seconds


def test_nanotron_reduces_behind_the_backward_pass_only_without_zero() -> None:
    """Without ZeRO it is DDP's hook, bucket by bucket; ZeRO-1 all-reduces fp32 gradients once all is over."""
    asked = question("nanotron", 16)
    sent = {}
    for zero in (0, 1):
        found = estimate(asked, Layout(dp=16, mbs=2, zero=zero, layers=(32,)))
        sent[zero] = found.time["dp_comm"], found.hidden_comm["dp_comm"]
    assert sent[0][1] > sent[0][0]
    assert sent[1][1] == 0
    assert sent[1][0] > sum(sent[0])  # updated weights are gathered, too
