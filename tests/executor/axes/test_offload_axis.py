"""Blocks in host memory and states on a drive train as blocks on the device do: losses, norms and weights are the same
bits, and so are their checkpoints.

Each residency against the same layout without offload, in the same processes. Under ZeRO-1 a rank's share of a block
that is not on the device is a share of that block alone, so that a norm's squares are added up in another order; its
last bit may differ, and with clipping that of a weight.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import resource
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from effort import few, first_of
from saving_jobs import SAVED_AT, train_and_save
from saving_jobs import STEPS as SAVED_STEPS
from training import (
    GPT,
    LAST_PLACE,
    LLAMA,
    MOE,
    NO_GRADIENT,
    Trained,
    offloaded_step,
    plan_for,
    train_weights,
)

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload.residency import drive_step_bytes
from cost_models.errors import HostError, RunError
from cost_models.files import catalog
from executor.axes.offload import link as drives
from executor.axes.offload.link import HostLink
from executor.axes.offload.reporting import require_drive
from executor.checkpoints.manifest import Folder
from executor.emulate.one_rank import emulate
from executor.engine.weights import make_room
from executor.measure.report import predicted_parts
from executor.models.transformer import Transformer
from executor.pinned import pinned_zeros
from planner.plan import Plan

STEPS = 3
WAYS = ("states", "parked", "states/drive", "streamed/activations", "states:1/parked:1/streamed:1/drive")
WAYS += ("activations", "streamed/drive", "states:1/parked:1/streamed:1", "streamed ring=1")
NORM_ERROR = 3e-7
SMALL_CHUNKS = mock.patch.object(drives, "CHUNK", 160)
"""So that every block has several chunks on a drive, the last of them shorter."""

MIXED = MOE | {"num_moe_layers": 2}
BF16, SGD = {"precision": "bf16"}, {"optimizer": "sgd"}
"""Master weights that are elsewhere than the weights that go up; no states that could lie anywhere."""
CASES: list[tuple[dict[str, Any], str, float | None, dict[str, str]]] = first_of(
    10,
    [
        (GPT, "mbs2 recompute=full", None, {}),
        (MIXED, "mbs2", 0.5, {}),
        (GPT, "dp2 mbs2 zero1", None, {}),
        (GPT, "dp2 mbs2 zero3", 0.5, BF16),
        (GPT, "tp2 mbs2", None, {}),
        (LLAMA, "tp2 sp mbs2 recompute=full", 0.5, {}),
        (LLAMA, "pp2 vpp2 mbs2 recompute=full", None, {}),
        (GPT, "dp2 mbs2 zero3 recompute=full", 0.5, {}),
        (GPT, "pp2 dp2 mbs1 zero1", 0.5, {}),
        (GPT, "mbs2", None, SGD),
        (GPT, "dp2 mbs2 zero0", None, BF16),
        (GPT, "pp2 mbs2 layers=1,3 schedule=gpipe", 0.5, {}),
        (MIXED, "dp2 ep2 mbs2 zero1", None, {}),
        (GPT, "dp2 mbs2 zero3", None, SGD),
        (LLAMA, "tp2 pp2 dp2 mbs1 zero1", 0.5, {}),
    ],
)


def require_same(found: Trained, expected: Trained, *, norm_error: float = 0.0, exact: bool = True) -> None:
    """The same bits, of norms within the error; weights that were clipped by such a norm nearly."""
    for (loss, norm), (expected_loss, expected_norm) in zip(found[0], expected[0], strict=True):
        assert norm == pytest.approx(expected_norm, rel=norm_error, abs=0.0)
        assert loss == expected_loss if exact else loss == pytest.approx(expected_loss, rel=1e-6)
    assert found[1].keys() == expected[1].keys()
    for name, way in found[1].items():
        if exact:
            assert (way == expected[1][name]).all(), name
        elif not name.endswith(NO_GRADIENT):
            assert way == pytest.approx(expected[1][name], rel=1e-4, abs=LAST_PLACE), name


def train_each(plans: list[Plan], clip: float | None) -> list[Trained]:
    """What each plan does with its own optimizer, one after the other."""
    with SMALL_CHUNKS:
        return [train_weights(plan, STEPS, False, None, clip) for plan in plans]


@few(6)
@pytest.mark.parametrize(
    ("model", "layout", "clip", "job"), CASES, ids=[f"{layout} {job}" for _, layout, _, job in CASES]
)
def test_the_same_bits_wherever_blocks_live(model, layout, clip, job, processes) -> None:
    """In every run each layout with three of the ways by turns."""
    place = CASES.index((model, layout, clip, job))
    ways = first_of(3, [WAYS[(place + later) % len(WAYS)] for later in range(len(WAYS))])
    plans = [plan_for(f"{layout} {way}", model, **job) for way in ("", *(f"offload={way}" for way in ways))]
    shares = "zero1" in layout
    for plain, *offloaded in processes.run(plans[0].layout.num_gpus, train_each, plans, clip):
        for one in offloaded:
            require_same(
                one, plain, norm_error=NORM_ERROR if shares else 0.0, exact=clip is None or not shares
            )


SIZE = {"num_layers": 6, "hidden_size": 256, "max_positions": 256}
JOB = {"global_batch": 8, "sequence_length": 256}


@few(2)
@pytest.mark.parametrize(
    ("way", "host_bytes", "copied_bytes"),
    [
        ("states:4", 12, 8),  # weights and moments in fp32; gradients down, weights up
        ("parked:4", 8, 16),  # moments, up and down
        ("streamed:4 ring=1", 16, 24),  # all of it; weights up for four passes, gradients down for two
    ],
)
def test_tiers_hold_and_links_carry_what_can_be_counted(way, host_bytes, copied_bytes, processes) -> None:
    """Bytes a parameter of the blocks that live on the host; gradients of two more travel."""
    plan = plan_for(f"mbs4 offload={way}", GPT | SIZE, **JOB)
    ((parts, host, carried, _),) = processes.run(1, offloaded_step, plan)
    copied = carried.down_bytes + carried.up_bytes
    predicted = predicted_parts(plan.prediction.rank_memory[0])
    assert sum(parts.values()) == pytest.approx(sum(predicted.values()), rel=0.02)
    block = 12 * 256**2 + 13 * 256
    travelling = 0 if way == "parked:4" else 2 * 4 * block
    assert host == pytest.approx(4 * host_bytes * block + travelling, rel=0.005)
    assert plan.prediction.host_bytes == pytest.approx(host, rel=0.005)
    # the last block stays between its two passes, the first of them from one microbatch to the next
    stays = 3 * 4 * block if "streamed" in way else 0
    assert copied == pytest.approx(4 * copied_bytes * block - stays, rel=0.005)


def test_activations_leave_the_device(processes) -> None:
    """All but those of two blocks, of six; and they come back, those of each of four microbatches."""
    plan = plan_for("mbs2 offload=activations", GPT | SIZE, **JOB)
    ((parts, host, carried, _),) = processes.run(1, offloaded_step, plan)
    copied = carried.down_bytes + carried.up_bytes
    assert sum(parts.values()) == pytest.approx(
        sum(predicted_parts(plan.prediction.rank_memory[0]).values()), rel=0.02
    )
    assert copied == pytest.approx(4 * 2 * host, rel=0.01)
    assert host > parts["rest"] / 2


def runs_out(plan: Plan) -> str:
    """What is said where an update finds no more host memory."""
    from executor.engine.engine import Engine
    from executor.measure.memory import out_of_memory_by_part
    from executor.run_config import EngineOptions

    try:
        with out_of_memory_by_part(torch.device("cpu")) as held:
            held.append(Engine(plan, torch.device("cpu"), EngineOptions()))
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    except RunError as error:
        return f"{error} / {error.hint}"


def test_host_memory_that_runs_out_is_named(processes) -> None:
    (said,) = processes.run(1, runs_out, plan_for("mbs2 offload=streamed"))
    assert said.startswith("host memory ran out: offloaded blocks have")
    assert "checkpoints that were saved are whole" in said


def test_pinned_memory_names_the_limit(monkeypatch) -> None:
    """Where a GPU's host refuses to pin a buffer, as this one does, which has no GPU."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 20, 1 << 20))
    link = HostLink(torch.device("cpu"), 1)
    link._pinned = True
    refuses = mock.Mock(**{"cudaHostRegister.return_value": 2})
    monkeypatch.setattr(torch.cuda, "cudart", lambda: refuses)
    with pytest.raises(HostError, match="MiB more of host memory") as raised:
        link.buffer(1 << 20, torch.float32)
    assert "`ulimit -l` allows 1.0 MiB" in (raised.value.hint or "")


@pytest.fixture
def locked(monkeypatch) -> dict[int, int]:
    """Address → bytes of what a driver locks: pages, of which it locks none twice."""
    found: dict[int, int] = {}

    def pages(address: int, size: int) -> range:
        return range(address // mmap.PAGESIZE, (address + size - 1) // mmap.PAGESIZE + 1)

    class Driver:
        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
            mine = pages(address, size)
            if any(
                mine[0] <= other[-1] and other[0] <= mine[-1]
                for other in [pages(*one) for one in found.items()]
            ):
                return 712
            found[address] = size
            return 0

        def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
            return 0 if found.pop(address) else 1

    monkeypatch.setattr(torch.cuda, "cudart", Driver)
    return found


def test_small_pinned_buffers_share_no_page(locked) -> None:
    """A shard of a norm's gains is smaller than a page, and the driver locks a page once."""
    made = [pinned_zeros(32, torch.float32) for _ in range(64)]
    assert list(locked.values()) == [128] * len(made)


def test_shards_of_streamed_blocks_are_pinned_as_large_as_they_are(locked) -> None:
    """In place of torch's allocator, to which `fully_shard` would give them."""
    with torch.device("meta"):
        model = plan_for("mbs2").model
        part = Transformer(
            model, vocabulary=64, dropout=0.0, blocks=range(2), has_embedding=False, has_head=False
        )
    make_room(part, torch.device("cuda"), list(part.blocks), flat=False)
    assert sum(locked.values()) == sum(one.nbytes for one in part.parameters()) > 0


def test_pinned_memory_is_as_large_as_what_lies_in_it(locked) -> None:
    """Torch's allocator would round 21 blocks of Llama 2 13B, 111.7 GiB, up to 137.4; here, a thousandth of them."""
    link = HostLink(torch.device("cpu"), 1)
    link._pinned = True
    sizes = [317_194_240 // 1000] * 21
    made = [link.buffer(size, dtype) for size in sizes for dtype in (torch.float32, torch.bfloat16)]
    assert sum(locked.values()) == 6 * sum(sizes) == sum(one.nbytes for one in link.buffers)
    parts = [one[1:] for one in made]
    link.buffers.clear()
    del made
    assert len(locked) == len(parts)
    assert not any(part.any() for part in parts)
    del parts
    assert not locked


@few(1)
@pytest.mark.parametrize(
    "way", ["states", "streamed", "states:1/parked:1/streamed:1", "activations", "streamed/activations"]
)
def test_a_rank_is_emulated_without_values(way: str) -> None:
    """What the host's thread does is done where fake tensors are known; bytes are those of real ones."""
    plan = plan_for(f"mbs2 offload={way}")
    fake, real = (emulate(plan, 0, steps=1, fake=fake) for fake in (True, False))
    assert fake.memory == real.memory


@pytest.mark.parametrize(("way", "unused"), [("states:3/drive", 0), ("streamed:3/drive ring=1", 3)])
def test_bytes_of_the_drive_are_those_of_the_plan(way: str, unused: int, processes) -> None:
    """In host memory are buffers of chunks and gradients of two blocks, besides what streamed blocks keep of theirs;
    fp32 weights that passes use have no buffers."""
    size = {"num_layers": 4, "hidden_size": 256, "max_positions": 64}
    plan = plan_for(f"mbs4 offload={way}", GPT | size)
    ((parts, host, carried, held),) = processes.run(1, offloaded_step, plan)
    columns = LayoutColumns.of([plan.layout])
    assert (carried.drive_read_bytes, carried.drive_written_bytes) == pytest.approx(
        [own[0] for own in drive_step_bytes(plan.question, columns)], rel=0.005
    )
    assert held == pytest.approx(plan.prediction.drive_bytes, rel=0.005)
    assert sum(parts.values()) < 1.03 * plan.prediction.peak_bytes
    block = 12 * 256**2 + 13 * 256
    bare = unused * 4 * block / drives.CHUNKS
    assert host == pytest.approx(plan.prediction.host_bytes - bare, rel=0.01)


def test_our_stack_says_what_the_executor_does() -> None:
    use = catalog.load_stack("meshwright").drive
    assert (use.chunk, use.block_chunks, use.buffers) == (drives.CHUNK, drives.CHUNKS, 3 * drives.SLOTS)


def saved(plan: Plan, folder: Path, resume: bool) -> list[tuple[float, float]]:
    """The curve of a run, with checkpoints of steps 3 and 5."""
    with SMALL_CHUNKS:
        return train_and_save(plan, folder, resume=resume)[0]


def fails(plan: Plan, folder: Path) -> tuple[str, int]:
    """What is said where the drive takes no more once there is a checkpoint; and the exit code."""
    from executor.run_config import RunConfig
    from executor.steps import Watcher
    from executor.transformer.train import train

    really = os.pwritev

    def full(*arguments: Any) -> int:
        if Folder(folder).complete():
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(*arguments)

    config = RunConfig(steps=9, warm_up=0, checkpoint=folder, every=2)
    try:
        with mock.patch.object(os, "pwritev", full):
            train(plan, torch.device("cpu"), config, Watcher())
    except HostError as error:
        return str(error), error.exit_code
    return "", 0


def test_a_drive_that_fills_during_a_run_is_named(processes, tmp_path) -> None:
    """With what every tier holds; and the last checkpoint is whole."""
    plan = plan_for("mbs2 offload=states/drive")
    ((said, code),) = processes.run(1, fails, plan, tmp_path)
    assert said.startswith("drive: no space left on device in")
    assert "of optimizer states" in said
    assert "host memory: offloaded blocks" in said
    assert "device: weights, gradients and states" in said
    assert code == 2
    (saved, *_) = Folder(tmp_path).complete()
    went_on, notes, _ = processes.run(1, train_on, plan, tmp_path)[0]
    told = re.search(r"resumed from .* after step (\d+)", notes[0])
    assert told is not None, notes
    assert int(told[1]) >= saved  # a later one may have been under way when the drive was full
    assert len(went_on) == SAVED_STEPS + 4 - int(told[1])


def train_on(plan: Plan, folder: Path) -> Any:
    return train_and_save(plan, folder, resume=True, steps=SAVED_STEPS + 4)


def test_a_drive_without_room_is_refused_before_anything_runs(tmp_path) -> None:
    plan = plan_for("dp2 mbs2 zero1 offload=states/drive")
    require_drive(plan, tmp_path)
    with pytest.raises(HostError, match="there is no such folder"):
        require_drive(plan, tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="is no folder"):
        require_drive(plan, tmp_path / "file")
    denied = mock.patch(
        "tempfile.TemporaryFile", side_effect=PermissionError(errno.EACCES, "Permission denied")
    )
    with denied, pytest.raises(HostError, match="permission denied") as refused:
        require_drive(plan, tmp_path)
    assert refused.value.exit_code == 2
    large = plan.model_copy(update={"prediction": plan.prediction.model_copy(update={"drive_bytes": 1e18})})
    with pytest.raises(HostError, match=r"909494.7 TiB of optimizer states need room there, and .* are free"):
        require_drive(large, tmp_path)
    require_drive(plan_for("dp2 mbs2 zero1"), tmp_path / "absent")  # which has nothing there


def no_room(plan: Plan, folder: Path) -> str:
    from executor.engine.engine import Engine
    from executor.run_config import EngineOptions

    full = OSError(errno.ENOSPC, "No space left on device")
    try:
        with mock.patch.object(os, "posix_fallocate", side_effect=full):
            Engine(plan, torch.device("cpu"), EngineOptions(drive=folder))
    except HostError as error:
        return str(error)
    return ""


def test_room_is_taken_before_the_first_step(processes, tmp_path) -> None:
    (said,) = processes.run(1, no_room, plan_for("mbs2 offload=states/drive"), tmp_path)
    assert "has no room for" in said
    assert "are free beside 0 B that this rank has there" in said
    assert not list(tmp_path.iterdir())  # files have no names, so nothing is left behind


MIXTURE = "states:1/parked:1/streamed:1"


@pytest.mark.parametrize(
    ("layout", "precision", "ways"),
    [
        ("dp2 mbs2 zero0", "bf16", ("offload=states/drive", "", "offload=streamed/drive")),
        ("mbs2", "bf16", ("offload=streamed", f"offload={MIXTURE}", "")),
        ("dp2 mbs2 zero0", "fp32", ("", f"offload={MIXTURE}", "offload=parked")),
        ("dp2 mbs2 zero3", "bf16", (f"offload={MIXTURE}", "", "offload=states")),
        ("tp2 mbs2 recompute=full", "fp32", ("offload=states", "offload=streamed ring=3")),
    ],
)
@few(2)
def test_a_run_goes_on_bit_for_bit_wherever_its_blocks_live(
    layout, precision, ways, processes, tmp_path
) -> None:
    """Saved one way, resumed the others and the same."""
    first, *others = (plan_for(f"{layout} {way}", GPT, precision=precision) for way in ways)
    ranks = first.layout.num_gpus
    expected = processes.run(ranks, saved, first, tmp_path, False)[0][SAVED_AT:]
    for plan in (first, *others):
        Folder(tmp_path).delete(SAVED_STEPS)
        assert processes.run(ranks, saved, plan, tmp_path, True)[0] == expected
