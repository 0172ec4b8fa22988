"""`make demo`: the whole loop, shown as the commands a user would type.

First a question about a cluster nobody here has; then this machine: measured, planned for, trained on, compared.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from cost_models.specs.catalog import local_cluster

OUT = Path("demo-output")

_QUESTION = (
    "plan gpt3-175b dgx-a100-80gb --gpus 1024 --global-batch 1536 --sequence 2048 -o {out}/gpt3.yaml",
    "explain {out}/gpt3.yaml",
    "plot frontier {out}/gpt3.yaml -o {out}/gpt3-frontier.png",
    "plot time {out}/gpt3.yaml -o {out}/gpt3-time.png",
    "plot memory {out}/gpt3.yaml -o {out}/gpt3-memory.png",
    "plot timeline {out}/gpt3.yaml -o {out}/gpt3-timeline.png",
)
_HERE = (
    "calibrate --quick --processes {processes} -o {out}/this-machine.yaml",
    "plan gpt2-tiny local --gpus {processes} --profile {out}/this-machine.yaml --precision {precision}"
    " --global-batch 16 --sequence 256 -o {out}/local.yaml",
    "run {out}/local.yaml --steps 20 -o {out}/run",
    "plot accuracy {out}/run/run-report.json -o {out}/accuracy.png",
)


def main() -> None:
    """Run every command; stops at the first that fails, with its exit code."""
    OUT.mkdir(exist_ok=True)
    machine = local_cluster()
    on_cpu = machine.gpu.kind == "cpu"
    words = {
        "out": str(OUT),
        "processes": "2" if on_cpu else str(machine.num_gpus),
        "precision": "fp32" if on_cpu else "bf16",
    }
    for title, commands in (
        ("GPT-3 175B on 1024 A100: how, how fast, and will it fit?", _QUESTION),
        ("This machine: measure it, plan for it, train on real text, compare", _HERE),
    ):
        print(f"\n=== {title} ===", flush=True)
        for command in commands:
            _show(command.format(**words))
    print(f"\nPlans, plots and the run report are in {OUT}/.")


def _show(command: str) -> None:
    """Print a command as a user types it, and run it."""
    print(f"\n$ meshwright {command}", flush=True)
    code = subprocess.run([sys.executable, "-m", "meshwright", *shlex.split(command)], check=False).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
