"""`validate`, and `calibrate --from-runs`, as their users meet them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from calling import Answer, told

from cost_models.measured.runs.cases import shipped_rows, source_notes
from cost_models.measured.runs.conversion import convert_table
from cost_models.measured.validation.predictions import Prediction, predict
from meshwright.terminal.output import as_csv

COLUMNS = (
    "row_id,source_id,framework,layers,hidden,heads,vocab,seq_len,gpu,num_gpus,tp,pp,micro_batch,global_batch,"
    "recompute,step_time_best_s,peak_memory_gb,oom"
)
ROWS = (
    "a-1,lab,Megatron-LM,24,2048,16,51200,2048,A100 80GB,8,1,1,4,64,full,2.0,20,0",
    "a-2,lab,Megatron-LM,24,2048,16,51200,2048,A100 80GB,8,2,1,4,64,full,2.2,20,0",
    "a-3,lab,Megatron-LM,24,2048,16,51200,2048,A100 80GB,8,4,1,4,64,full,2.9,20,0",
    "a-4,lab,Megatron-LM,24,2048,16,51200,2048,A100 80GB,8,8,1,4,64,full,3.9,20,0",
    "a-5,lab,Megatron-LM,96,20480,128,51200,2048,A100 80GB,8,8,1,4,64,full,,,1",
    "a-6,lab,Megatron-LM,24,2048,16,51200,2048,Abacus,8,8,1,4,64,full,3.9,20,0",
)


def converted(path: Path, *rows: str) -> Path:
    """Canonical table of some rows."""
    path.write_text("\n".join((COLUMNS, *rows)) + "\n")
    path.write_text(as_csv(convert_table(path)))
    return path


@pytest.fixture
def table(tmp_path) -> Path:
    return converted(tmp_path / "mine.csv", *ROWS)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Answer:
    return told(capsys, "validate", *words)


def test_interrupting_tells_the_rows_predicted_so_far(capsys, table, tmp_path, monkeypatch) -> None:
    """Exit code 130; a page of all rows is not replaced by one of some."""
    from meshwright.verbs.validate import accuracy as validating

    def some(*args: object, **flags: object) -> Iterator[Prediction]:
        yield from islice(predict(*args, **flags), 3)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(validating, "predict", some)
    code, out, err = run(capsys, "--runs", str(table), "-o", str(tmp_path))
    assert code == 130
    assert "3 rows predicted, 0 skipped" in out
    assert f"interrupted: 3 of 6 rows were predicted; {tmp_path / 'accuracy.md'} is left as it was\n" in err
    assert not (tmp_path / "accuracy.md").exists()


def test_a_page_with_plots(capsys, table, tmp_path) -> None:
    folder = tmp_path / "docs"
    code, _, err = run(capsys, "--runs", str(table), "-o", str(folder))
    assert code == 0
    assert err == f"Wrote {folder / 'accuracy.md'}\n"
    page = (folder / "accuracy.md").read_text()
    for heading in (
        "What was compared",
        "Step time",
        "Memory",
        "Runs furthest off",
        "What had to be assumed",
        "Rows that were not",
    ):
        assert f"\n## {heading}" in page
    for picture in re.findall(r"\]\((images/[^)]+)\)", page):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    again = run(capsys, "--runs", str(table), "-o", str(folder), "--quiet")
    assert (again[0], again[2]) == (0, "")
    assert (folder / "accuracy.md").read_text() == page


def test_every_shipped_source_has_its_note() -> None:
    assert set(source_notes()) == {row.source_id for row in shipped_rows()}


def test_a_page_without_a_timed_row_has_no_plots(capsys, tmp_path) -> None:
    path = converted(tmp_path / "mine.csv", ROWS[4])
    folder = tmp_path / "docs"
    assert run(capsys, "--runs", str(path), "-o", str(folder))[0] == 0
    assert "images/" not in (folder / "accuracy.md").read_text()


def test_nobody_can_write_a_page_into_a_file(capsys, table) -> None:
    code, _, err = run(capsys, "--runs", str(table), "-o", str(table))
    assert code == 2
    assert "is no folder" in err


def test_cells_cannot_write_markup_into_the_page(capsys, tmp_path) -> None:
    path = converted(tmp_path / "mine.csv", ROWS[5].replace("Abacus", "<b>[x](y)|z"))
    run(capsys, "--runs", str(path), "-o", str(tmp_path / "docs"))
    page = (tmp_path / "docs" / "accuracy.md").read_text()
    assert "<b>" not in page
    assert "[x](y)" not in page


RUN_COLUMNS = "model,cluster,stack,sequence_length,global_batch,layout,step_seconds,skipped"
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
    Path("mine.csv").write_text("\n".join((RUN_COLUMNS, *MINE)) + "\n")
    Path("mixed.csv").write_text("\n".join((RUN_COLUMNS, *MINE, *OTHERS)) + "\n")
    Path("untimed.csv").write_text("\n".join((RUN_COLUMNS, OTHERS[2])) + "\n")
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


def test_cross_validation_leaves_every_source_out(capsys, here) -> None:
    Path("theirs.csv").write_text(Path("mine.csv").read_text())
    words = ("--from-runs", "mine.csv", "--from-runs", "theirs.csv", "--cross-validate")
    found = json.loads(calibrate(capsys, *words, "--json")[1])["cross_validation"]
    assert [(one["source_id"], one["runs"]) for one in found] == [("mine", 3), ("theirs", 3)]
    for one in found:
        assert one["left_out"] < one["defaults"]
    out = calibrate(capsys, "--from-runs", "mine.csv", "--cross-validate")[1]
    assert "one source only" in out
