"""The benchmark of one GPU keeps to its time, says what it left out, and goes on where it was cut short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "h200" / "run.py"


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


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    told = run(tmp_path, "--dry", "--seconds", "5").splitlines()
    assert len(told) == 5
    assert told[0] == "calibration: left out, takes about 75 s, 0 s were left"
    assert "- left out: calibration, takes about 75 s, 0 s were left" in (tmp_path / "results.md").read_text()


def test_a_run_is_done_once_and_kept(tmp_path: Path) -> None:
    """And so is one that a killed command had not taken over yet."""
    (tmp_path / "running.json").write_text(
        json.dumps({"runs": {"no-such-model/s32/mbs1/none/fp32/adamw": {"failed": "x"}}, "sweeps": {}})
    )
    names = ("llama-nano/s32/mbs1/*", "no-such-model/*")
    told = run(tmp_path, "--dry", "--only", *names)
    row = json.loads((tmp_path / "results.json").read_text())["runs"]["llama-nano/s32/mbs1/none/fp32/adamw"]
    assert row["step_seconds"] > 0
    assert row["attention"] == "flash of the CPU"
    assert row["predicted_peak_bytes"] == pytest.approx(
        sum(row[f"measured_{part}_bytes"] for part in ("weights", "gradients", "optimizer", "rest")), rel=0.02
    )
    assert "no-such-model/s32/mbs1/none/fp32/adamw: x\n" in told
    assert run(tmp_path, "--dry", "--seconds", "5", "--only", *names) == told


def test_every_job_has_a_name_of_its_own_and_fits_a_call() -> None:
    lines = run("--list").splitlines()
    names = [line.split()[-1] for line in lines]
    assert len(set(names)) == len(names) == 23
    assert all(float(line.split()[0]) < 200 for line in lines)
    assert [name.split("/")[0] for name in names[:4]] == [
        "calibration",
        "llama3.2-1b",
        "llama3.2-3b",
        "llama3.1-8b",
    ]
