"""The benchmark of a recommender on one GPU, dry: rates, then steps predicted from them, each once."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from effort import few

RUN = Path(__file__).parents[3] / "benchmarks" / "h200" / "recommender.py"
CASE = "256 rowwise-adagrad"


@few(0)
def test_steps_are_predicted_from_the_rates_of_the_same_file(tmp_path) -> None:
    """What is there is not run again; the dense network's Adagrad is in the peak."""
    out = tmp_path / "out.csv"
    done = ("64 sgd", "256 sgd")
    out.write_text(
        "case,quantity,row_bytes,pooling,predicted,datasheet,measured,failure\n"
        + "".join(f"{case},,,,,,,kept\n" for case in done)
    )
    environment = os.environ | {"PYTHONPATH": str(RUN.parents[2])}
    subprocess.run([sys.executable, str(RUN), str(out), "--dry"], env=environment, check=True)
    rows = list(csv.DictReader(out.read_text("utf-8").splitlines()))
    assert [row["case"] for row in rows if row["failure"]] == list(done)
    rates = [row for row in rows if row["case"] == "rates"]
    assert {row["quantity"] for row in rates} == {
        "lookup",
        "sums",
        "sgd",
        "adagrad",
        "rowwise-adagrad",
        "adam",
    }
    found = {row["quantity"]: row for row in rows if row["case"] == CASE}
    assert len(found) == 8
    assert all(float(row["measured"]) > 0 for row in found.values())
    assert found["lookup"]["predicted"] != found["lookup"]["datasheet"]
    peak = found["peak bytes"]
    assert float(peak["predicted"]) == pytest.approx(float(peak["measured"]), rel=0.02)
