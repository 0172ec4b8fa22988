"""Tables of runs: canonical ones, strange ones, and laws of rows."""

from __future__ import annotations

import codecs
import csv
import io
import math
from contextlib import suppress
from pathlib import Path

import pytest
from calling import refusal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables import from_printed, unnamed

from cost_models.errors import InputError
from cost_models.measured.calibration.profile_fits import anchor
from cost_models.measured.runs.cases import Case, read_case, read_rows, shipped_rows
from cost_models.measured.runs.conversion import LARGEST_COUNTS, convert_table
from cost_models.measured.runs.printed import PrintedRow
from cost_models.measured.runs.rows import COLUMNS, Row, parse_row
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import score
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
    return [one.strip().removeprefix(f"{path}:") for one in refusal(read_rows, path).splitlines()[1:-1]]


def test_a_table_by_hand(tmp_path: Path) -> None:
    first, second, third = cases_of(tmp_path / "mine.csv", BY_HAND)
    assert (first.row.row_id, first.row.source_id, first.row.step_seconds) == ("mine-0001", "mine", 2.9)
    assert (first.question.stack.name, second.question.stack.name) == ("fsdp", "megatron-core")
    assert (first.question.cluster.nodes, first.question.cluster.gpus_per_node) == (8, 8)
    assert first.layout.layers == (32,)
    assert second.layout.layers == (8, 8, 8, 8)
    usual, slower = first.question.cluster.links.inter_node, second.question.cluster.links.inter_node
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


GOOD = {
    "row_id": "lab-1", "source_id": "lab", "framework": "Megatron-LM", "run_date": "2021",
    "model_name": "GPT", "layers": "24", "hidden": "2048", "heads": "16", "head_dim": "128",
    "kv_heads": "16", "ffn_hidden": "8192", "ffn_kind": "gelu", "vocab": "51200", "seq_len": "2048",
    "tied_embeddings": "1", "attention_kernel": "flash2", "other_kernels": "", "gpu": "A100-SXM-80GB",
    "gpus_per_node": "8", "num_gpus": "32", "interconnect": "8x200Gb HDR IB per node", "tp": "2", "pp": "4",
    "vp": "1", "cp": "1", "ep": "1", "dp": "4", "sequence_parallel": "1", "zero_stage": "1",
    "hybrid_shard": "", "micro_batch": "2", "global_batch": "64", "grad_accum": "8", "recompute": "full",
    "precision": "bf16", "compile": "0", "dropout": "0.1", "peak_memory_gb": "20",
    "memory_kind": "nvidia-smi", "oom": "0", "step_time_best_s": "2.5",
}  # fmt: skip

STRANGE = (
    "", "80 GB", "９", "٣", "\x1b[31m", "\u2028x", "0", "-1", "-8", "1e308", "1e400", "nan", "inf", "-inf",
    "8x", "1,024", "8.5", "0.5", "1e9", "None", "?", "yes", "full", "selective", "fp4", "int8", "flash9",
    "1_000", "0x10", "999999999999", "A100", "12345678901234567890123", "T4", "MI300X", "3", "7", "64",
    "1024",
)  # fmt: skip
ODD = st.one_of(
    st.sampled_from(STRANGE),
    st.text(max_size=8),
    st.integers(-(10**15), 10**15).map(str),
    st.floats().map(str),
)


def predicted(**changed: str) -> Prediction:
    (one,) = predict([from_printed(GOOD | changed)])
    return one


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), ODD, min_size=1, max_size=12))
def test_any_cells_are_predicted_or_skipped_with_a_reason(cells: dict[str, str]) -> None:
    one = predicted(**cells)
    score(anchor([one], 1))
    if one.skipped:
        assert one.step_seconds is None
        assert one.skipped.isprintable()
        return
    assert one.peak_bytes is not None
    assert 0 < one.peak_bytes < math.inf
    if one.step_seconds is None:  # how many GPUs there were is not said: memory can be told, time cannot
        row = PrintedRow(GOOD | cells)
        assert row.count("dp") is None
        assert row.count("num_gpus") is None
        return
    assert 0 < one.step_seconds < math.inf
    assert sum(one.parts.values()) == pytest.approx(one.step_seconds)


HEADS = (
    "",
    "num_gpus,layers,hidden\n",
    "model,cluster,layout,sequence_length,global_batch,model.num_layers\n",
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(HEADS), st.text(max_size=400))
def test_any_text_is_a_table_or_refused(tmp_path: Path, head: str, text: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(head + text, encoding="utf-8", errors="surrogatepass")
    for read in (read_rows, lambda path: [parse_row(cells, "x.csv") for cells in convert_table(path)]):
        with suppress(InputError):
            rows = read(path)
            assert len(list(predict(rows))) == len(rows)


def test_impossible_counts_are_named() -> None:
    for column in LARGEST_COUNTS:
        assert f"`{column}` is 99999999999, beyond" in predicted(**{column: "99999999999"}).skipped
        assert f"`{column}` is `eight`, not" in predicted(**{column: "eight"}).skipped


def test_what_says_nothing_is_blank() -> None:
    blank = predicted(vp="", ep="").step_seconds
    for nothing in ("-", "n/a", "None", "0", "-1", "NaN", "unknown"):
        assert predicted(vp=nothing, ep=nothing).step_seconds == blank, nothing


def test_a_batch_in_tokens_need_not_be_whole() -> None:
    one = predicted(global_batch="63.6")
    assert one.step_seconds == predicted().step_seconds
    assert any("no whole number" in assumed for assumed in one.assumptions)


def spreadsheet(delimiter: str = ",", newline: str = "\n") -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(GOOD), delimiter=delimiter, lineterminator=newline)
    writer.writeheader()
    writer.writerow(GOOD)
    return text.getvalue()


@pytest.mark.parametrize(
    "raw",
    [
        spreadsheet().encode(),
        codecs.BOM_UTF8 + spreadsheet().encode(),
        spreadsheet().encode("utf-16"),
        spreadsheet(newline="\r\n").encode(),
        spreadsheet(delimiter=";").encode(),
        spreadsheet(delimiter="\t").encode(),
        spreadsheet().replace("GPT", "GPT ×2").encode("latin-1"),
        spreadsheet().replace("layers", " Layers ").encode(),
        spreadsheet().rstrip("\n").encode() + b",more,cells\n\n\n",
        spreadsheet().replace("row_id", "layers", 1).encode() + b"",
    ],
    ids=["plain", "mark", "utf-16", "crlf", "semicolons", "tabs", "latin", "capitals", "ragged", "twice"],
)
def test_files_as_spreadsheets_write_them(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(raw)
    (cells,) = convert_table(path)
    (one,) = predict([parse_row({column: cell for column, cell in cells.items() if cell}, "runs.csv:2")])
    assert one.step_seconds == predicted().step_seconds


def test_short_rows_and_missing_ids(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("layers,hidden,num_gpus,gpu\n24,2048\n24,2048,8,A100\n,,,\n")
    rows = convert_table(path)
    assert [row["row_id"] for row in rows] == ["mine-0001", "mine-0002", "mine-0003"]
    assert {row["source_id"] for row in rows} == {"mine"}
    assert all(row["skipped"] for row in rows)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    for raw, said in [
        (b"", "has no column `num_gpus`, `layers`, `hidden`"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not a text file"),
        (b"\xff\xfe\x00", "is not a text file"),
        (b'layers,hidden,num_gpus\n"' + b"9" * 200_000, "is not a table"),
    ]:
        path = tmp_path / "runs.csv"
        path.write_bytes(raw)
        assert unnamed(refusal(convert_table, path), said, str(path)) == [], said


ROW = {
    "model_name": "llama3-8b", "seq_len": "4096", "gpu": "H100-SXM-80GB", "gpus_per_node": "8",
    "num_gpus": "64", "tp": "1", "micro_batch": "1", "global_batch": "512", "zero_stage": "1",
    "recompute": "none", "precision": "bf16", "sequence_parallel": "1",
}  # fmt: skip
TRAINERS = ("nanotron", "Megatron-Core", "NeMo", "torchtitan", "FSDP", "DeepSpeed", "MaxText")
TRAINERS += ("Megatron-LM 2021",)
LAWS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("micro_batch", ("1", "2", "4", "8"), "rises", "falls"),
    ("zero_stage", ("0", "1", "2", "3"), "falls", ""),
    ("hybrid_shard", ("2", "4", "8", "16", "32"), "falls", ""),
    ("recompute", ("none", "selective", "full"), "falls", "rises"),
    ("tp", ("1", "2", "4", "8"), "falls", "rises"),
    ("pp", ("1", "2", "4", "8"), "falls", ""),
    ("cp", ("1", "2", "4", "8"), "falls", ""),
    ("seq_len", ("2048", "4096", "8192"), "rises", "rises"),
    ("precision", ("fp32", "tf32", "bf16", "fp8"), "", "falls"),
    ("attention_kernel", ("eager", "megatron-fused", "flash1", "flash2", "flash3"), "falls", "falls"),
    ("gpu", ("V100", "A100 40GB", "A100 80GB", "H100", "H200", "B200"), "", "falls"),
    ("num_gpus", ("8", "16", "64", "256"), "falls", "falls"),
    ("compile", ("0", "1"), "falls", "falls"),
    ("interconnect", ("1x100Gb/s", "2x200Gb/s", "8x200Gb/s", "8x50GB/s"), "", "falls"),
    ("offload", ("none", "optimizer", "parameters"), "falls", "rises"),
)
"""Column, cells, what memory does, what the step time does."""


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(("column", "cells", "memory", "seconds"), LAWS, ids=[law[0] for law in LAWS])
def test_one_cell_moves_predictions_the_right_way(
    trainer: str, column: str, cells: tuple[str, ...], memory: str, seconds: str
) -> None:
    rows = [from_printed(ROW | {"row_id": cell, "framework": trainer, column: cell}) for cell in cells]
    found = list(predict(rows))
    assert not [one.skipped for one in found if one.skipped]
    for law, values in (
        (memory, [one.peak_bytes or 0.0 for one in found]),
        (seconds, [one.step_seconds or 0.0 for one in found]),
    ):
        if law:
            assert values == sorted(values, reverse=law == "falls")
