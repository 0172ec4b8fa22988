"""Adapters: every layout trains as one process does, and what is frozen stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from effort import few, first_of
from processes import Processes
from saving_jobs import train_and_save
from training import GPT, LLAMA, plan_for, reported, stray, train_weights

from executor.checkpoints.manifest import Folder, read_manifest

TUNING = {"rank": 4, "targets": ("all-linear",), "alpha": 8.0}
TOLERANCE = 1e-5


@few(1)
@pytest.mark.parametrize(
    ("layout", "model"),
    first_of(
        2,
        [
            ("tp2 dp2 mbs2 zero1", LLAMA),
            ("tp2 pp2 sp mbs2", GPT),
            ("pp2 dp2 mbs2 zero0 recompute=full", LLAMA),
            ("tp2 dp2 sp mbs2 zero3", LLAMA),
            ("cp2 dp2 mbs2 zero1", GPT),
        ],
    ),
)
def test_a_layout_trains_adapters_as_one_process(
    processes: Processes, layout: str, model: dict[str, Any]
) -> None:
    alone = processes.run(1, train_weights, plan_for("mbs2", model, tuning=TUNING), 4, True)[0]
    plan = plan_for(layout, model, tuning=TUNING)
    for curve, way in processes.run(plan.num_ranks, train_weights, plan, 4, True):
        for found, expected in zip(curve, alone[0], strict=True):
            assert found == pytest.approx(expected, rel=TOLERANCE)
        off, name = stray(way, alone[1])
        assert off < 1e-3, name
        assert all(("_adapter.up" in name) <= (abs(gone).max() > 0) for name, gone in way.items())
        assert all(abs(gone).max() == 0 for name, gone in way.items() if "_adapter" not in name)


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
