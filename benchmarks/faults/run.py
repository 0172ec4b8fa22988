"""Kill ranks at random moments, and see what is lost.

    python benchmarks/faults/run.py OUT [--kills 50] [--layouts "dp2 mbs2 zero1;table:0-7=row;..."] [--seed 0]

Each layout first trains without faults. Then it trains again and again with checkpoints while a rank drawn at random is
ended with SIGKILL at a moment drawn at random: after some seconds, while a checkpoint is being written, or while ranks
start. torchrun starts the ranks again. Writes OUT/results.csv, a row for each kill:

    steps_lost        steps that were done and had to be done again
    newest            step of the newest whole checkpoint when the rank was killed, to which nothing may be lost
    restart_seconds   from the kill to the end of the first step after it; -1 where none was left to do

and OUT/runs.csv, a row for each run: kills, and whether all losses and gradient norms are exactly those without faults.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from killing import ranks_here
from small_plans import plan_for, sharded_plan

from cost_models.files.whole import write_whole
from executor.checkpoints.manifest import Folder
from executor.faults.failures import read_signs
from executor.launch.launch import run_plan
from executor.run_config import RunConfig
from meshwright.terminal.output import as_csv
from planner.plan import AnyPlan

LAYOUTS = ("dp2 mbs2 zero1", "dp2 mbs2 zero3", "pp2 mbs2")
STEPS, EVERY = 150, 10
MOMENTS = ("any", "any", "any", "save", "start")
LONGEST_SECONDS = 3.0
PATIENCE_SECONDS = 300.0


@dataclass
class Kill:
    """One rank ended."""

    layout: str
    run: int
    kill: int
    moment: str
    rank: int
    phase: str
    step: int
    newest: int
    resumed: int = -1
    steps_lost: int = -1
    restart_seconds: float = -1.0


@dataclass
class Run:
    """What is known of a run while it goes on."""

    layout: str
    number: int
    folder: Path
    rng: random.Random
    wanted: int
    kills: list[Kill] = field(default_factory=list)
    furthest: int = 0
    recovered: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    _killed_at: float = 0.0

    def on_step(self, step: dict[str, Any]) -> None:
        """A step was done; the first after a kill says how much was lost."""
        if self.kills and not self.recovered.is_set() and self._killed_at:
            kill = self.kills[-1]
            if kill.resumed >= 0 or step["step"] == 1:
                kill.resumed = step["step"] - 1
                kill.steps_lost = max(0, self.furthest - kill.resumed)
                kill.restart_seconds = round(time.monotonic() - self._killed_at, 2)
                self.recovered.set()
        self.furthest = max(self.furthest, step["step"])

    def on_note(self, note: str) -> None:
        """Where ranks that were started again go on."""
        if self.kills and " after step " in note:
            self.kills[-1].resumed = int(note.rsplit(" after step ", 1)[1].split(",")[0])
        elif self.kills and note.startswith("nothing to resume"):
            self.kills[-1].resumed = 0

    def end(self) -> None:
        """Nothing is left to kill; after a kill behind the last step there is none to come."""
        self.ended.set()
        if not self.recovered.is_set() and self.kills[-1].resumed == self.furthest:
            self.kills[-1].steps_lost = 0
        self.recovered.set()

    def haunt(self) -> None:
        """Kill, wait until the run goes on, kill again."""
        self.recovered.set()
        while len(self.kills) < self.wanted and not self.ended.is_set():
            if not self.recovered.wait(PATIENCE_SECONDS):
                return
            moment = self.rng.choice(MOMENTS) if self.kills else "start"
            if moment == "save":
                self._until_a_save()
            else:
                self.ended.wait(self.rng.uniform(0, LONGEST_SECONDS))
            self._kill(moment)
            if moment == "start":  # once more, while they start again
                self.ended.wait(self.rng.uniform(0.5, LONGEST_SECONDS))

    def _until_a_save(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and not self.ended.is_set():
            if any((self.folder / "saved").glob(".partial-step-*")):
                return
            time.sleep(0.001)

    def _kill(self, moment: str) -> None:
        ranks = ranks_here()
        if not ranks or self.ended.is_set():
            return
        rank, process = self.rng.choice(sorted(ranks.items()))
        sign = read_signs(self.folder / "out").get(rank, {})
        here = sign.get("pid") == process.pid
        newest = Folder(self.folder / "saved").complete()
        kill = Kill(
            layout=self.layout,
            run=self.number,
            kill=len(self.kills),
            moment=moment,
            rank=rank,
            phase=str(sign["phase"]) if here else "start",
            step=int(str(sign["step"])) if here else 0,
            newest=newest[0] if newest else 0,
        )
        self.recovered.clear()
        self._killed_at = time.monotonic()
        self.kills.append(kill)
        process.send_signal(signal.SIGKILL)


def main() -> None:
    """Runs until so many ranks were killed; exits 1 where a run's curve differs or a checkpoint was lost."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(options.seed)
    layouts = options.layouts.split(";")
    references = {layout: _train(layout, None, options.steps) for layout in layouts}
    kills: list[Kill] = []
    runs: list[dict[str, object]] = []
    while len(kills) < options.kills:
        layout = layouts[len(runs) % len(layouts)]
        run = Run(layout, len(runs), options.out / "run", rng, options.kills - len(kills))
        shutil.rmtree(run.folder, ignore_errors=True)
        report = _train(layout, run, options.steps)
        kills += run.kills
        same = (report.losses, report.gradient_norms) == (
            references[layout].losses,
            references[layout].gradient_norms,
        )
        runs.append({"run": run.number, "layout": layout, "kills": len(run.kills), "same_curve": same})
        print(runs[-1], flush=True)
        write_whole(options.out / "results.csv", as_csv([asdict(kill) for kill in kills]))
        write_whole(options.out / "runs.csv", as_csv(runs))
    lost = [kill for kill in kills if 0 <= kill.resumed < kill.newest]
    print(f"{len(kills)} kills in {len(runs)} runs; {len(lost)} lost a whole checkpoint")
    if lost or not all(run["same_curve"] for run in runs):
        sys.exit(1)


def _plan(layout: str) -> AnyPlan:
    return sharded_plan(layout) if layout.startswith("table:") else plan_for(layout)


def _train(layout: str, run: Run | None, steps: int) -> Any:
    how: dict[str, Any] = {"steps": steps, "warm_up": 0, "backend": "gloo", "learning_rate": 1e-3}
    if run is None:
        return run_plan(_plan(layout), RunConfig(**how))
    killer = threading.Thread(target=run.haunt, daemon=True)
    killer.start()
    try:
        return run_plan(
            _plan(layout),
            RunConfig(
                **how,
                out=run.folder / "out",
                checkpoint=run.folder / "saved",
                every=EVERY,
                restarts=1000,
                timeout=60.0,
            ),
            on_step=run.on_step,
            on_note=run.on_note,
        )
    finally:
        run.end()
        killer.join()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--layouts", default=";".join(LAYOUTS))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
