"""How long the command line takes to answer: every command in a process of its own, before and after a change.

    python benchmarks/answers_speed/run.py                        this checkout: table, results.csv
    python benchmarks/answers_speed/run.py --before DIR           another checkout beside it, command by command in turn
    python benchmarks/answers_speed/run.py --only plan-70b error  these commands, and the plans they need
    python benchmarks/answers_speed/run.py --table                results.csv as the table of the report

`git worktree add DIR COMMIT` makes the other checkout. A process is cold: nothing of it is kept but the bytecode of its
modules, as an installed package has it, which is compiled first, and what the commands before it kept in the user's
cache, which is empty at first. "Wall" is from the start of the process to its end;
"CPU" is user and system time of the process, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
FIELDS = ("command", "aim", "before_wall", "before_cpu", "wall", "cpu")
PACKAGES = ("cost_models", "planner", "executor", "meshwright")
_BYTECODE = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
H100 = "dgx-h100 --gpus"


class Command(NamedTuple):
    """A command, the plan file it reads, and the seconds it may take."""

    words: str
    aim: float
    reads: str = ""


COMMANDS = {
    "error": Command("plan llama3-70b nowhere", 1.0),
    "plan-70b": Command(
        f"plan llama3-70b {H100} 64 --global-batch 128 --sequence 8192 -o plan-70b.yaml", 2.5
    ),
    "plan-405b": Command(
        f"plan llama3.1-405b {H100} 16384 --global-batch 2048 --sequence 8192 -o plan-405b.yaml", 3.0
    ),
    "plan-235b": Command(
        f"plan qwen3-235b-a22b {H100} 256 --global-batch 1024 --sequence 4096 -o plan-235b.yaml", 6.0
    ),
    "plan-671b": Command(
        f"plan deepseek-v3 {H100} 2048 --global-batch 7680 --sequence 4096 -o plan-671b.yaml", 8.0
    ),
    "plan-odd": Command(f"plan llama3-8b {H100} 8 --global-batch 127 --sequence 8191", 5.0),
    "explain-70b": Command("explain plan-70b.yaml", 3.0, "plan-70b"),
    "explain-405b": Command("explain plan-405b.yaml", 3.0, "plan-405b"),
    "explain-235b": Command("explain plan-235b.yaml", 3.0, "plan-235b"),
    "explain-671b": Command("explain plan-671b.yaml", 3.0, "plan-671b"),
    "frontier": Command("plot frontier plan-70b.yaml -o frontier.png", 6.0, "plan-70b"),
    "heatmap": Command("plot heatmap plan-70b.yaml -o heatmap.png", 5.0, "plan-70b"),
    "scaling": Command("plot scaling plan-70b.yaml -o scaling.png", 6.0, "plan-70b"),
    "report": Command("report plan-70b.yaml -o report.html", 8.0, "plan-70b"),
    "validate": Command("validate", 15.0),
}
"""Those after a plan read its file."""


def main() -> None:
    """Measure, print, save."""
    asked = _arguments()
    if asked.table:
        with RESULTS.open(newline="") as file:
            print(_markdown(list(csv.DictReader(file))))
        return
    names = asked.only or list(COMMANDS)
    if unknown := [name for name in names if name not in COMMANDS]:
        raise SystemExit(f"no command is called {', '.join(unknown)}; known: {', '.join(COMMANDS)}")
    needed = {COMMANDS[name].reads for name in names} - {""}
    checkouts = {"": HERE.parents[1]} | ({"before_": asked.before.resolve()} if asked.before else {})
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        folders = {prefix: Path(folder) / (prefix or "after") for prefix in checkouts}
        for prefix, place in folders.items():
            place.mkdir()
            _run(
                checkouts[prefix], place, "plan llama3-8b dgx-h100 --gpus 8"
            )  # compiles what most commands import
        for name, command in COMMANDS.items():
            if name not in names and name not in needed:
                continue
            row: dict[str, Any] = {"command": f"meshwright {command.words}", "aim": command.aim}
            for prefix in sorted(checkouts, reverse=True):
                wall, cpu = _run(checkouts[prefix], folders[prefix], command.words)
                row |= {f"{prefix}wall": f"{wall:.2f}", f"{prefix}cpu": f"{cpu:.2f}"}
            rows.append(row)
            print(_line(row), flush=True)
    if not asked.only:
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, metavar="DIR", help="a checkout to compare with")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these commands; writes nothing")
    parser.add_argument("--table", action="store_true", help="show what was measured; measures nothing")
    return parser.parse_args()


def _run(checkout: Path, folder: Path, words: str) -> tuple[float, float]:
    """Wall and CPU seconds of one command in a new process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "meshwright", *words.split()],
        cwd=folder,
        env=_env() | {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        check=False,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _env() -> dict[str, str]:
    """The environment of a user: bytecode is where it always is."""
    return {name: value for name, value in os.environ.items() if name not in _BYTECODE}


def _line(row: dict[str, Any]) -> str:
    return "| " + " | ".join(str(row.get(field) or "") for field in FIELDS) + " |"


def _markdown(rows: list[dict[str, Any]]) -> str:
    heads = "| command | aim s | before, wall s | before, CPU s | wall s | CPU s |"
    return "\n".join([heads, "| --- |" + " --- |" * 5, *map(_line, rows)])


if __name__ == "__main__":
    main()
