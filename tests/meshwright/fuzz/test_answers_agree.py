"""One answer in several forms: JSON, CSV and the table say the same, and `verify` accepts what `plan` wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from fuzz_budget import inputs
from fuzz_calls import Answer, call
from fuzz_files import CLUSTER, MIXTURE, MODEL
from hypothesis import assume, given
from hypothesis import strategies as st

from cost_models.units import format_seconds
from meshwright.render.words import percent

LAYOUTS = ("tp1", "tp2", "pp2", "tp2 pp2", "pp2 dp2 mbs1", "dp2", "dp4 zero1")
MODELS = {"model": MODEL, "mixture": MIXTURE, "deep": MODEL | {"num_layers": 9, "tied_embeddings": False}}


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, ...]:
    """About files of the working folder."""
    batch, sequence = draw(st.sampled_from(["4", "8", "16"])), draw(st.sampled_from(["64", "256"]))
    words = (f"{draw(st.sampled_from(sorted(MODELS)))}.yaml", "cluster.yaml")
    gpus = draw(st.sampled_from(["1", "2", "4"]))
    words += ("--gpus", gpus, "--global-batch", batch, "--sequence", sequence)
    stack = draw(st.sampled_from(["megatron-core", "meshwright", "torchtitan", "megatron-2021", "fsdp"]))
    return (*words, "--stack", stack)


@pytest.fixture(scope="module", autouse=True)
def files(folder: Path) -> None:
    """What is asked about."""
    for name, content in (*MODELS.items(), ("cluster", CLUSTER)):
        Path(f"{name}.yaml").write_text(json.dumps(content))


def _rows() -> list[dict[str, str]]:
    return list(csv.DictReader(Path("rows.csv").read_text("utf-8").splitlines()))


def _same(row: dict[str, str], record: dict[str, Any]) -> None:
    """A row of CSV and a plan of the document."""
    for name in ("layout", "verdict", "bound_by"):
        assert row[name] == record[name]
    for name in ("step_seconds", "mfu", "hfu", "tokens_per_second", "peak_bytes", "memory_limit"):
        assert float(row[name]) == record[name]
    for part, seconds in record["parts"].items():
        assert float(row[f"{part}_seconds"]) == seconds
    for part, size in record["memory"][record["fullest_rank"]].items():
        assert float(row[f"{part}_bytes"]) == size
    assert sum(record["parts"].values()) == pytest.approx(record["step_seconds"])
    assert sum(record["memory"][record["fullest_rank"]].values()) == pytest.approx(record["peak_bytes"])


def _shown(text: Answer, record: dict[str, Any]) -> None:
    """A plan of the document in the text for people."""
    said = " ".join(text.out.split())
    assert format_seconds(record["step_seconds"]) in said
    assert percent(record["mfu"]) in said


@inputs(0.02)
@given(question=questions(), layout=st.sampled_from(LAYOUTS))
def test_estimates(question, layout: str) -> None:
    asked = ("estimate", *question, "--layout", layout)
    found = call(*asked, "--json", "--csv", "rows.csv", "--quiet")
    assume(found.code != 2)
    (row,) = _rows()
    record = found.document["estimate"]
    _same(row, record)
    shown = call(*asked, "--quiet")
    assert shown.code == found.code
    _shown(shown, record)


@inputs(0.01)
@given(question=questions(), seconds=st.sampled_from(["20", "20", "0.01"]))
def test_plans(question, seconds: str) -> None:
    asked = ("plan", *question, "--time-limit", seconds)
    found = call(*asked, "--json", "--csv", "rows.csv", "-o", "plan.yaml", "--quiet")
    if seconds != "20" and found.code == 3 and "plans" not in found.document:
        return  # time ran out before there was anything to say
    assert found.code == 0 or (seconds != "20" and found.code == 3)
    plans, rows = found.document["plans"], _rows()
    assert len(plans) == len(rows)
    for row, record in zip(rows, plans, strict=True):
        _same(row, record)
    certificate = found.document["certificate"]
    counted = ("infeasible", "pruned", "solved", "undecided")
    assert sum(certificate[name] for name in counted) == certificate["layouts"]
    verified = call("verify", "plan.yaml", "--json")
    assert verified.code == (0 if seconds == "20" else verified.code)
    assert not [check for check in verified.document["checks"] if check["passed"] is False]
    if seconds == "20":
        shown = call(*asked, "--top", "5", "--quiet")
        for record in plans:
            _shown(shown, record)
