"""The benchmark of one GPU keeps to its time, says what it left out, and goes on where it was cut short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from effort import few

from executor.measure.parts import STEP_PARTS

RUN = Path(__file__).parents[3] / "benchmarks" / "h200" / "run.py"


def run(*words: str | Path) -> str:
    """What it prints."""
    done = subprocess.run(
        [sys.executable, str(RUN), *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(RUN.parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_what_does_not_fit_is_left_out_and_said(tmp_path) -> None:
    told = run(tmp_path, "--dry", "--seconds", "5").splitlines()
    assert len(told) == 13
    assert told[-1].startswith("no figure: no run told the parts")
    assert told[0] == "calibration: left out, takes about 165 s, 0 s were left"
    assert (
        "- left out: calibration, takes about 165 s, 0 s were left" in (tmp_path / "results.md").read_text()
    )


@few(0)
def test_a_run_is_done_once_and_kept(tmp_path) -> None:
    """And so is one that a killed command had not taken over yet."""
    (tmp_path / "running.json").write_text(
        json.dumps({"runs": {"no-such-model/s32/mbs1/none/fp32/adamw": {"failed": "x"}}, "sweeps": {}})
    )
    loaded = "llama3.2-1b/2-blocks/s32/mbs4/none/fp32/adamw/loaded/narrow"
    names = (loaded, "no-such-model/*")
    told = run(tmp_path, "--dry", "--only", *names)
    row = json.loads((tmp_path / "results.json").read_text())["runs"][loaded]
    assert row["step_seconds"] > 0
    assert row["loss_of_loaded"] == row["loss_of_saved"] < row["first_loss"]
    parts = [row[f"spent_{part}_seconds"] for part in STEP_PARTS]
    assert sum(parts) == pytest.approx(row["step_seconds"])
    assert 0 < row["spent_products_seconds"] < row["spent_compute_seconds"]
    table = (tmp_path / "results.md").read_text()
    assert all(f"| {loaded} | {part} |" in table for part in ("compute", "host", "optimizer", "products"))
    assert (tmp_path / "results.svg").exists()
    assert row["attention"] == "flash of the CPU"
    assert row["predicted_peak_bytes"] == pytest.approx(
        sum(row[f"measured_{part}_bytes"] for part in ("weights", "gradients", "optimizer", "rest")), rel=0.02
    )
    assert "no-such-model/s32/mbs1/none/fp32/adamw: x\n" in told
    assert run(tmp_path, "--dry", "--seconds", "5", "--only", *names) == told
