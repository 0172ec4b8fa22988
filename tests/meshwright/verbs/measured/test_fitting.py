"""`meshwright calibrate --from-runs` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import told

from cost_models.files.catalog import load_profile

COLUMNS = "model,cluster,stack,sequence_length,global_batch,layout,step_seconds,skipped"
MINE = (
    "llama3-8b,dgx-h100,torchtitan,8192,16,dp8 mbs1 zero3 recompute=full,2.86,",
    "llama3-8b,dgx-h100,torchtitan,8192,128,dp64 mbs1 zero3 recompute=full,2.93,",
    "llama3-8b,dgx-h100,torchtitan,8192,256,dp128 mbs2 zero3 recompute=full,2.90,",
)
OTHERS = (
    "llama3-8b,dgx-h100,nemo,8192,128,dp64 mbs1 zero1 recompute=full,3.0,",
    "llama3-8b,,torchtitan,8192,128,,2.93,GPU `Abacus` is not in the catalogue",
    "llama3-8b,dgx-h100,torchtitan,8192,128,dp64 mbs1 zero3 recompute=full,,",
)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with three old log lines, and a table of several stacks."""
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("\n".join((COLUMNS, *MINE)) + "\n")
    Path("mixed.csv").write_text("\n".join((COLUMNS, *MINE, *OTHERS)) + "\n")
    Path("untimed.csv").write_text("\n".join((COLUMNS, OTHERS[2])) + "\n")
    return tmp_path


def calibrate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return told(capsys, "calibrate", *words)


def test_what_was_written_is_what_later_verbs_use(capsys, here) -> None:
    document = json.loads(calibrate(capsys, "--from-runs", "mine.csv", "-o", "ours.yaml", "--json")[1])
    (fitted,) = document["profiles"]
    assert fitted["median_error_after"] < fitted["median_error_before"]
    validated = json.loads(
        told(capsys, "validate", "--runs", "mine.csv", "--profile", "ours.yaml", "--json")[1]
    )
    for row, of_fit in zip(validated["rows"], fitted["runs"], strict=True):
        off = row["predicted_step_seconds"] / row["measured_step_seconds"] - 1
        assert off == pytest.approx(of_fit["after"])
        assert row["profile"] == "fitted-h100-sxm-torchtitan"
    asked = ("llama3-8b", "dgx-h100", "--stack", "torchtitan", "--gpus", "64", "--global-batch", "128")
    words = ("--sequence", "8192", "--layout", "dp64 mbs1 zero3 recompute=full", "--profile", "ours.yaml")
    estimated = json.loads(told(capsys, "estimate", *asked, *words, "--json")[1])["estimate"]
    assert estimated["trust"]["profile"] == "fitted-h100-sxm-torchtitan"
    predicted = validated["rows"][1]["predicted_step_seconds"]
    assert estimated["step_seconds"] == pytest.approx(predicted, rel=0.02)


def test_a_folder_takes_a_file_for_each_gpu_and_stack(capsys, here) -> None:
    code, _, err = calibrate(capsys, "--from-runs", "mixed.csv", "-o", "fitted/")
    assert code == 0
    files = sorted(path.name for path in Path("fitted").iterdir())
    assert files == ["fitted-h100-sxm-nemo.yaml", "fitted-h100-sxm-torchtitan.yaml"]
    assert err.count("Wrote fitted/") == 2


def test_rows_may_be_read_as_another_stack(capsys, here) -> None:
    out = calibrate(capsys, "--from-runs", "mine.csv", "--stack", "deepspeed")[1]
    assert out.startswith("every row is read as run on deepspeed\n")
    assert load_profile("profile.yaml").stack == "deepspeed"


def test_cross_validation_leaves_every_source_out(capsys, here) -> None:
    Path("theirs.csv").write_text(Path("mine.csv").read_text())
    words = ("--from-runs", "mine.csv", "--from-runs", "theirs.csv", "--cross-validate")
    found = json.loads(calibrate(capsys, *words, "--json")[1])["cross_validation"]
    assert [(one["source_id"], one["runs"]) for one in found] == [("mine", 3), ("theirs", 3)]
    for one in found:
        assert one["left_out"] < one["defaults"]
    out = calibrate(capsys, "--from-runs", "mine.csv", "--cross-validate")[1]
    assert "one source only" in out
