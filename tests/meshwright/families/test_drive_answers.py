"""Drives in the answers: what lies on them, what of a step they take, and what a drive too small is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright import estimate, plan
from planner.plan import load_plan, plan_text

JOB: dict[str, Any] = {"global_batch": 8, "sequence": 2048, "stack": "meshwright"}
LAYOUT = "mbs1 zero0 recompute=full offload=states/drive"
BOX = """\
kind: cluster
name: box
gpu: h200
gpus_per_node: 1
links: {intra_node: {kind: nvswitch, bandwidth: 450 GB/s, latency: 3 us}}
host_memory: 64 GiB
"""
DRIVE = "drive: {capacity: %s, read: 8 GB/s, write: 4 GB/s}\n"


@pytest.fixture
def box(tmp_path) -> Path:
    (file := tmp_path / "box.yaml").write_text(BOX + DRIVE % "4 TB")
    return file


def test_an_estimate_says_what_lies_on_the_drive(box) -> None:
    answer = estimate("llama2-13b", str(box), None, LAYOUT, **JOB)
    record = answer.record()["estimate"]
    assert record["drive_limit"] == pytest.approx(3.6e12)
    assert record["drive_bytes"] == answer.estimate.drive_bytes
    assert "drive 141.8 GiB of 3.3 TiB on each host" in repr(answer)
    assert record["host_channels"]["binding"] == "drive write"
    assert plan_text(answer.plan).count("drive_bytes: ") == 1


def test_a_plan_on_a_drive_is_found_kept_and_read_again(box, tmp_path) -> None:
    """Where host memory does not do."""
    tight = {"host_memory": "16GiB", "max_memory": "110GiB"}
    answer = plan("llama2-13b", str(box), None, allow=["offload"], top=1, **tight, **JOB)
    assert "/drive" in answer.record()["plans"][0]["layout"]
    answer.save(str(tmp_path / "plan.yaml"))
    again = load_plan(tmp_path / "plan.yaml")
    assert again.layout.offload.drive
    assert again.prediction.drive_bytes == answer.plan.prediction.drive_bytes
