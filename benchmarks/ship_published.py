"""Make the tables of published runs that the project ships, from larger tables of the columns of `printed.py`.

    python benchmarks/ship_published.py TABLE.csv...

Writes SOURCE.csv below `cost_models/data/published` for every table, in canonical columns: those that predictions read
and the figures they are compared with. Large sweeps are thinned to every n-th run, evenly over the file, so that what
is shipped stays small.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cost_models.files.whole import write_whole
from cost_models.measured.runs.conversion import canonical_cells, ordered_rows
from cost_models.measured.runs.printed import PrintedRow
from cost_models.measured.runs.rows import Cells, parse_table, read_table
from meshwright.terminal.output import as_csv

FOLDER = Path(__file__).parents[1] / "cost_models" / "data" / "published"
UNSHIPPED = ("task", "run_date", "notes", "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu")
"""Columns for readers that stay in the larger tables."""
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
        _, lines = parse_table(read_table(path), place=str(path))
        printed = [PrintedRow({"source_id": path.stem} | cells) for _, cells in lines]
        figures = ("step_time_best_s", "peak_memory_gb")
        measured = [row for row in printed if row.flag("oom") or any(map(row.number, figures))]
        rows = [_shipped(row) for row in measured[:: -(-len(measured) // MOST)]]
        target = next(FOLDER.glob(f"*/{path.stem}.csv"), FOLDER / "several" / f"{path.stem}.csv")
        write_whole(target, as_csv(ordered_rows(rows)))
        print(f"{target.name}: {len(rows)} of {len(measured)} runs, {target.stat().st_size / 1024:.0f} KiB")


def _shipped(row: PrintedRow) -> Cells:
    """Cells of a run to ship, its citation without its place in a file."""
    blank = {
        column: cell
        for column, cell in _FILLED.get(row.text("source_id"), {}).items()
        if not row.text(column)
    }
    untimed = {"step_time_best_s": ""} if _FUNCTIONAL_TEST in row.text("task") else {}
    cells = canonical_cells(PrintedRow({**row.cells, **blank, **untimed}))
    cells["source_cite"] = cells.get("source_cite", "").split(" table ")[0][:120].strip()
    return {column: cell for column, cell in cells.items() if cell and column not in UNSHIPPED}


if __name__ == "__main__":
    main()
