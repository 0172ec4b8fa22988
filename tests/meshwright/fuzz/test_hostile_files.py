"""Every kind of file in every state, tables and records too: an answer, or an error that a person can read."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fuzz_budget import ASKED, inputs
from fuzz_calls import call
from fuzz_files import CLUSTER, MODEL, changed_once, damaged, spoilt, texts, write
from fuzz_values import NASTY_TEXT
from hypothesis import given
from hypothesis import strategies as st
from run_reports import rank_report, run_report_of

from cost_models.errors import InputError
from cost_models.files import catalog, data_files
from executor.checkpoints.manifest import MANIFEST, BrokenError, read_manifest
from executor.measure.report import save_report
from meshwright.records.frames import accuracy_frame
from meshwright.terminal.output import as_json
from planner.plan import load_plan

SIZES = ("--global-batch", "8", "--sequence", "64")
LAYOUTS = ("tp2 pp2", "dp4 zero1", "tp4 sp", "pp2 dp2 mbs2 recompute=full", "ep2 dp4", "pp4")


@pytest.fixture(scope="module", autouse=True)
def right_files(folder: Path) -> None:
    """What goes with the file that is drawn."""
    Path("model.yaml").write_text(json.dumps(MODEL))
    Path("cluster.yaml").write_text(json.dumps(CLUSTER))


CALLS = {  # kind of file -> share of all inputs, and the words of a call with FILE and LAYOUT
    "model": (0.09, "estimate FILE cluster.yaml SIZES --layout LAYOUT"),
    "config": (0.03, "estimate FILE cluster.yaml SIZES --layout LAYOUT --json"),
    "cluster": (0.08, "estimate model.yaml FILE SIZES --layout LAYOUT --json"),
    "pools": (0.03, "estimate model.yaml FILE SIZES --layout LAYOUT"),
    "training": (0.04, "estimate model.yaml cluster.yaml --training FILE --layout LAYOUT"),
    "stack": (0.05, "estimate model.yaml cluster.yaml SIZES --stack FILE --layout LAYOUT"),
    "profile": (0.05, "estimate gpt2-tiny dgx-a100-80gb --gpus 4 SIZES --profile FILE --layout LAYOUT"),
    "plan": (0.05, "compare FILE LAYOUT"),
}


@pytest.mark.timeout(300 + ASKED / 3)
@pytest.mark.parametrize("kind", CALLS)
def test_files_of_every_kind(kind: str) -> None:
    share, words = CALLS[kind]

    @inputs(share)
    @given(raw=texts(kind), layout=st.sampled_from(LAYOUTS))
    def ask(raw: bytes, layout: str) -> None:
        filled = {"FILE": write(kind, raw), "LAYOUT": layout}
        call(*(filled.get(word, word) for word in words.replace("SIZES", " ".join(SIZES)).split()))

    ask()


PRINTED = Path(__file__).parents[2] / "cost_models" / "measured" / "runs" / "printed_runs.csv"
_ODD = ["0", "-1", "1", "2", "8", "64", "1e308", "nan", "inf", "8x", "1,024", "none", "full", "bf16", "yes"]
CELLS = st.one_of(st.sampled_from(["", *_ODD]), st.sampled_from(NASTY_TEXT), st.text(max_size=4))


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """One to three published runs with some cells changed."""
    tables = [draw(st.sampled_from(_runs())) for _ in range(draw(st.integers(1, 3)))]
    rows = [dict(draw(st.sampled_from(table))) for table in tables]
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
    sizes = {**dict.fromkeys(data_files("published", ".csv"), 2), PRINTED: 40}
    read = ((csv.DictReader(table.read_text().splitlines()), size) for table, size in sizes.items())
    return tuple(list(islice(rows, size)) for rows, size in read)


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
    priced = ("--precision", "fp32", "--layout", "dp2 mbs1 zero0", "-o", "plan.yaml")
    assert call("estimate", *question, *priced).code == 0
    plan = load_plan("plan.yaml")
    parts = {"compute": 0.5, "host": 0.1, "dp_comm": 0.15, "bubble": 0.25}
    written = run_report_of(plan, [rank_report(rank, parts) for rank in range(2)])
    save_report(written, Path("report.json"))
    assert len(accuracy_frame([Path("report.json")]))
    return written.model_dump(mode="json")


@inputs(0.025)
@given(data=st.data())
def test_reports_of_runs(report, data: st.DataObject) -> None:
    Path("report.json").write_bytes(spoilt(data.draw, report, whole=9))
    with suppress(InputError):
        as_json({"rows": accuracy_frame([Path("report.json")]).to_dict("records")})


CHECKPOINT: dict[str, Any] = {
    "schema_version": 1,
    "progress": {
        "step": 3,
        "seed": 0,
        "learning_rate": 1e-3,
        "data": "text",
        "layout": "tp1 pp1 dp1 mbs1 zero0 layers=2",
        "model": catalog.load_model("gpt2-tiny").model_dump(mode="json"),
        "training": {"global_batch": 8, "sequence_length": 64},
    },
    "tensors": {
        "weight": {"dtype": "float32", "shape": [4], "pieces": [{"offsets": [0], "sizes": [4], "file": 0}]}
    },
    "files": [{"name": "rank-00000.safetensors", "size_bytes": 16, "sha256": "0" * 64}],
}


@inputs(0.02)
@given(data=st.data())
def test_manifests(folder: Path, data: st.DataObject) -> None:
    """Signed once their content is changed, or changed once they are signed."""
    content: Any = json.loads(json.dumps(CHECKPOINT))
    for _ in range(data.draw(st.integers(0, 3))):
        content = data.draw(changed_once(content))
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    signed = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "checkpoint": content}
    raw = json.dumps(signed).encode()
    Path(MANIFEST).write_bytes(raw if data.draw(st.integers(0, 3)) else spoilt(data.draw, signed))
    with suppress(BrokenError):
        read_manifest(Path())
