"""Canonical tables of runs: what a person writes by hand, what is refused, and what other tables become."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cost_models.errors import InputError
from cost_models.measured.runs.cases import Case, read_case, read_rows, shipped_rows
from cost_models.measured.runs.conversion import convert_table
from cost_models.measured.runs.rows import COLUMNS, Row
from meshwright.terminal.output import as_csv

HEAD = "model,cluster,sequence_length,global_batch,layout,step_seconds"
BY_HAND = f"""\
{HEAD},inter_node,stack,model.num_layers,stack.attention
llama3-8b,dgx-h100,8192,128,dp64 mbs1 zero3,2.9,,fsdp,,
llama3-8b,dgx-h100,8192,128,tp2 pp4 dp8 mbs1 zero1 sp,2.4,25 GB/s,,,
llama3-8b,rtx-4090,8192,16,dp4 mbs1 zero3,,,,4,flash2
"""
PRINTED = Path(__file__).with_name("printed_runs.csv")


def rows_of(path: Path, text: str) -> tuple[Row, ...]:
    path.write_text(text)
    return read_rows(path)


def cases_of(path: Path, text: str) -> list[Case]:
    return [read_case(row) for row in rows_of(path, text)]


def problems_of(path: Path, text: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_rows(path)
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def test_a_table_by_hand(tmp_path: Path) -> None:
    first, second, third = cases_of(tmp_path / "mine.csv", BY_HAND)
    assert (first.row.row_id, first.row.source_id, first.row.step_seconds) == ("mine-0001", "mine", 2.9)
    assert (first.question.stack.name, second.question.stack.name) == ("fsdp", "megatron-core")
    assert (first.question.cluster.nodes, first.question.cluster.gpus_per_node) == (8, 8)
    assert first.layout.layers == (32,)
    assert second.layout.layers == (8, 8, 8, 8)
    usual, slower = first.question.cluster.links.inter_node, second.question.cluster.links.inter_node
    assert usual is not None
    assert slower == usual.model_copy(update={"bandwidth": 25e9})
    assert third.question.cluster.links.intra_node.kind == "pcie"
    assert (third.question.cluster.num_gpus, third.question.model.num_layers) == (4, 4)
    assert third.question.stack.attention == "flash2"


def test_every_problem_of_every_cell_at_once(tmp_path: Path) -> None:
    text = f"""\
{HEAD},stack.attentoin,model.num_heads,hidden
llama3-8c,dgx-h100,8k,128,dp64 mbs1 zero3,2.9,,,
llama3-8b,dgx-h200,8192,128,tp2 zeroo3,soon,flash,,
llama3-8b,dgx-h100,8192,128,pp5 dp2 mbs1,1,,33,7
llama3-8b,dgx-h100,8192,128,pp3 dp2 layers=11,11,10,,,12
llama3-8b,dgx-h100,8192,,pp5 dp2
llama3-8b,dgx-h100,8192,128,pp5 dp2
"""
    found = problems_of(tmp_path / "mine.csv", text)
    for start in (
        "1  hidden: no column of a table of runs",
        "2  model: unknown model `llama3-8c`; did you mean `llama3-8b`?",
        "2  sequence_length: `8k` is not a whole number",
        "3  layout: `tp2 zeroo3` is not a layout; `zeroo3`: not part of a layout",
        "3  step_seconds: `soon` is not a number",
        "3  cluster: unknown cluster `dgx-h200`",
        "3  stack.attentoin: unknown field `attentoin`; did you mean `attention`?",
        "4: num_heads 33 is not a multiple of num_kv_heads 8",
        "5  layout: `pp3 dp2 layers=11` is not a layout",
        "5  : `12`: more cells than columns",
        "6  global_batch: required field",
        "7  layout: 32 blocks on 5 stages: give `layers=`",
    ):
        assert [one for one in found if one.startswith(start)], (start, found)
    assert len(found) == 13


def test_a_table_of_other_columns_is_refused_by_column(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"meshwright validate --convert .* --out NEW.csv .*sequence_length"):
        read_rows(PRINTED)
    found = problems_of(tmp_path / "old.csv", PRINTED.read_text())
    assert "1  model_name: no column of a table of runs; did you mean `model`?" in found
    assert any(one.startswith("and ") for one in found)


def test_other_tables_become_what_is_shipped(tmp_path: Path) -> None:
    """Three rows of each source as they were printed; a canonical table stays as it is."""
    rows, shipped = convert_table(PRINTED), {row.row_id: row for row in shipped_rows()}
    path = tmp_path / "runs.csv"
    path.write_text(as_csv(rows))
    for row in read_rows(path):
        unshipped = {"place": "", "notes": "", "run_date": ""}
        assert row.model_copy(update=unshipped) == shipped[row.row_id].model_copy(update=unshipped)
    with path.open() as table:
        assert convert_table(path) == list(csv.DictReader(table))
    assert as_csv(convert_table(path)) == path.read_text()


def test_the_guide_explains_every_column() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "guides" / "validating.md").read_text()
    assert [name for name in COLUMNS if f"`{name}`" not in guide] == []
