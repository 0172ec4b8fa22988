"""The table of expert layouts is what its program writes, and a row of it is what is answered today."""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
from types import ModuleType

import pytest
from console_blocks import ROOT

FOLDER = ROOT / "benchmarks" / "experts"
ROWS = list(csv.DictReader(io.StringIO((FOLDER / "results.csv").read_text("utf-8"))))


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("experts", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "experts", module)  # its dataclasses look there for their types
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_rows(program: ModuleType) -> None:
    text = (FOLDER / "experts.md").read_text("utf-8")
    assert text.partition("<!-- tables -->\n")[2] == "\n".join(program.page(ROWS)) + "\n"


def test_each_of_the_ten_has_its_reason(program: ModuleType) -> None:
    layouts = {row["row_id"]: row["recommended_layout"] for row in ROWS}
    assert len(program.TEN) == 10
    assert set(program.reasons()) == {(name, layouts[name]) for name in program.TEN}


def test_a_row_is_what_is_answered_today(program: ModuleType) -> None:
    (row,) = [row for row in ROWS if row["row_id"] == "dgxc-0268"]
    (published,) = [one for _, one in program.chosen_rows(["dgxc"]) if one.row_id == row["row_id"]]
    told = program.record("dgxc", program.compared(published, "dgxc", 60.0))
    assert {name: str(value) for name, value in told.items()} == row
