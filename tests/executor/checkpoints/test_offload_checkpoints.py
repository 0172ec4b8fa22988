"""Checkpoints of blocks in host memory: the same names and bits as without, so a run goes on wherever they live."""

from __future__ import annotations

from pathlib import Path

import pytest
from effort import few
from processes import Processes
from saving_jobs import SAVED_AT, STEPS, train_and_save
from training import GPT, plan_for

from executor.checkpoints.manifest import Folder
from planner.plan import Plan

MIXTURE = "states:1/parked:1/streamed:1"


def saves(plan: Plan, folder: Path) -> list[tuple[float, float]]:
    """The uninterrupted curve; checkpoints of steps 3 and 5."""
    return train_and_save(plan, folder, resume=False)[0]


def goes_on(plan: Plan, folder: Path) -> list[tuple[float, float]]:
    return train_and_save(plan, folder, resume=True)[0]


def interrupted(processes: Processes, plan: Plan, folder: Path) -> list[tuple[float, float]]:
    curve: list[tuple[float, float]] = processes.run(plan.layout.num_gpus, saves, plan, folder)[0]
    Folder(folder).delete(STEPS)
    return curve[SAVED_AT:]


@pytest.mark.parametrize(
    ("layout", "precision", "ways"),
    [
        ("mbs2", "bf16", ("offload=streamed", f"offload={MIXTURE}", "")),
        ("dp2 mbs2 zero0", "fp32", ("", f"offload={MIXTURE}", "offload=parked")),
        ("dp2 mbs2 zero3", "bf16", (f"offload={MIXTURE}", "", "offload=states")),
        ("tp2 mbs2 recompute=full", "fp32", ("offload=states", "offload=streamed ring=3")),
    ],
)
@few(1)
def test_a_run_goes_on_bit_for_bit_wherever_its_blocks_live(
    layout: str, precision: str, ways: tuple[str, ...], processes, tmp_path
) -> None:
    """Saved one way, resumed the others and the same."""
    saved, *others = (plan_for(f"{layout} {way}", GPT, precision=precision) for way in ways)
    expected = interrupted(processes, saved, tmp_path)
    for plan in (saved, *others):
        assert processes.run(plan.layout.num_gpus, goes_on, plan, tmp_path)[0] == expected
        Folder(tmp_path).delete(STEPS)


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        ("dp4 mbs2 zero1 offload=streamed", "tp2 pp2 mbs2 offload=states"),
        ("pp2 dp2 mbs1 zero1 offload=parked", "dp4 mbs2 zero3 offload=streamed"),
    ],
)
@few(0)
def test_a_run_goes_on_with_another_layout_too(saved, resumed: str, processes, tmp_path) -> None:
    expected = interrupted(processes, plan_for(saved), tmp_path)
    got = processes.run(4, goes_on, plan_for(resumed), tmp_path)[0]
    assert got == [pytest.approx(pair, rel=1e-5) for pair in expected]
