"""Offloaded runs beside runs without, as published: hosts as their logs say, and as their memory would allow."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from cost_models.axes.offload.channels import update_seconds
from cost_models.measured.runs.cases import read_case
from cost_models.measured.runs.rows import Row, read_rows

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
    assert any("ns, as its log says" in one for one in case.assumptions)


@pytest.mark.parametrize("cell", ["", "0", "-1", "soon"])
def test_a_log_that_says_nothing(cell: str) -> None:
    row = rows()["stronghold_ae-0023"]
    case = read_case(Row({**row.cells, "cpu_update_s": cell}))
    assert case.question.hardware.host_update_seconds is None


def test_a_run_without_offload_needs_no_host() -> None:
    row = rows()["stronghold_ae-0003"]
    case = read_case(Row({**row.cells, "cpu_update_s": "5"}))
    assert case.question.hardware.host_update_seconds is None


def test_slowdowns_as_published(capsys: pytest.CaptureFixture[str]) -> None:
    script = runpy.run_path(str(FOLDER / "slowdown.py"))
    script["main"]([])
    summary = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("u of the host"))
    median, worst = (float(part.split()[1].rstrip("%")) for part in summary.split(": ")[1].split(", "))
    assert median <= 15
    assert worst <= 35
    assert "of 24" in summary
