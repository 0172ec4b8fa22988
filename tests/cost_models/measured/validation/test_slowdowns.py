"""Offloaded runs beside runs without, as published: hosts as their logs say, and as their memory would allow."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from effort import few
from printed_rows import from_printed

from cost_models.axes.offload.channels import update_seconds
from cost_models.measured.runs.cases import read_case, read_rows
from cost_models.measured.runs.rows import Row

FOLDER = Path(__file__).parents[4] / "benchmarks" / "offload"


def rows() -> dict[str, Row]:
    return {row.row_id: row for row in read_rows(FOLDER / "runs.csv")}


@pytest.mark.parametrize(
    ("row_id", "nanoseconds"),
    [("stronghold_ae-0023", 2.92), ("stronghold_ae-0024", 2.92), ("stronghold_ae-0021", 2.44)],
)
def test_a_log_says_how_fast_its_host_is(row_id: str, nanoseconds: float) -> None:
    """5.01 s of 1.72 B parameters, 7.38 s of 2.53 B, 4.19 s of 1.72 B."""
    case = read_case(rows()[row_id])
    assert update_seconds(case.question) == pytest.approx(nanoseconds * 1e-9, rel=0.01)
    assert any("ns, as its log says" in one for one in case.row.assumptions)


@pytest.mark.parametrize(
    ("cell", "offload"), [("", "cpu"), ("0", "cpu"), ("-1", "cpu"), ("soon", "cpu"), ("5", "none")]
)
def test_a_log_that_says_nothing_of_its_host(cell: str, offload: str) -> None:
    cells = {"framework": "DeepSpeed", "gpu": "V100", "num_gpus": "1", "layers": "32", "hidden": "2048"}
    cells |= {"seq_len": "1024", "micro_batch": "4", "global_batch": "4"}
    row = from_printed(cells | {"offload": offload, "cpu_update_s": cell})
    assert read_case(row).question.hardware.host_update_seconds is None


@few(0)
def test_slowdowns_as_published(capsys: pytest.CaptureFixture[str]) -> None:
    script = runpy.run_path(str(FOLDER / "slowdown.py"))
    script["main"]([])
    summary = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("u of the host"))
    median, worst = (float(part.split()[1].rstrip("%")) for part in summary.split(": ")[1].split(", "))
    assert median <= 15
    assert worst <= 35
    assert "of 24" in summary
