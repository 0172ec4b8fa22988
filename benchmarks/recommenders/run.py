"""TorchRec's planner beside our search, at TorchRec's own prices and by its own objective.

    python benchmarks/recommenders/run.py theirs [NAME ...]     appends to theirs.csv
    python benchmarks/recommenders/run.py ours [NAME ...]       appends to ours.csv
    python benchmarks/recommenders/run.py search [NAME ...]     appends to search.csv, without TorchRec

Seconds are of this process's CPU, so that what else a machine does counts for neither; both use one core. In ours.csv
`seconds` are of the search, `found_seconds` of what it took until the answer was found (the rest is proof), and
`priced_seconds` of TorchRec's prices by our formulas, which are checked against those that TorchRec enumerates
(`enumerated_seconds`). In theirs.csv prices are part of `seconds`.
"""

from __future__ import annotations

import csv
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.recommenders.instances import Instance, instances

HERE = Path(__file__).parent
TIME_LIMIT = 25.0
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
    from benchmarks.recommenders.our_prices import agree, our_prices
    from benchmarks.recommenders.torchrec_side import TorchRec, stages
    from planner.recommender.problem import OBJECTIVES
    from planner.recommender.search import plan_sharding

    view = TorchRec(instance)
    options, priced, enumerated_seconds = view.enumerated()
    own, priced_seconds = our_prices(instance)
    assert agree(own, priced)
    for objective in reversed(OBJECTIVES):
        watch = Watch()
        answer = plan_sharding(priced, objective=objective, seconds=TIME_LIMIT, progress=watch.tell)
        seconds = watch.seconds
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
                "found_seconds": round(watch.found.get(proof.value, seconds), 3),
                "priced_seconds": round(priced_seconds, 3),
                "enumerated_seconds": round(enumerated_seconds, 2),
            },
        )


def searched(instance: Instance) -> None:
    """Our search at our prices of TorchRec's, by both objectives, and at HugeCTR's cost: rows of search.csv."""
    from benchmarks.recommenders.hugectr_side import TIME_LIMIT as HUGECTR_LIMIT
    from benchmarks.recommenders.hugectr_side import priced as hugectr_prices
    from benchmarks.recommenders.our_prices import our_prices
    from planner.recommender import search
    from planner.recommender.problem import OBJECTIVES

    search.time = SimpleNamespace(monotonic=time.process_time)  # type: ignore[assignment]
    ours, _ = our_prices(instance)
    cases = [("torchrec", ours, objective, TIME_LIMIT, 1e3) for objective in reversed(OBJECTIVES)]
    if not instance.name.startswith("random"):
        cases.append(("hugectr", hugectr_prices(instance), "torchrec", HUGECTR_LIMIT, 1.0))
    for prices, priced, objective, limit, scale in cases:
        watch = Watch()
        proof = search.plan_sharding(
            priced, objective=objective, seconds=limit, progress=watch.tell
        ).certificate
        seconds = watch.seconds
        append(
            "search.csv",
            {
                "commit": subprocess.check_output(("git", "rev-parse", "--short", "HEAD"), text=True).strip(),
                "prices": prices,
                "instance": instance.name,
                "gpus": instance.gpus,
                "objective": objective,
                "value_ms": round(proof.value * scale, 6),
                "bound_ms": round(proof.bound * scale, 6),
                "gap": round(proof.gap, 8),
                "seconds": round(seconds, 2),
                "found_seconds": round(watch.found.get(proof.value, seconds), 2),
                "load": round(os.getloadavg()[0], 1),
            },
        )


class Watch:
    """CPU seconds of a search from here on, and by value of those until it was first told."""

    def __init__(self) -> None:
        self.start = time.process_time()
        self.found: dict[float, float] = {}

    @property
    def seconds(self) -> float:
        """Until now."""
        return time.process_time() - self.start

    def tell(self, value: float, bound: float, doing: str) -> None:
        """The search tells the best value so far."""
        self.found.setdefault(value, self.seconds)


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
            {"theirs": theirs, "ours": ours, "search": searched}[which](instance)


if __name__ == "__main__":
    main(*sys.argv[1:])
