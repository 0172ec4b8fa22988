"""TorchRec's planner beside our search, at TorchRec's own prices and by its own objective.

    python benchmarks/recommenders/run.py theirs [NAME ...]     appends to theirs.csv
    python benchmarks/recommenders/run.py ours [NAME ...]       appends to ours.csv

Seconds are of this process's CPU, so that what else a machine does counts for neither; both use one core.
`priced_seconds` is TorchRec's time for its options and their prices, which its own planner and our search both start
from: it is part of `seconds` in theirs.csv and not of ours.csv.
"""

from __future__ import annotations

import csv
import logging
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.recommenders.instances import Instance, instances

HERE = Path(__file__).parent
TIME_LIMIT = 60.0
"""Seconds of the clock for a search of ours."""


def theirs(instance: Instance) -> None:
    """TorchRec's plan of an instance: a row of theirs.csv."""
    from benchmarks.recommenders.torchrec_side import TorchRec

    view = TorchRec(instance)
    peer = view.plan()
    append(
        "theirs.csv",
        {
            "instance": instance.name,
            "tables": len(instance.tables),
            "gpus": instance.gpus,
            "batch": instance.batch,
            "objective_ms": round(peer.value, 6),
            "stages_ms": round(peer.stages, 6),
            "seconds": round(peer.seconds, 2),
        },
    )


def ours(instance: Instance) -> None:
    """Our search of an instance by both objectives: two rows of ours.csv, rated by TorchRec."""
    from benchmarks.recommenders.torchrec_side import TorchRec, stages
    from planner.recommender.planning import plan_sharding
    from planner.recommender.problem import OBJECTIVES

    view = TorchRec(instance)
    options, priced, priced_seconds = view.enumerated()
    for objective in reversed(OBJECTIVES):
        start = time.process_time()
        answer = plan_sharding(priced, objective=objective, time_limit=TIME_LIMIT)
        seconds = time.process_time() - start
        plan = view.ranked(options, answer)
        proof = answer.certificate
        append(
            "ours.csv",
            {
                "instance": instance.name,
                "objective": objective,
                "distinct": proof.distinct,
                "method": proof.method,
                "objective_ms": round(view.rate(plan), 6),
                "stages_ms": round(stages(plan, instance.gpus), 6),
                "bound_ms": round(proof.bound, 6),
                "gap": round(proof.gap, 8),
                "seconds": round(seconds, 3),
                "priced_seconds": round(priced_seconds, 2),
            },
        )


def append(name: str, row: dict[str, object]) -> None:
    """Add a row to a table, with its head where the table is new."""
    path = HERE / name
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(row, flush=True)


def main(which: str, *names: str) -> None:
    """Run one side on the named instances, or on all."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    for instance in instances():
        if not names or instance.name in names:
            (theirs if which == "theirs" else ours)(instance)


if __name__ == "__main__":
    main(*sys.argv[1:])
