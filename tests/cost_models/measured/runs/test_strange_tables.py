"""Nobody else's table is as one would wish: every file is read or refused in words, every row predicted or skipped."""

from __future__ import annotations

import codecs
import csv
import io
import math
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from printed_rows import from_printed

from cost_models.errors import InputError
from cost_models.measured.calibration.profile_fits import anchor
from cost_models.measured.runs.cases import read_rows
from cost_models.measured.runs.conversion import LARGEST_COUNTS, convert_table
from cost_models.measured.runs.printed import PrintedRow
from cost_models.measured.runs.rows import parse_row
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import score

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


def as_csv(delimiter: str = ",", newline: str = "\n") -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(GOOD), delimiter=delimiter, lineterminator=newline)
    writer.writeheader()
    writer.writerow(GOOD)
    return text.getvalue()


@pytest.mark.parametrize(
    "raw",
    [
        as_csv().encode(),
        codecs.BOM_UTF8 + as_csv().encode(),
        as_csv().encode("utf-16"),
        as_csv(newline="\r\n").encode(),
        as_csv(delimiter=";").encode(),
        as_csv(delimiter="\t").encode(),
        as_csv().replace("GPT", "GPT ×2").encode("latin-1"),
        as_csv().replace("layers", " Layers ").encode(),
        as_csv().rstrip("\n").encode() + b",more,cells\n\n\n",
        as_csv().replace("row_id", "layers", 1).encode() + b"",
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


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "has no column `num_gpus`, `layers`, `hidden`"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not a text file"),
        (b"\xff\xfe\x00", "is not a text file"),
        (b'layers,hidden,num_gpus\n"' + b"9" * 200_000, "is not a table"),
    ],
)
def test_what_is_no_table_is_refused(raw: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        convert_table(path)
    assert said in caught.value.headline
    assert str(path) in caught.value.headline
