"""Load test of `meshwright serve`: hits, rows of every tier, samples a second and latencies beside the plan's, as CSV.

python benchmarks/serving/load.py OUT.csv [SCALE [PROFILE]]

0.01 of the tables of `docs/guides/serving-recommenders.md`; a profile of this machine, from `meshwright calibrate`.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import meshwright as mw
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec

ADS = RecommenderSpec(
    name="ads",
    tables=(
        TableSpec(name="users", rows=200_000_000, width=64, zipf=0.9),
        TableSpec(name="items", rows=40_000_000, width=64, pooling=20, zipf=1.1),
        TableSpec(name="sellers", rows=2_000_000, width=64, pooling=5, zipf=1.0),
        TableSpec(name="words", rows=1_000_000, width=64, count=8, pooling=10, zipf=1.2),
    ),
    interaction=Interaction(kind="none"),
)
CASES: dict[str, dict[str, Any]] = {
    "hottest": {},
    "lru": {"policy": "lru"},
    "drive": {"host_memory": "32GiB", "drive_rate": "7GB/s"},
}
SAMPLES = 131_072
COLUMNS = ("case", "what", "quantity", "predicted", "measured")


def compared(case: str, scale: float, profile: str | None) -> list[tuple[object, ...]]:
    """A row for each quantity of one case."""
    plan = mw.plan_cache(ADS, "dgx-h100", gpus=1, cache="1GiB", batch="64,1024,4096", **CASES[case]).plan
    found = mw.serve(plan, synthetic=SAMPLES, scale=scale, profile=profile).record()
    rows: list[tuple[object, ...]] = [
        (case, one["table"], "hits", one["hits"], one["measured_hits"]) for one in found["tables"]
    ]
    for one in found["batches"]:
        each, seconds, rate = one["batch"], one["latency_seconds"], one["samples_per_second"]
        rows += [
            (case, each, "host rows", one["host_rows"], one["measured_host_rows"]),
            (case, each, "drive rows", one["drive_rows"], one["measured_drive_rows"]),
            (case, each, "p50", seconds, one["p50_seconds"]),
            (case, each, "p99", seconds, one["p99_seconds"]),
            (case, each, "p50, CPU", seconds, one["cpu_p50_seconds"]),
            (case, each, "p99, CPU", seconds, one["cpu_p99_seconds"]),
            (case, each, "samples/s", rate, one["measured_samples_per_second"]),
            (case, each, "samples/s, CPU", rate, each / one["cpu_p50_seconds"]),
        ]
    return rows


def main(out: Path, scale: float, profile: str | None) -> None:
    """Write the table."""
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for case in CASES:
            for *names, said, seen in compared(case, scale, profile):
                writer.writerow((*names, f"{said:.5g}", "" if seen is None else f"{seen:.5g}"))


if __name__ == "__main__":
    given = [*sys.argv[2:], None, None]
    main(Path(sys.argv[1]), float(given[0] or 0.01), given[1])
