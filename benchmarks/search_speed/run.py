"""How fast a proven answer comes: GPT-3 175B on 512 to 4096 A100, one core, median of five.

    python benchmarks/search_speed/run.py            prints a table and writes results.csv beside this file

"Priced" is enumerating all legal layouts and computing the time and memory coefficients of each; "proven" is all from
the question to the best layouts with their proof, solver included. `plain` fixes vpp to 1: there every number of blocks
on every stage is covered, and the ILP decides; over `all` layouts the winners are interleaved, and bounds close the
proof. The first of the five runs of a size has to build its schedules; the others find them in memory, so the first is
in the table too.
"""

from __future__ import annotations

import csv
import os
import statistics
import time
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from cost_models.asking import ask
from cost_models.costs import stage_costs
from cost_models.question import Question
from cost_models.specs import catalog
from cost_models.specs.loading import resolve_cluster
from cost_models.specs.training import TrainingSpec
from planner.search import search
from planner.search_space import Restrictions, enumerate_layouts, parse_restrictions

SIZES = (512, 1024, 3072, 4096)
REPEATS = 5
SPACES = {"all": Restrictions(), "plain": parse_restrictions(["vpp=1"], [])}
COLUMNS = (
    "space",
    "gpus",
    "top",
    "layouts",
    "infeasible",
    "pruned",
    "solved",
    "undecided",
    "priced_per_second",
    "first_seconds",
    "proven_seconds",
    "cpu_seconds",
    "step_seconds",
    "layout",
)


def gpt3_on(gpus: int) -> Question:
    """Global batch 1536, sequence 2048."""
    training = TrainingSpec(global_batch=1536, sequence_length=2048)
    return ask(catalog.load_model("gpt3-175b"), resolve_cluster("dgx-a100-80gb", gpus), training)


def priced_per_second(question: Question) -> float:
    """Layouts enumerated and priced, a second."""
    start = time.perf_counter()
    columns = enumerate_layouts(question, Restrictions())
    stage_costs(question, columns)
    return len(columns) / (time.perf_counter() - start)


def measure(space: str, gpus: int, top: int) -> dict[str, object]:
    """One row of the table."""
    question = gpt3_on(gpus)
    rates, walls, cpus = [], [], []
    for _ in range(REPEATS):
        rates.append(priced_per_second(question))
        wall, cpu = time.perf_counter(), time.process_time()
        result = search(question, top=top, restrictions=SPACES[space])
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    proof = result.certificate
    return {
        "space": space,
        "gpus": gpus,
        "top": top,
        "layouts": proof.layouts,
        "infeasible": proof.infeasible,
        "pruned": proof.pruned,
        "solved": proof.solved,
        "undecided": proof.undecided,
        "priced_per_second": round(statistics.median(rates)),
        "first_seconds": round(walls[0], 3),
        "proven_seconds": round(statistics.median(walls), 3),
        "cpu_seconds": round(statistics.median(cpus), 3),
        "step_seconds": round(result.best.step_seconds, 4),
        "layout": str(result.best.layout),
    }


def main() -> None:
    """Measure, print, save."""
    rows = []
    for space, gpus, top in product(SPACES, SIZES, (1, 5)):
        rows.append(measure(space, gpus, top))
        shown = rows[-1]
        print(
            f"{space:>5} {shown['gpus']:>5} GPUs  top {top}  {shown['layouts']:>6} layouts  "
            f"{shown['priced_per_second']:>8,} priced/s  proven in {shown['proven_seconds']:.2f} s "
            f"(first {shown['first_seconds']:.2f} s)  {shown['layout']}"
        )
    with (Path(__file__).parent / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
