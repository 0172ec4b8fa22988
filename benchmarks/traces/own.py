"""Parts that are read from traces of our own executor on a CPU, beside those of the same step's recording → own.csv.

    python benchmarks/traces/own.py [LAYOUT]...  # those alone are printed

Each layout trains a small model on two or four processes; of its profiled steps that with the smallest difference
counts, as another process may have had the core between a mark of the profiler and one of the recording.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE.parents[1] / part) for part in (".", "tests", "tests/executor", "tests/executor/measure")
]

import processes as workers  # noqa: E402
from test_profiled_steps import LAYOUTS, differences  # noqa: E402
from training import GPT, LLAMA, MOE, plan_for  # noqa: E402

STEPS = 4
MORE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mbs4 recompute=full", LLAMA),
    ("mbs4 recompute=selective", GPT),
    ("dp2 mbs1", LLAMA),
    ("dp2 mbs2 zero2", GPT),
    ("dp2 mbs4 zero3 recompute=full", LLAMA),
    ("tp2 sp mbs2", LLAMA),
    ("tp2 mbs2 recompute=full", GPT),
    ("cp2 mbs2", LLAMA),
    ("pp2 vpp2 mbs1", GPT),
    ("pp2 mbs2 schedule=zbv", GPT),
    ("pp2 mbs1 schedule=gpipe", LLAMA),
    ("dp2 ep2 mbs2", MOE),
    ("pp2 dp2 mbs1 zero1", GPT),
    ("tp2 pp2 mbs2", LLAMA),
)


def main() -> None:
    """Run every layout and write the table."""
    workers._LONGEST_SECONDS = 900.0  # a busy machine
    processes, rows = workers.Processes(), []
    asked = sys.argv[1:]
    for layout, model in (*((one, GPT) for one in LAYOUTS), *MORE):
        if asked and layout not in asked:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = differences(plan_for(layout, model), Path(folder), processes, STEPS)
        best = min(found, key=lambda one: max(one.values()))
        part = max(best, key=best.__getitem__)
        rows.append(
            {"layout": layout, "largest": round(best[part], 4), "part": part, "sum": round(best["sum"], 5)}
        )
        rows[-1]["median_step"] = round(statistics.median(max(one.values()) for one in found), 4)
        print(rows[-1], flush=True)
    processes.stop()
    if asked:
        return
    with (HERE / "own.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
