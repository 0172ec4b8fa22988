"""How far sharded recommenders end from what one process trains: every way to shard, combiner and optimizer.

    python benchmarks/parity/recommenders.py OUT.csv

Shardings, models and jobs are those of tests/executor/recommender/test_recommender_parity.py: two processes over gloo,
four steps of 24 samples. Writes a row for each: the farthest that a loss, any element of any table or a dense weight
ended from where it should.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "executor"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "executor" / "recommender"))
from processes import Processes
from recommending import model, trained
from test_recommender_parity import ALONE, EXACT, NEAR, stray

from cost_models.files.whole import write_whole
from meshwright.terminal.output import as_csv

COMBINERS = ("sum", "mean", "concat")
OPTIMIZERS = ("sgd", "rowwise-adagrad", "adagrad", "adam")


def main() -> None:
    """Train all of them, print the farthest of each way to shard."""
    processes, rows = Processes(), list[dict[str, Any]]()
    shardings = {**EXACT, **NEAR}
    for combiner in COMBINERS:
        for optimizer in OPTIMIZERS:
            spec = model(combiner)
            (alone,) = processes.run(1, trained, spec, [ALONE], optimizer, None, 2)[0]
            runs = processes.run(2, trained, spec, list(shardings.values()), optimizer)[0]
            rows += [
                {
                    "sharding": name,
                    "combiner": combiner,
                    "optimizer": optimizer,
                    "farthest": stray(run, alone),
                }
                for name, run in zip(shardings, runs, strict=True)
            ]
    processes.stop()
    for name in shardings:
        print(f"{name:30} {max(row['farthest'] for row in rows if row['sharding'] == name):.1e}")
    write_whole(Path(sys.argv[1]), as_csv(rows))


if __name__ == "__main__":
    main()
