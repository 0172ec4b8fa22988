"""What the allocator holds beyond its tensors: holes of what comes and goes, and pools of other streams."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.memory.device import communicators
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec

PLAIN = "dp8 mbs1 zero1"
SHARDED = "dp8 mbs1 zero3"
PIPED = "dp2 pp4 mbs1 zero2"


def asked(stack: StackSpec, batch: int = 8, model: str = "llama2-7b", **cluster: Any) -> Question:
    spec = TrainingSpec(global_batch=batch, sequence_length=2048)
    machine = resolve_cluster("dgx-h100", 8).model_copy(update=cluster)
    return complete_question(catalog.load_model(model), machine, spec, stack=stack)


def changed(name: str, **fields: Any) -> StackSpec:
    return catalog.load_stack(name).model_copy(update=fields)


def priced(stack: StackSpec, layout: str, **more: Any) -> Estimate:
    question = asked(stack, **more)
    return estimate(question, parse_layout(layout))


def part(one: Estimate, name: str) -> float:
    return one.rank_memory[one.fullest_rank][name]


def test_fragmentation_is_a_share_of_what_comes_and_goes() -> None:
    none, some = (priced(changed("megatron-core", fragmentation=share), PLAIN) for share in (0.0, 0.5))
    moving = part(some, "activations") + part(some, "working")
    assert part(none, "fragmentation") == 0
    assert part(some, "fragmentation") == pytest.approx(0.5 * moving, rel=1e-9)
    assert some.peak_bytes == pytest.approx(none.peak_bytes + 0.5 * moving, rel=1e-9)


def test_the_limit_is_what_driver_and_nccl_leave() -> None:
    one, other = (priced(changed("megatron-core", fragmentation=share), PLAIN) for share in (0.0, 0.5))
    assert one.memory_limit == other.memory_limit


def test_a_reserve_of_the_cluster_has_the_fragmentation_in_it() -> None:
    stack = changed("megatron-core", fragmentation=0.5)
    assert part(priced(stack, PLAIN, memory_reserve=0.1), "fragmentation") == 0


def test_further_communicators_take_memory_outside() -> None:
    few, many = (changed("megatron-core", further_communicators=count) for count in (0, 2))
    left = priced(few, PLAIN).memory_limit - priced(many, PLAIN).memory_limit
    assert left == pytest.approx(2 * few.communicator_bytes)


def test_each_axis_has_a_communicator_and_a_pipeline_two() -> None:
    layouts = ["dp1", "dp8", "tp2 dp4", "pp2 dp4", "tp2 cp2 pp2 dp1", "dp8 ep2"]
    columns = LayoutColumns.of([parse_layout(f"{layout} mbs1 zero0") for layout in layouts])
    assert communicators(columns).tolist() == [0, 1, 2, 3, 5, 2]


def test_streams_of_their_own_keep_what_they_gathered_and_reduced() -> None:
    shared = changed("torchtitan", fully_shard=False, fragmentation=1e-9)
    apart = changed("torchtitan", fragmentation=1e-9)
    gradients = 4.0 * 6.74e9 / 8  # of a step's only microbatch, in fp32, there before they are made
    more = part(priced(apart, SHARDED), "fragmentation") - part(priced(shared, SHARDED), "fragmentation")
    assert more == pytest.approx(gradients + 2 * 2.0 * 32000 * 4096 + 0.28e9, rel=0.08)


def test_stages_keep_whole_gradients_until_the_last_microbatch() -> None:
    own = catalog.load_stack("torchtitan")
    each, late = (priced(changed("torchtitan", torch_pipelining=piped), PIPED) for piped in (False, True))
    assert own.torch_pipelining
    assert part(late, "gradients") == pytest.approx(2 * part(each, "gradients"), rel=1e-9)


def test_a_compiled_loss_keeps_logits_in_16_bits() -> None:
    logits = 4 * 2048.0 * 128256
    eager, compiled = (
        priced(
            changed("torchtitan", fused_loss=fused, fragmentation=0.1),
            SHARDED.replace("mbs1", "mbs4"),
            model="llama3-8b",
            batch=32,
        )
        for fused in (False, True)
    )
    assert part(eager, "working") - part(compiled, "working") == pytest.approx(8 * logits, rel=0.05)
    freed = part(eager, "fragmentation") - part(compiled, "fragmentation")
    assert freed == pytest.approx(2 * logits + 0.1 * 8 * logits, rel=0.05)


AHEAD = "tp8 dp1 mbs4 zero0 sp"
HIDDEN = 2 * 4 * 2048 * 4096
"""Bytes of a tensor of s·b·h in 16 bits."""


def held_back(layout: str, **more: Any) -> float:
    """Bytes that are only held back: the rest of the fragmentation is the same."""
    one, other = (
        part(priced(changed("nanotron", records_streams=known), layout, **more), "fragmentation")
        for known in (True, False)
    )
    return one - other


def test_what_collectives_hold_grows_until_the_queue_of_launches_is_full() -> None:
    """Two reduced tensors for each block ahead, and for those of the backward pass before it; 1,024 launches in all."""
    alone, many = held_back(AHEAD, batch=4), held_back(AHEAD, batch=64)
    assert 20 < alone / (2 * HIDDEN) < 32  # of 32 blocks
    assert alone <= many < 1.5 * alone
    assert held_back("tp8 dp1 mbs8 zero0 sp", batch=64) == pytest.approx(2 * many)


def test_a_stage_holds_back_no_more_than_its_passes() -> None:
    """Eight blocks forward and eight of the microbatch before."""
    assert held_back("tp2 pp4 dp1 mbs4 zero0 sp", batch=64) == pytest.approx(2 * HIDDEN * (8 + 8))


def test_nothing_is_held_back_without_tensor_parallelism() -> None:
    assert held_back("dp8 mbs1 zero1", batch=8) == 0


def test_what_is_held_back_is_reserved_and_not_allocated() -> None:
    known, other = (priced(changed("nanotron", records_streams=one), AHEAD) for one in (True, False))
    assert known.peak_bytes - part(known, "fragmentation") == other.peak_bytes - part(other, "fragmentation")


def test_recomputed_scores_are_in_flight_with_their_gradients() -> None:
    """An eager core's block holds its scores' gradients, and a copy that a mask is written into."""
    stack = changed("megatron-core", fragmentation=0.0)
    flash, eager = (
        part(
            priced(stack.model_copy(update={"attention": kernel}), "tp8 dp1 mbs8 zero0 recompute=full"),
            "working",
        )
        for kernel in ("flash2", "unfused")
    )
    scores = 2 * 8 * 2048 * 2048 * 32 / 8
    assert eager - flash > 2 * scores
