"""Memory of thirty configurations: Megatron-LM's report, mbridge's estimator and ours.

python benchmarks/memory_peers/compare_memory.py OUT.csv MEGATRON MBRIDGE PYTHON

MEGATRON and MBRIDGE are checkouts of those projects, PYTHON an interpreter that has `megatron-core` 0.13.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import megatron_formula
from layouts import CONFIGURATIONS
from our_words import arguments

import meshwright as mw

_STATES = ("weights", "gradients", "optimizer")
_COLUMNS = ("states", "rest", "megatron_states", "megatron_rest", "mbridge_states", "mbridge_rest")
GIB = 2.0**30


def main(out: str, megatron: str, mbridge: str, python: str) -> None:
    """First ranks beside one another, as Megatron's report knows no others."""
    ours: list[tuple[float, float]] = []
    asked: list[dict[str, Any]] = []
    for one in CONFIGURATIONS:
        training = mw.TrainingSpec(global_batch=one.global_batch, sequence_length=one.sequence)
        answer = mw.estimate(
            one.model, "dgx-h100", training, one.layout, gpus=one.gpus, stack="megatron-core"
        )
        memory = answer.estimate.rank_memory[0]
        states = sum(memory[part] for part in _STATES)
        ours.append((states, sum(memory.values()) - states - memory.get("fragmentation", 0.0)))
        asked.append(arguments(answer.question.model, answer.estimate.layout, one.gpus, one.sequence))
    theirs = _asked_of_mbridge(python, mbridge, asked)
    rows = []
    for one, mine, words, ranks in zip(CONFIGURATIONS, ours, asked, theirs, strict=True):
        microbatches = one.global_batch // (words["data_parallel_size"] * words["micro_batch_size"])
        formula = megatron_formula.bytes_of(Path(megatron), words, microbatches)
        rows.append([*one, *(round(value / GIB, 2) for value in (*mine, *formula, *ranks[0]))])
        print(*rows[-1], sep=" | ")
    for column, name in (
        (7, "megatron states"),
        (8, "megatron rest"),
        (9, "mbridge states"),
        (10, "mbridge rest"),
    ):
        off = [abs(row[column] / row[column - 2 * (1 + (column > 8))] - 1) for row in rows]
        print(f"{name}: {median(off):.1%} from ours in the median, {max(off):.1%} at most")
    with open(out, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*CONFIGURATIONS[0]._fields, *_COLUMNS])
        table.writerows(rows)


def _asked_of_mbridge(python: str, checkout: str, asked: list[dict[str, Any]]) -> list[Any]:
    script = Path(__file__).with_name("mbridge_estimator.py")
    said = subprocess.run(
        [python, str(script), checkout], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    return list(json.loads(said.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
