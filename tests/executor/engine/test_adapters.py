"""Adapters: their bytes, and checkpoints that hold them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import Processes
from saving_jobs import train_and_save
from training import LLAMA, plan_for, reported

from executor.checkpoints.manifest import Folder, read_manifest

TUNING = {"rank": 4, "targets": ("all-linear",), "alpha": 8.0}
TOLERANCE = 1e-5


def test_bytes_are_those_of_the_plan(processes: Processes, tmp_path: Path) -> None:
    plan = plan_for("tp2 mbs2", LLAMA, tuning=TUNING)
    report = processes.run(2, _reported, plan, tmp_path)[0]
    for rank in report.ranks:
        for part in ("weights", "gradients", "optimizer"):
            assert rank.memory[part] == pytest.approx(rank.predicted_memory[part], rel=0.03), part


def test_a_run_of_adapters_resumes_under_another_layout(processes: Processes, tmp_path: Path) -> None:
    """The checkpoint has the adapters alone; what is frozen is drawn again."""
    first, other = (plan_for(layout, LLAMA, tuning=TUNING) for layout in ("tp2 mbs2", "dp2 mbs2 zero1"))
    curve, _, _ = processes.run(2, _saved, first, tmp_path, False)[0]
    Folder(tmp_path).delete(5)
    resumed, notes, _ = processes.run(2, _saved, other, tmp_path, True)[0]
    assert "saved as tp2" in notes[0]
    for found, expected in zip(resumed, curve[3:], strict=True):
        assert found == pytest.approx(expected, rel=TOLERANCE)
    assert all(
        "_adapter" in name or "random" in name for name in read_manifest(Folder(tmp_path).at(3)).tensors
    )


def _reported(plan: Any, folder: Path) -> Any:
    return reported(plan, folder, steps=1, warm_up=1, waiting_steps=0)


def _saved(plan: Any, folder: Path, resume: bool) -> Any:
    return train_and_save(plan, folder, resume=resume)
