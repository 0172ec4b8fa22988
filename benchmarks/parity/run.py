"""Random layouts on eight processes against one process: do they train the same?

    python benchmarks/parity/run.py OUT.csv [--layouts 60] [--ranks 8] [--seed 0]
    python benchmarks/parity/run.py OUT.csv --compiled [...]
    python benchmarks/parity/run.py OUT.csv --offload [...]
    python benchmarks/parity/run.py OUT.csv --table

Draws from everything the planner may offer the executor for dense models (`tests/executor/drawing.py`), each time the
row that has most pairs of values of two axes that no row before had. Plain gradient descent, fp32, gloo; compares loss
and gradient norm of every step on every rank, and how far every parameter went in all steps together. Appends a row a
layout; layouts that are there already are not run again. With `--compiled` blocks are traced and differentiated as by
`torch.compile`, and run operator by operator. With `--offload` all keep something of their blocks in host memory.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "executor"))

from drawing import JOB, OFFLOADS, SHAPES, completed, legal_layouts
from processes import Processes
from training import plan_for, stray, traced, train_weights

from cost_models.axes.layout import Layout, Offload, parse_layout
from cost_models.axes.stages import policies_in
from cost_models.defaults import OWN_COMPILED, OWN_STACK
from cost_models.schedules.registry import SPLIT_BACKWARD
from planner.plan import Plan

STEPS = 3
FIELDS = ("model", "layout", "ranks", "steps", "loss_error", "norm_error", "way_error", "seconds", "failure")
ERRORS = FIELDS[4:7]
CANDIDATES = 400
TOLERANCE, WAY_TOLERANCE = 1e-5, 1e-3
"""Of loss and norm; of the way of a parameter, which may be so short that rounding shows."""
Trained = tuple[list[tuple[float, float]], dict[str, Any]]
AXES = ("tp", "pp", "vpp", "cp", "dp", "mbs", "zero", "shard", "sp", "schedule", "order", "context")


def main() -> None:
    """Draw, train, compare, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--layouts", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table(given.out))
        return
    stack = OWN_COMPILED if given.compiled else OWN_STACK
    drawn = draw(given.layouts, given.ranks, given.seed, stack, offload=given.offload)
    job = train_compiled if given.compiled else train_weights
    done = {(row["model"], row["layout"]) for row in read(given.out)}
    processes = Processes()
    references: dict[str, Trained] = {}
    for shape, layout in drawn:
        if (shape, str(layout)) in done:
            continue
        row = {"model": shape, "layout": str(layout), "ranks": given.ranks, "steps": STEPS, "failure": ""}
        start = time.monotonic()
        try:
            row |= compare(processes, references, shape, layout, job)
        except AssertionError as error:  # of the pool: a rank failed or hangs
            row["failure"] = str(error).strip().splitlines()[-1]
        row["seconds"] = f"{time.monotonic() - start:.1f}"
        append(given.out, row)
        print(" ".join(str(row.get(name, "")) for name in FIELDS), flush=True)
    processes.stop()


def train_compiled(plan: Plan, steps: int, sgd: bool) -> Trained:
    """As `train_weights`, with compiled blocks."""
    with traced():
        return train_weights(plan, steps, sgd, compile=True)


def draw(count: int, ranks: int, seed: int, stack: str, *, offload: bool) -> list[tuple[str, Layout]]:
    """(model, layout) so many times, models in turn; with `offload` without schedules that refuse it."""
    rng = random.Random(seed)
    seen: set[tuple[Any, ...]] = set()
    found: list[tuple[str, Layout]] = []
    for index in range(count):
        shape = sorted(SHAPES)[index % len(SHAPES)]
        space = legal_layouts(shape, ranks, stack)
        rows = [space.layout(rng.randrange(len(space))) for _ in range(CANDIDATES)]
        rows = [row for row in rows if not offload or row.schedule not in SPLIT_BACKWARD]
        best = max(rows, key=lambda layout: len(pairs(shape, layout) - seen))
        seen |= pairs(shape, best)
        found.append((shape, completed(best, shape, rng.choice, OFFLOADS[1:] if offload else ("",))))
    return found


def pairs(shape: str, layout: Layout) -> set[tuple[Any, ...]]:
    """Every two axes' values at once; the model is an axis too."""
    values = [("model", shape), *((axis, getattr(layout, axis)) for axis in AXES)]
    return set(combinations(values, 2))


def compare(
    processes: Processes,
    references: dict[str, Trained],
    shape: str,
    layout: Layout,
    job: Callable[[Plan, int, bool], Trained],
) -> dict[str, str]:
    """Largest relative errors of the loss, of the gradient's norm and of a parameter's way, over steps and ranks."""
    if shape not in references:
        whole = plan_for("mbs8", SHAPES[shape], **JOB)
        references[shape] = processes.run(1, train_weights, whole, STEPS, True)[0]
    curve, way = references[shape]
    plan = plan_for(str(layout), SHAPES[shape], **JOB)
    trained = processes.run(layout.num_gpus, job, plan, STEPS, True)
    errors = [
        max(
            abs(got[part] / wanted[part] - 1.0)
            for own, _ in trained
            for got, wanted in zip(own, curve, strict=True)
        )
        for part in (0, 1)
    ]
    errors.append(max(stray(own, way)[0] for _, own in trained))
    return {name: f"{error:.1e}" for name, error in zip(ERRORS, errors, strict=True)}


def read(path: Path) -> list[dict[str, str]]:
    """The rows written so far."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def append(path: Path, row: dict[str, Any]) -> None:
    """One more row."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def table(path: Path) -> str:
    """Markdown: a line for the whole, how often each value of an axis was drawn, a row for each layout."""
    rows = read(path)
    same = [row for row in rows if not row["failure"] and agrees(row)]
    largest = [max(float(row[name]) for row in rows if not row["failure"]) for name in ERRORS]
    lines = [
        f"{len(same)} of {len(rows)} layouts train as one process does. Largest relative error of a loss"
        f" {largest[0]:.1e}, of a gradient's norm {largest[1]:.1e}, of the way of a parameter {largest[2]:.1e}.",
        "",
        "| axis | layouts with each value |",
        "| --- | --- |",
        *coverage([parse_layout(row["layout"]) for row in rows]),
        "",
        "| model | layout | loss | gradient norm | way |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        shown = row["failure"] or " | ".join(row[name] for name in ERRORS)
        lines.append(f"| {row['model']} | `{row['layout']}` | {shown} |")
    return "\n".join(lines)


def coverage(layouts: list[Layout]) -> list[str]:
    """A row of Markdown for each axis."""
    drawn = {axis: Counter(getattr(layout, axis) for layout in layouts) for axis in AXES}
    drawn["shard"] = Counter("whole" if layout.shard is None else f"{layout.shard}" for layout in layouts)
    drawn["context"] = Counter(layout.context or "ring" for layout in layouts if layout.cp > 1)
    drawn["recompute"] = Counter(
        policy
        for layout in layouts
        for policy in {policy for mix in layout.recompute for policy in policies_in(mix)}
    )
    drawn["offload"] = Counter(
        part
        for layout in layouts
        for part, count in zip(Offload._fields, layout.offload, strict=True)
        if count
    )
    drawn["blocks"] = Counter("even" if len(set(layout.layers)) < 2 else "uneven" for layout in layouts)
    return [
        f"| {axis} | {', '.join(f'{value}: {count}' for value, count in sorted(counts.items()))} |"
        for axis, counts in drawn.items()
    ]


def agrees(row: dict[str, str]) -> bool:
    """All three are within what rounding explains."""
    loss, norm, way = (float(row[name]) for name in ERRORS)
    return max(loss, norm) < TOLERANCE and way < WAY_TOLERANCE


if __name__ == "__main__":
    main()
