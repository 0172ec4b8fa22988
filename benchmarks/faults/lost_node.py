"""Lose one of two nodes, for good or until another takes its place, and see what the one that is left does.

    python benchmarks/faults/lost_node.py OUT [--trials 6] [--seed 0]

The nodes are two launchers of this machine with a rank each; one is ended by SIGKILL with its torchrun and its rank, at
a step drawn at random. In every other trial a launcher then starts in its place. Writes OUT/lost_nodes.csv:

    node, step       which node was lost, and the last step it had said it was in
    seconds          from the kill to the end of the launcher that is left, or to where the run goes on
    code             with which the launcher that is left ended: 1 after a report, 0 after the last step
    said             of what was lost, or that all losses are those of a run without faults: `same curve`
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from small_plans import plan_for

from cost_models.files.whole import write_whole
from executor.faults.failures import read_sign, read_signs
from executor.steps import read_progress
from meshwright.terminal.output import as_csv
from planner.plan import save_plan

STEPS, EVERY, LATEST = 120, 10, 90
WAIT_SECONDS, HEAD_START_SECONDS = 60, 1.0
LAYOUT = "dp2 mbs2 zero1"


def main() -> None:
    """Trials one after another; exits 1 where one ended otherwise than it should."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    save_plan(plan_for(LAYOUT), options.out / "plan.yaml")
    rng = random.Random(options.seed)
    _launch(options.out, "", nodes=1).communicate()
    expected = _losses(options.out)
    rows = []
    for trial in range(options.trials):
        rows.append(_trial(options.out, rng, expected, replaced=trial % 2 == 1))
        print(rows[-1], flush=True)
        write_whole(options.out / "lost_nodes.csv", as_csv(rows))
    bad = [row for row in rows if row["code"] != (0 if row["replaced"] else 1)]
    if bad or any(row["said"] != "same curve" for row in rows if row["replaced"]):
        sys.exit(1)


def _trial(out: Path, rng: random.Random, expected: list[float], *, replaced: bool) -> dict[str, object]:
    shutil.rmtree(out / "run", ignore_errors=True)
    shutil.rmtree(out / "saved", ignore_errors=True)
    with socket.create_server(("localhost", 0)) as server:
        place = f"localhost:{server.getsockname()[1]}"
    launchers = [_launch(out, place, wait=WAIT_SECONDS if replaced else 0)]
    time.sleep(HEAD_START_SECONDS)
    launchers.append(_launch(out, place, wait=WAIT_SECONDS if replaced else 0))
    last = rng.randrange(1, LATEST)
    while len(_losses(out)) < last:
        time.sleep(0.02)
    doomed = launchers[1] if replaced else launchers[rng.randrange(2)]  # the first has torchrun's store
    pids = {doomed.pid, *(child.pid for child in psutil.Process(doomed.pid).children(recursive=True))}
    (rank,) = [rank for rank, sign in read_signs(out / "run").items() if sign["pid"] in pids]
    sign = read_sign(out / "run", rank)
    killed = time.monotonic()
    for pid in pids:
        psutil.Process(pid).kill()
    left = next(launcher for launcher in launchers if launcher is not doomed)
    row: dict[str, object] = {"replaced": replaced, "node": sign["node"], "step": sign["step"]}
    if replaced:
        launchers.append(_launch(out, place, wait=WAIT_SECONDS))
        while not any("resume" in str(line.get("note")) for line in read_progress(out / "run")):
            time.sleep(0.05)
        row["seconds"] = round(time.monotonic() - killed, 1)
    said = left.communicate()[1].decode().splitlines()  # short runs: what launchers say fits into their pipes
    row.setdefault("seconds", round(time.monotonic() - killed, 1))
    row["code"] = left.returncode
    for launcher in set(launchers) - {left}:
        launcher.communicate()
    errors = [line for line in said if line.startswith("error: ")] or ["nothing"]
    same = _losses(out) == expected
    row["said"] = (
        ("same curve" if same else "another curve") if replaced else errors[0].removeprefix("error: ")
    )
    return row


def _launch(out: Path, place: str, *, nodes: int = 2, wait: int = 0) -> subprocess.Popen[bytes]:
    """A node; `wait`: how long it waits for another, 0: it does not."""
    command = [sys.executable, "-m", "meshwright", "run", str(out / "plan.yaml"), "--steps", str(STEPS - 2)]
    command += ["--out", str(out / "run"), "--backend", "gloo"]
    if nodes > 1:
        command += ["--nodes", str(nodes), "--rendezvous", place, "--checkpoint", str(out / "saved")]
        command += ["--every", str(EVERY), "--restarts", str(int(wait > 0))]
        command += ["--timeout", str(wait or WAIT_SECONDS)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _losses(out: Path) -> list[float]:
    """Of every step, each as it was trained last."""
    lines = read_progress(out / "run")
    losses = {line["step"]: line["loss"] for line in lines if "step" in line}
    return [losses[step] for step in sorted(losses)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
