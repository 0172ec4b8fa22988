"""Goodput with failures, forecast and measured: ranks are killed at random while they train.

    python benchmarks/goodput/run.py OUT [--arms "dp2 mbs2 zero1,40,10;..."] [--seed 0]

An arm is a layout, a mean time between failures in seconds and how many of them. First it trains with saves and a few
kills: that gives what a save, its writing and a restart take, and the forecast goodput and best interval. Then it
trains with that interval while a rank drawn at random gets SIGKILL; torchrun starts all ranks again. Times between
failures are the quantiles of an exponential distribution in an order drawn at random, counted on the clock on the wall,
restarts included: ten of them are as typical as a thousand, so what is left is the error of the forecast.

Writes OUT/results.csv, a row for each arm:

    step_seconds, blocked, flush, restart_seconds   from the calibration
    every                                           steps between saves that the forecast finds best
    predicted                                       goodput: Segment(...) of the calibration
    measured, failures, wall_seconds                of the run with failures
    of_own_means                                    the forecast of that run's own means
    same_losses                                     whether all losses are those of a run without faults
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from killing import ranks_here
from small_plans import MODEL, plan_for

from cost_models.errors import StoppedError
from cost_models.files.whole import write_whole
from cost_models.reliability import best_steps
from executor.launch.launch import run_plan
from executor.measure.report import OperationsReport, operations_of_record
from executor.run_config import RunConfig
from executor.steps import read_progress
from meshwright.terminal.output import as_csv
from meshwright.verbs.ran import forecast_shares, segment_of

ARMS = "dp2 mbs2 zero1,60,8;dp2 pp2 mbs2,60,8"
STEPS = 1_000_000
CALIBRATED_EVERY, CALIBRATION_KILLS, CALIBRATION_SECONDS = 50, 3, 35.0
WIDER = MODEL.model_copy(update={"hidden_size": 192})
"""A model whose saves take more than a step."""
Losses = dict[int, float]


@dataclass
class Killer:
    """Ends ranks at given times after the first step; after the last the run is asked to stop once it goes on."""

    gaps: list[float]
    """Seconds from one failure to the next."""
    rng: random.Random
    _began: threading.Event = field(default_factory=threading.Event)
    _done: bool = False
    _asked: bool = False

    def on_step(self, step: dict[str, Any]) -> None:
        """A step was done. Ranks that start again find the wish to stop, and go on for one step."""
        self._began.set()
        if self._done and not self._asked:
            self._asked = True
            raise KeyboardInterrupt

    def haunt(self) -> None:
        """Kill at the given times; where ranks are just being started, as soon as there are any."""
        self._began.wait()
        at = time.monotonic()
        for gap in self.gaps:
            at += gap
            time.sleep(max(0.0, at - time.monotonic()))
            while not (ranks := ranks_here()):
                time.sleep(0.05)
            _, process = self.rng.choice(sorted(ranks.items()))
            process.send_signal(signal.SIGKILL)
        self._done = True


def main() -> None:
    """Every arm in turn; exits 1 where losses differ from those without faults."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for text in options.arms.split(";"):
        layout, between, failures = text.split(",")
        rows.append(_arm(options.out, layout, float(between), int(failures), options.seed))
        print(rows[-1], flush=True)
        write_whole(options.out / "results.csv", as_csv(rows))
    if not all(row["same_losses"] for row in rows):
        sys.exit(1)


def _arm(out: Path, layout: str, between: float, failures: int, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    known, _ = _train(out, layout, CALIBRATED_EVERY, Killer([CALIBRATION_SECONDS] * CALIBRATION_KILLS, rng))
    one = replace(segment_of(known), mtbf=between)
    every = best_steps(replace(one, work=known.step_seconds))
    one = replace(one, work=every * known.step_seconds)
    seen, losses = _train(out, layout, every, Killer(typical_gaps(between, failures, rng), rng))
    expected = _without_faults(out, layout, max(losses))
    return {
        "layout": layout,
        "between_failures": between,
        "step_seconds": round(known.step_seconds, 4),
        "blocked": round(one.saving, 4),
        "flush": round(one.lag, 3),
        "restart_seconds": round(one.restart, 2),
        "every": every,
        "predicted": round(one.goodput, 4),
        "measured": round(seen.goodput, 4),
        "failures": seen.failures,
        "wall_seconds": round(seen.wall_seconds, 1),
        "own_restart_seconds": round(segment_of(seen).restart, 2),
        "of_own_means": round(forecast_shares(seen)["training"], 4),
        "same_losses": losses == expected,
    }


def typical_gaps(between: float, count: int, rng: random.Random) -> list[float]:
    """Quantiles of an exponential distribution, of this mean, in an order drawn at random."""
    gaps = [-math.log1p(-(index + 0.5) / count) for index in range(count)]
    gaps = [between * gap * count / sum(gaps) for gap in gaps]
    rng.shuffle(gaps)
    return gaps


def _train(out: Path, layout: str, every: int, killer: Killer) -> tuple[OperationsReport, Losses]:
    """What a run that is killed at these times tells of its operations, and its losses."""
    for old in ("run", "saved"):
        shutil.rmtree(out / old, ignore_errors=True)
    thread = threading.Thread(target=killer.haunt, daemon=True)
    thread.start()
    how: dict[str, Any] = {"checkpoint": out / "saved", "every": every, "restarts": 1000, "timeout": 120.0}
    with suppress(StoppedError):
        run_plan(
            plan_for(layout, WIDER),
            _config(out / "run", STEPS).model_copy(update=how),
            on_step=killer.on_step,
        )
    lines = read_progress(out / "run")
    last = max(index for index, line in enumerate(lines) if "step" in line)
    seen = operations_of_record(lines[: last + 1], every)  # the save of whoever stops is none of the job's
    assert seen is not None
    return seen, {line["step"]: line["loss"] for line in lines if "step" in line}


def _without_faults(out: Path, layout: str, steps: int) -> Losses:
    report: Any = run_plan(plan_for(layout, WIDER), _config(None, steps))
    return dict(enumerate(report.losses, start=1))


def _config(out: Path | None, steps: int) -> RunConfig:
    return RunConfig(
        steps=steps,
        warm_up=0,
        backend="gloo",
        learning_rate=1e-3,
        out=out,
        waiting_steps=0,
        measure_memory=False,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--arms", default=ARMS)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
