"""The start of a run by part on 2, 4 and 8 processes of this machine, beside the model: `python run.py`.

Wall seconds, as `run` reports them, of processes that share the cores of this machine: where it has fewer, they start
one after another. So the CPU seconds of one process until it can join stand beside them.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cost_models.reliability import start_up
from executor.clock import StartReport
from executor.measure.report import load_any_report
from planner.plan import load_plan

HERE = Path(__file__).parent
LAYOUTS = ("dp2 mbs1 zero1", "tp2 dp2 mbs1 zero1", "tp2 pp2 dp2 mbs1 zero1")
JOB = "--global-batch 8 --sequence 64 --precision fp32"
COLUMNS = ("ranks", "layout", "cores", "cpu_of_a_rank", *StartReport.model_fields)
COLUMNS += ("model_processes", "model_groups")


def meshwright(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "meshwright", *words], check=True, stdout=subprocess.DEVNULL)


def cpu_until_it_can_join() -> float:
    """CPU seconds of torchrun's process and a rank's, which start one after the other."""
    seconds = 0.0
    for module in ("executor.launch.agent", "executor.launch.rank"):
        before = os.times()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        after = os.times()
        seconds += sum(after[2:4]) - sum(before[2:4])
    return seconds


def main() -> None:
    with (HERE / "parts.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for layout in LAYOUTS:
            ranks = 2 ** (1 + LAYOUTS.index(layout))
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                asked = f"estimate gpt2-tiny local --gpus {ranks} {JOB} -o {folder}/plan.yaml --layout"
                meshwright(*asked.split(), layout)
                meshwright(*f"run {folder}/plan.yaml --steps 2 -o {folder}/run".split())
                plan = load_plan(folder / "plan.yaml")
                start = load_any_report(folder / "run" / "run-report.json").start
            row = (ranks, layout, os.cpu_count(), cpu_until_it_can_join())
            row += (*start.model_dump().values(), *start_up(plan.question, plan.layout).values())
            rows.writerow([f"{one:.4g}" if isinstance(one, float) else one for one in row])
            file.flush()
            print(*row)


if __name__ == "__main__":
    main()
