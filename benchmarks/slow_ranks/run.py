"""Runs in which one of three processes works a fifth longer from some step on, and even ones: who is named?

`python benchmarks/slow_ranks/run.py [--runs 20] [--write]` trains each on the CPU and writes `slow_ranks.md` beside
this file, with the last slow run's report as `slow.json`. A process is slowed by computing on for a fifth of the CPU
time that its forward and backward passes took.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "tests" / "executor")]

RANKS, STEPS, WARM_UP = 3, 30, 3
SHARE = 0.2


def watched(plan: Any, slow: int | None, since: int) -> tuple[list[str], list[dict[str, Any]], str]:
    """Notes of slow ranks, those that the report names, and the report."""
    import torch
    import torch.distributed as dist

    from executor.engine.engine import Engine
    from executor.run_config import RunConfig
    from executor.steps import Watcher
    from executor.transformer.train import train

    own, done = Engine.forward_backward, [0]

    def slower(self: Engine, *batch: torch.Tensor) -> float:
        began = time.thread_time()
        value = own(self, *batch)
        done[0] += 1
        until = time.thread_time() + SHARE * (time.thread_time() - began)
        while slow == dist.get_rank() and done[0] >= since and time.thread_time() < until:
            pass
        return value

    watcher = Watcher()
    config = RunConfig(steps=STEPS, warm_up=WARM_UP, measure_memory=False, waiting_steps=0)
    with mock.patch.object(Engine, "forward_backward", slower):
        report = train(plan, torch.device("cpu"), config, watcher)
    told = [one for one in watcher.notes if " is slow: " in one]
    first = report.first_measured_step
    found = [
        {"rank": one.rank, "part": one.part, "excess": one.excess, "since": first + one.since}
        for one in report.slow_ranks
    ]
    return told, found, report.model_dump_json()


def main() -> None:
    """Run them all and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    from processes import Processes
    from training import GPT, plan_for

    plan = plan_for(
        f"dp{RANKS} mbs2 zero1", {**GPT, "hidden_size": 128}, sequence_length=64, global_batch=2 * RANKS
    )
    processes, draw = Processes(), random.Random(31)
    rows, named, alarms, late = [], 0, 0, []
    try:
        for number in range(given.runs):
            slow, since = draw.randrange(RANKS), draw.randrange(WARM_UP + 1, WARM_UP + STEPS // 2)
            told, found, report = processes.run(RANKS, watched, plan, slow, since)[0]
            right = [one["rank"] for one in found] == [slow]
            named += right
            if right:
                late.append(abs(found[0]["since"] - since))
            rows.append(f"| {number} | {slow} since {since} | {json.dumps(found)} | {len(told)} |")
            (HERE / "slow.json").write_text(report, "utf-8") if given.write else None
            _, found, _ = processes.run(RANKS, watched, plan, None, 0)[0]
            alarms += bool(found)
            rows.append(f"| {number} | none | {json.dumps(found)} | |")
            print(rows[-2], rows[-1], sep="\n", flush=True)
    finally:
        processes.stop()
    found = f"{named} named it and no other, {max(late, default=0)} steps or less off its beginning"
    text = (
        f"# Slow ranks\n\nOf {given.runs} runs of {RANKS} processes and {STEPS} steps in which one worked a fifth"
        f" longer,\n{found};\nof {given.runs} even ones, {alarms} named any.\n\n"
        "| run | slowed | named | told while it ran |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )
    print(text.split("|")[0])
    if given.write:
        (HERE / "slow_ranks.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
