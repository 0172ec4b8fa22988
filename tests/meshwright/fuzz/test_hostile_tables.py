"""Tables of runs and reports of runs: an answer, or an error that a person can read; no row is priced at nonsense."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fuzz_budget import inputs
from fuzz_calls import call
from fuzz_files import changed_once, damaged
from fuzz_values import NASTY_TEXT
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import InputError
from cost_models.files import data_files
from executor.measure.any_report import Course, Environment, save_report
from executor.measure.report import PhaseReport, RankReport, make_report
from meshwright.records.frames import accuracy_frame
from meshwright.terminal.output import as_json
from planner.plan import load_plan

PRINTED = Path(__file__).parents[2] / "cost_models" / "measured" / "runs" / "printed_runs.csv"
CELLS = st.one_of(
    st.sampled_from(
        [
            "",
            "0",
            "-1",
            "1",
            "2",
            "8",
            "64",
            "1e308",
            "nan",
            "inf",
            "8x",
            "1,024",
            "none",
            "full",
            "bf16",
            "yes",
        ]
    ),
    st.sampled_from(NASTY_TEXT),
    st.text(max_size=4),
)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """One to three published runs with some cells changed."""
    rows = [
        dict(draw(st.sampled_from(draw(st.sampled_from(_runs()))))) for _ in range(draw(st.integers(1, 3)))
    ]
    columns = sorted({column for row in rows for column in row})
    for row in rows:
        for column in draw(st.lists(st.sampled_from(columns), max_size=4)):
            row[column] = draw(CELLS)
    if draw(st.booleans()):
        columns.remove(draw(st.sampled_from(columns)))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", delimiter=draw(st.sampled_from(",,,;\t")))
    writer.writeheader()
    writer.writerows(rows)
    raw = text.getvalue().encode("utf-8", "surrogatepass")
    return raw if draw(st.integers(0, 9)) else draw(damaged(raw))


@cache
def _runs() -> tuple[list[dict[str, str]], ...]:
    """First rows of every shipped table, and rows of tables of other columns."""
    tables = [*data_files("published", ".csv"), PRINTED]
    return tuple(
        list(islice(csv.DictReader(table.read_text().splitlines()), 40 if table == PRINTED else 2))
        for table in tables
    )


@inputs(0.02)
@given(raw=tables())
def test_runs_to_predict(folder: Path, raw: bytes) -> None:
    Path("runs.csv").write_bytes(raw)
    call("validate", "--runs", "runs.csv", "--json")
    call("validate", "--convert", "runs.csv", "-o", "canonical.csv")


@inputs(0.005)
@given(raw=tables())
def test_runs_to_fit(folder: Path, raw: bytes) -> None:
    Path("runs.csv").write_bytes(raw)
    call("calibrate", "--from-runs", "runs.csv", "-o", "fitted.yaml")


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    """A run's report, as it is written."""
    question = ("gpt2-tiny", "local", "--gpus", "2", "--global-batch", "8", "--sequence", "64")
    assert (
        call(
            "estimate", *question, "--precision", "fp32", "--layout", "dp2 mbs1 zero0", "-o", "plan.yaml"
        ).code
        == 0
    )
    plan = load_plan("plan.yaml")
    phase = PhaseReport(wall_seconds=(0.8,), thread_seconds=(0.5,), waiting_seconds={"dp": 0.1})
    ranks = [
        RankReport(
            rank=rank,
            pipeline_rank=0,
            wall_seconds=(1.0,),
            thread_seconds=(0.9,),
            process_seconds=(1.5,),
            forward_backward=phase,
            update=phase,
            parts={"compute": 0.5, "host": 0.1, "dp_comm": 0.15, "bubble": 0.25},
            memory={"weights": 2**20, "rest": 2**22},
            predicted_memory={"weights": 2.0**20, "rest": 2.0**22},
        )
        for rank in range(2)
    ]
    machine = Environment(torch="2", python="3", device="cpu", backend="gloo", world_size=2, cores=2)
    written = make_report(
        plan, ranks, Course(losses=[5.0], gradient_norms=[1.0], warm_up=0, seed=0, environment=machine)
    )
    save_report(written, Path("report.json"))
    assert len(accuracy_frame([Path("report.json")]))
    return written.model_dump(mode="json")


@inputs(0.025)
@given(data=st.data())
def test_reports_of_runs(report: dict[str, Any], data: st.DataObject) -> None:
    content: Any = json.loads(json.dumps(report))
    for _ in range(data.draw(st.integers(0, 3))):
        content = data.draw(changed_once(content))
    raw = json.dumps(content).encode()
    Path("report.json").write_bytes(raw if data.draw(st.integers(0, 9)) else data.draw(damaged(raw)))
    with suppress(InputError):
        as_json({"rows": accuracy_frame([Path("report.json")]).to_dict("records")})
