"""Optimizer states on a drive: the same bits as on the device, whole in checkpoints, counted, and clear in failing."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from effort import few, some_of
from saving_jobs import SAVED_AT, STEPS, train_and_save
from training import GPT, MOE, Trained, offloaded_step, plan_for, train_weights

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload.residency import drive_step_bytes
from cost_models.errors import HostError
from cost_models.files import catalog
from cost_models.specs.cluster import DriveSpec
from executor.axes.offload import link as drives
from executor.axes.offload.reporting import require_drive
from executor.checkpoints.manifest import Folder
from executor.emulate.dry_run import build_without_devices
from executor.emulate.one_rank import emulate
from planner.plan import Plan

MANY = mock.patch.object(drives, "CHUNK", 160)
"""So that every block has several chunks, the last of them shorter."""
WAYS = ("states/drive", "streamed/drive", "states:1/parked:1/streamed:1/drive")
CASES = (
    ("mbs2", GPT, "fp32"),
    ("mbs2 recompute=full", GPT, "bf16"),
    ("dp2 mbs2 zero1", GPT, "fp32"),
    ("dp2 mbs2 zero3", GPT, "bf16"),
    ("pp2 mbs2", GPT, "bf16"),
    ("dp2 ep2 mbs2 zero1", MOE | {"num_moe_layers": 2}, "fp32"),
)


def train_each(plans: list[Plan]) -> list[Trained]:
    with MANY:
        return [train_weights(plan, 3, False) for plan in plans]


@few(1)
@pytest.mark.parametrize("case", some_of(CASES, CASES[0], CASES[3]), ids=lambda case: case[0])
def test_the_same_bits_on_a_drive(case: tuple[str, dict[str, object], str], processes) -> None:
    layout, model, precision = case
    ways = ("", *(f"offload={way}" for way in WAYS))
    if "zero1" in layout:  # norms of shares of blocks are added up in another order
        ways = ("offload=states", ways[1])
    plans = [plan_for(f"{layout} {way}", model, precision=precision) for way in ways]
    for plain, *others in processes.run(plans[0].layout.num_gpus, train_each, plans):
        for (curve, weights), way in zip(others, ways[1:], strict=True):
            assert curve == plain[0], way
            assert all((weights[name] == plain[1][name]).all() for name in plain[1]), way


@few(1)
@pytest.mark.parametrize("layout", ["mbs2", "dp2 mbs2 zero3"])
def test_an_optimizer_without_states_goes_with_every_offload(layout: str, processes) -> None:
    """There may be nothing of it to lie anywhere."""
    ways = ("", *(f"offload={way}" for way in ("states", "parked", "streamed", *WAYS)))
    plans = [plan_for(f"{layout} {way}", optimizer="sgd") for way in ways]
    for (curve, _), *others in processes.run(plans[0].layout.num_gpus, train_each, plans):
        assert all(other == curve for other, _ in others)


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
    with MANY:
        return train_and_save(plan, folder, resume=resume)[0]


def test_a_run_goes_on_bit_for_bit_from_a_drive_and_onto_one(processes, tmp_path) -> None:
    layouts = (
        "dp2 mbs2 zero0 offload=states/drive",
        "dp2 mbs2 zero0",
        "dp2 mbs2 zero0 offload=streamed/drive",
    )
    first, *others = (plan_for(layout, GPT, precision="bf16") for layout in layouts)
    expected = processes.run(2, saved, first, tmp_path, False)[0][SAVED_AT:]
    for plan in (first, *others):
        Folder(tmp_path).delete(STEPS)
        assert processes.run(2, saved, plan, tmp_path, True)[0] == expected


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
    assert len(went_on) == STEPS + 4 - int(told[1])


def train_on(plan: Plan, folder: Path) -> Any:
    return train_and_save(plan, folder, resume=True, steps=STEPS + 4)


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


@few(0)
def test_a_drive_costs_nothing_where_nothing_has_values() -> None:
    for way in ("states/drive", "streamed/drive"):
        plan = _on_a_drive(f"mbs2 offload={way}")
        fake, real = (emulate(plan, 0, steps=1, fake=fake) for fake in (True, False))
        assert fake.memory == real.memory
    assert build_without_devices(_on_a_drive("pp2 mbs2 offload=states/drive"))


def _on_a_drive(layout: str) -> Plan:
    """A plan for a cluster that says what its drives are: it is asked for room there before a rank is built."""
    plan = plan_for(layout)
    drive = DriveSpec.model_validate({"capacity": "1 TB", "read": "2 GB/s", "write": "1 GB/s"})
    return plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"drive": drive})})
