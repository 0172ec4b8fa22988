"""States in host memory: planned only where the host holds them, and never run by an executor that keeps none there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small import small_question

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, Offload
from cost_models.axes.offload.residency import drive_bytes, host_bytes
from cost_models.axes.words import EVERY
from cost_models.errors import InputError
from cost_models.memory.device import USABLE
from cost_models.memory.device import USABLE as USABLE_OF_DRIVE
from cost_models.operators.parameters import parameters
from cost_models.question import Question, mixed_question
from cost_models.specs.cluster import DriveSpec, MixedCluster
from planner.rules.legality import check, require_legal

WHOLE = Layout(dp=4, zero=0, offload=Offload(states=EVERY))
SHARED = WHOLE.model_copy(update={"zero": 1})


def offloading(host_memory: float | None, stack: str = "deepspeed") -> Question:
    """Four GPUs of one host of that memory."""
    asked = small_question(4, stack=stack)
    return replace(asked, cluster=asked.cluster.model_copy(update={"host_memory": host_memory}))


def needed_by(layout: Layout) -> float:
    return float(host_bytes(offloading(None), LayoutColumns.of([layout]))[0]) / USABLE


def test_a_layout_needs_hosts_that_hold_what_it_offloads() -> None:
    needed = needed_by(WHOLE)
    require_legal(offloading(needed), WHOLE)
    (problem,) = check(offloading(0.99 * needed), WHOLE)
    assert "offloads" in problem.what
    assert "to the memory of each host" in problem.what
    assert not check(offloading(0.99 * needed), SHARED)  # which shares what the others repeat
    assert not check(offloading(0.0), Layout(dp=4))


def test_gradients_of_megatrons_states_on_the_host_lie_there_too() -> None:
    question, row = offloading(1e15, "megatron-core"), LayoutColumns.of([WHOLE])
    blocks = question.model.num_layers * parameters(question.model, row.tp, ep=row.ep, etp=row.etp).block[0]
    assert host_bytes(question, row)[0] == pytest.approx(4 * 16 * blocks, rel=0.01)


def test_a_host_of_unknown_memory_is_asked_about() -> None:
    with pytest.raises(InputError, match="does not say how much one has") as refused:
        require_legal(offloading(None), WHOLE)
    assert refused.value.hint == "add `host_memory`, or say --host-memory"


def test_every_pool_needs_hosts_that_hold_it() -> None:
    pools = [
        replace(asked, cluster=asked.cluster.model_copy(update={"name": name, "host_memory": host}))
        for name, host, asked in (("big", 1e15, offloading(1e15)), ("small", 1.0, offloading(1.0)))
    ]
    link = pools[0].cluster.links.intra_node
    mixed = MixedCluster.model_construct(pools=tuple(pool.cluster for pool in pools), between=link)
    layout = Layout(pp=2, dp=4, offload=Offload(states=EVERY))
    (problem,) = check(mixed_question(mixed, tuple(pools)), layout)
    assert "a host of `small`" in problem.what


def test_a_stack_offloads_what_it_can() -> None:
    (problem,) = check(offloading(1e15, "megatron-core"), Layout(dp=4, offload=Offload(streamed=EVERY)))
    assert problem.what == "software stack `megatron-core` cannot keep `streamed` of a block in host memory"


STATES_ON_DRIVE = Layout(dp=4, zero=3, offload=Offload(states=EVERY, drive=EVERY))


def driven(capacity: str | None) -> Question:
    """Four GPUs of one host with a drive of that capacity."""
    asked = offloading(1e15)
    said = {"capacity": capacity, "read": "5 GB/s", "write": "3 GB/s"}
    drive = None if capacity is None else DriveSpec.model_validate(said)
    return replace(asked, cluster=asked.cluster.model_copy(update={"drive": drive}))


def test_a_layout_needs_drives_that_hold_what_lies_there() -> None:
    needed = float(drive_bytes(driven("1 TB"), LayoutColumns.of([STATES_ON_DRIVE]))[0]) / USABLE_OF_DRIVE
    require_legal(driven(f"{1.001 * needed:.0f} B"), STATES_ON_DRIVE)
    (problem,) = check(driven(f"{0.99 * needed:.0f} B"), STATES_ON_DRIVE)
    assert "on the drive of each host" in problem.what
    with pytest.raises(InputError, match="does not say that one has any") as refused:
        require_legal(driven(None), STATES_ON_DRIVE)
    assert "drive: {capacity:" in refused.value.hint


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (STATES_ON_DRIVE.model_copy(update={"zero": 1}), "on the drive under `zero3` only"),
        (Layout(dp=4, zero=3, offload=Offload(drive=EVERY)), "none that the CPU updates"),
        (Layout(dp=4, zero=3, offload=Offload(states=EVERY, drive=2)), "lie on the drive, or none"),
    ],
)
def test_what_a_drive_cannot_hold_is_said(layout: Layout, said: str) -> None:
    assert said in " ".join(problem.what for problem in check(driven("1 TB"), layout))


def test_a_stack_without_drives_says_so() -> None:
    asked = driven("1 TB")
    stack = asked.stack.model_copy(update={"residencies": ("states",)})
    (problem,) = check(replace(asked, stack=stack), STATES_ON_DRIVE)
    assert problem.what == "software stack `deepspeed` cannot keep states on a drive"
