"""Make the tables of published runs that the project ships, from larger tables in the same columns.

    python benchmarks/ship_published.py TABLE.csv...

Writes SOURCE.csv below `cost_models/data/published` for every source of the tables: the columns that predictions read
and the figures they are compared with. Large sweeps are thinned to every n-th run, evenly over the file, so that what
is shipped stays small. Of notes, and of what was assumed in transcribing, only the parts that change a prediction stay.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cost_models.files.whole import write_whole
from cost_models.measured.runs.rows import Row, read_rows
from cost_models.measured.runs.stack import kernel_is_assumed
from cost_models.measured.validation.predictions import predict
from meshwright.terminal.output import as_csv

FOLDER = Path(__file__).parents[1] / "cost_models" / "data" / "published"
COLUMNS = (
    *("row_id", "source_id", "source_cite", "framework", "run_date", "model_name"),
    *("layers", "hidden", "heads", "head_dim", "kv_heads", "ffn_hidden", "ffn_kind", "vocab", "seq_len"),
    *("tied_embeddings", "moe_experts", "moe_top_k", "moe_ffn_hidden", "moe_layers"),
    *("attention_kernel", "other_kernels", "gpu", "gpus_per_node", "num_gpus", "interconnect"),
    *("tp", "pp", "vp", "cp", "ep", "dp", "sequence_parallel", "zero_stage", "hybrid_shard"),
    *("micro_batch", "global_batch", "grad_accum", "recompute", "offload", "precision", "compile"),
    *("peak_memory_gb", "memory_kind", "oom", "step_time_best_s", "flags", "assumed_fields", "notes"),
)
_FUNCTIONAL_TEST = "CI functional test"
"""Tasks whose step times say nothing: they run in the deterministic mode of every library."""
_FILLED = {"megascale": {"micro_batch": "2"}}
"""Source → what it leaves blank and is taken to be. How many sequences MegaScale's microbatches had nobody says: with
two in all rows constants fitted to them leave 2.7 and 2.3 %, with one 2.9 and 3.1 % (MegaScale, its baseline)."""
MOST = 250
"""Runs of one source beyond which it is thinned."""


def main() -> None:
    """Write the tables."""
    for path in map(Path, sys.argv[1:]):
        figures = ("step_time_best_s", "peak_memory_gb")
        rows = [row for row in read_rows(path) if row.flag("oom") or any(map(row.number, figures))]
        thinned = rows[:: -(-len(rows) // MOST)]
        target = next(FOLDER.glob(f"*/{path.stem}.csv"), FOLDER / "several" / f"{path.stem}.csv")
        used = [column for column in COLUMNS if any(_cell(row, column) for row in thinned)]
        write_whole(target, as_csv([{column: _cell(row, column) for column in used} for row in thinned]))
        print(f"{target.name}: {len(thinned)} of {len(rows)} runs, {target.stat().st_size / 1024:.0f} KiB")


def _cell(row: Row, column: str) -> str:
    """The cell to ship: citations without the row's place in a file, of the notes only the switches, of what was
    assumed the kernel."""
    filled = _FILLED.get(row.source, {})
    text = row.text(column) or filled.get(column, "")
    if column == "assumed_fields":
        return " ".join(["attention_kernel"] * kernel_is_assumed(row) + list(filled))
    if column == "step_time_best_s" and _FUNCTIONAL_TEST in row.text("task"):
        return ""
    if column == "notes":
        return _telling_notes(row)
    return text.split(" table ")[0][:120] if column == "source_cite" else text


def _telling_notes(row: Row) -> str:
    """The parts of a row's notes without which it would be predicted otherwise."""
    parts = [part.strip() for part in f"{row.text('notes')};{row.text('assumed_fields')}".split(";")]
    if _answer(row, parts) == _answer(row, []):
        return ""
    for part in list(parts):
        others = [one for one in parts if one != part]
        if _answer(row, others) == _answer(row, parts):
            parts = others
    return "; ".join(parts)


def _answer(row: Row, notes: Sequence[str]) -> tuple[object, ...]:
    """What is predicted of a row with these notes."""
    cells = {**row.cells, "notes": "; ".join(notes), "assumed_fields": _cell(row, "assumed_fields")}
    (found,) = predict([Row(cells)])
    return found.step_seconds, found.peak_bytes, found.fits, found.skipped


if __name__ == "__main__":
    main()
