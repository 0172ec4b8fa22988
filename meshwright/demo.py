"""`make demo`: plan, run and compare, shown as the commands that a user would type.

First a question about a cluster nobody here has; then this machine: measured, planned for, trained on, compared; and
another layout, which has never run, predicted from what the first one taught.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from cost_models.files.catalog import local_cluster
from meshwright.records.runs import comparison, read_report
from meshwright.render.measured import error_text, quantity_label
from meshwright.render.words import percent

OUT = Path("demo-output")

_CHAPTERS = {
    "GPT-3 175B on 1024 A100: how, how fast, and will it fit?": (
        "plan gpt3-175b dgx-a100-80gb --gpus 1024 --global-batch 1536 --sequence 2048 -o {out}/gpt3.yaml",
        "explain {out}/gpt3.yaml",
        "plot frontier {out}/gpt3.yaml -o {out}/gpt3-frontier.png",
        "plot time {out}/gpt3.yaml -o {out}/gpt3-time.png",
        "plot memory {out}/gpt3.yaml -o {out}/gpt3-memory.png",
        "plot timeline {out}/gpt3.yaml -o {out}/gpt3-timeline.png",
    ),
    "This machine: measure it, plan for it, train on real text, compare, learn": (
        "calibrate --quick --processes {processes} -o {out}/this-machine.yaml",
        "plan gpt2-tiny local {job} --profile {out}/this-machine.yaml -o {out}/local.yaml",
        "run {out}/local.yaml --steps 20 -o {out}/run",
        "calibrate --from-run {out}/run/run-report.json -o {out}/learned.yaml",
    ),
    "A layout that has never run": (
        'estimate gpt2-tiny local {job} --profile {out}/learned.yaml --layout "{layout}" -o {out}/another.yaml',
        "run {out}/another.yaml --steps 20 -o {out}/another",
        "plot accuracy {out}/run/run-report.json {out}/another/run-report.json -o {out}/accuracy.png",
    ),
}
"""Title → commands, with fields for words that depend on the machine."""


def main() -> None:
    """Run the demo's commands in order; exit at the first that fails, with its exit code."""
    OUT.mkdir(exist_ok=True)
    machine = local_cluster()
    processes, precision = (2, "fp32") if machine.gpu.kind == "cpu" else (machine.num_gpus, "bf16")
    job = f"--gpus {processes} --precision {precision} --global-batch 16 --sequence 256"
    words = {"out": OUT, "processes": processes, "layout": another_layout(processes), "job": job}
    for title, commands in _CHAPTERS.items():
        print(f"\n=== {title} ===", flush=True)
        for command in commands:
            _show(command.format(**words))
    for name, report in (("the first", OUT / "run"), ("the one that had never run", OUT / "another")):
        print(f"Predicted for {name}: {errors_of(report / 'run-report.json')}")
    print(f"Plans, plots and run reports are in {OUT}/.")


def another_layout(processes: int) -> str:
    """Text of a layout for `processes` GPUs other than the plan that the demo ran: two pipeline stages if `processes`
    is even."""
    return f"pp2 dp{processes // 2} mbs2" if processes % 2 == 0 else f"dp{processes} mbs2"


def errors_of(report: Path) -> str:
    """Errors of predictions in a run report, such as "step -7.1 % (noise 4.0 %), thread cpu +2.0 % (noise 1.1 %)"."""
    return ", ".join(
        f"{quantity_label(line.quantity)} {error_text(line)} (noise {percent(line.noise)})"
        for line in comparison(read_report(report))
        if line.noise is not None
    )


def _show(command: str) -> None:
    """Print a command as a user types it, and run it."""
    print(f"\n$ meshwright {command}", flush=True)
    code = subprocess.run([sys.executable, "-m", "meshwright", *shlex.split(command)], check=False).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
