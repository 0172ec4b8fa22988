"""Goodput with failures on a clock that counts: real steps, saves and resumes, each taken to last as long as it says.

    python benchmarks/goodput/counted.py OUT.csv [--seeds 10] [--steps 900] [--count-only]

Two gloo processes train, save and resume as a run does (`executor.checkpoints`); at a failure all that the model and
the optimizer hold is overwritten before they are read again. What time it is is counted: a step takes 1 s, training
waits 1 s for a save, which can be read 2 s later, a restart takes 8 s, and failures come at random, 40 s from one to
the next on average, restarts and saves included. So other work on the machine moves nothing, and what is left to chance
are the failures. Each seed trains with the interval that the forecast finds best, with half of it and with twice it,
failures at the same times. With `--count-only` nothing is trained: the clock is the same.

Writes a row for each of them: goodput, predicted goodput, failures, whether all losses are those without failures.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from small_plans import MODEL, plan_for

from cost_models.files.whole import write_whole
from cost_models.reliability import Segment, best_steps
from executor.launch.environment import on_this_machine, worker_environment
from meshwright.terminal.output import as_csv

STEP = Segment(work=1.0, saving=1.0, restart=8.0, mtbf=40.0, lag=2.0)
"""Seconds of one step, a save, a restart, from failure to failure, until a save can be read."""
LAYOUT = "dp2 mbs4 zero1"
TINY = MODEL.model_copy(update={"num_layers": 1, "hidden_size": 32})
Row = dict[str, object]


@dataclass
class Clock:
    """Counted seconds, and when the next failure comes."""

    rng: random.Random
    now: float = 0.0
    failures: int = 0

    def __post_init__(self) -> None:
        self.next = self._gap()

    def passes(self, seconds: float) -> bool:
        """Whether so many seconds pass without a failure; where not, it is that time now."""
        if self.now + seconds <= self.next:
            self.now += seconds
            return True
        self.now = self.next
        self.next += self._gap()
        self.failures += 1
        return False

    def _gap(self) -> float:
        return self.rng.expovariate(1 / STEP.mtbf)


def main() -> None:
    """Start two processes, which do all of it together."""
    options = _options()
    if options.rank is not None:
        _work(options)
        return
    if options.count_only:
        _arms(Counted(), options, told=True)
        return

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--folder", folder]
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank)], env=on_this_machine(worker_environment()))
            for rank in range(2)
        ]
        sys.exit(max(rank.wait() for rank in ranks))


def _work(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    meet = Path(options.folder, "rendezvous").as_uri()
    dist.init_process_group("gloo", init_method=meet, rank=options.rank, world_size=2)
    rows = _arms(Trained(Path(options.folder, "saved")), options, told=options.rank == 0)
    dist.destroy_process_group()
    if not all(row["same_losses"] for row in rows):
        sys.exit(1)


def _arms(job: Counted, options: argparse.Namespace, *, told: bool) -> list[Row]:
    """Every seed with each interval."""
    best, expected = best_steps(STEP), job.without_failures(options.steps)
    rows: list[Row] = []
    for seed in range(options.seeds):
        for which, every in (("planned", best), ("half", best // 2), ("double", 2 * best)):
            clock = Clock(random.Random(seed))
            losses = job.train(options.steps, every, clock)
            rows.append(
                {
                    "seed": seed,
                    "interval": which,
                    "every": every,
                    "predicted": round(replace(STEP, work=every * STEP.work).goodput, 4),
                    "counted": round(options.steps * STEP.work / clock.now, 4),
                    "failures": clock.failures,
                    "same_losses": losses == expected,
                }
            )
            if told:
                print(rows[-1], flush=True)
                write_whole(options.out, as_csv(rows))
    if told:
        _summarise(rows)
    return rows


class Counted:
    """A job of which only the clock counts."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def train(self, steps: int, every: int, clock: Clock) -> list[float]:
        """The losses of all steps, each as it was trained last."""
        self._begin()
        losses: dict[int, float] = {}
        readable = {0: 0.0}
        done = 0
        while done < steps:
            if clock.passes(STEP.work):
                done += 1
                losses[done] = self._step(done)
                if done % every or done == steps:
                    continue
                if clock.passes(STEP.saving):
                    self._save(done)
                    readable[done] = clock.now + STEP.lag
                    continue
            for step in [step for step, at in readable.items() if at > clock.now]:
                del readable[step]
                self._lose(step)
            while not clock.passes(STEP.restart):
                pass
            done = self._resume()
            assert done == max(readable)
        return [losses[step] for step in range(1, steps + 1)]

    def without_failures(self, steps: int) -> list[float]:
        """The losses of all steps."""
        self._begin()
        return [self._step(step) for step in range(1, steps + 1)]

    def _begin(self) -> None:
        self.kept = [0]

    def _step(self, step: int) -> float:
        return 0.0

    def _save(self, step: int) -> None:
        self.kept.append(step)

    def _lose(self, step: int) -> None:
        self.kept.remove(step)

    def _resume(self) -> int:
        return max(self.kept)


class Trained(Counted):
    """An engine that is trained over and over; its folder of checkpoints is emptied for every run."""

    def __init__(self, folder: Path) -> None:
        import torch

        from executor.checkpoints.checkpointer import Checkpointer
        from executor.data.batches import Batches
        from executor.engine.engine import Engine
        from executor.run_config import EngineOptions, Rate, RunConfig
        from executor.transformer.train import TransformerState

        super().__init__()
        plan = plan_for(LAYOUT, TINY)
        self.engine = Engine(plan, torch.device("cpu"), EngineOptions(rate=Rate(peak=1e-3)))
        self.batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
        saving = RunConfig(checkpoint=folder, keep=10**6, resume=True)
        self.checkpoints = Checkpointer(TransformerState(self.engine), saving, "text")
        self.begun = folder.with_name("begun")
        self._save(0)
        self._alone(lambda: shutil.move(folder, self.begun))

    def _step(self, step: int) -> float:
        from executor.engine.engine import mean_over_data

        engine = self.engine
        engine.optimizer.set_rate(engine.options.rate.at(step - 1))
        batch = self.batches.slice(step - 1, engine.place.dp, engine.layout.dp)
        value, _ = engine.step(*batch)
        return mean_over_data(value, engine)

    def _begin(self) -> None:
        folder = self.checkpoints.folder.path
        self._alone(lambda: (shutil.rmtree(folder, ignore_errors=True), shutil.copytree(self.begun, folder)))
        self._resume()

    def _save(self, step: int) -> None:
        self.checkpoints.save(step)
        self.checkpoints.wait()

    def _resume(self) -> int:
        """Lose everything, and read the newest checkpoint."""
        import torch

        with torch.no_grad():
            for held in self.checkpoints.state.contents().values():
                for piece in held.pieces:
                    if piece.tensor.is_floating_point():
                        piece.tensor.fill_(torch.nan)
        return self.checkpoints.resume().step

    def _lose(self, step: int) -> None:
        self._alone(lambda: self.checkpoints.folder.delete(step))

    def _alone(self, do: object) -> None:
        import torch.distributed as dist

        if dist.get_rank() == 0:
            do()  # type: ignore[operator]
        dist.barrier()


def _summarise(rows: list[Row]) -> None:
    by = {(row["seed"], row["interval"]): float(str(row["counted"])) for row in rows}
    seeds = {seed for seed, _ in by}
    for which in ("planned", "half", "double"):
        mine = [row for row in rows if row["interval"] == which]
        counted = statistics.fmean(float(str(row["counted"])) for row in mine)
        print(f"{which}: every {mine[0]['every']}, predicted {mine[0]['predicted']}, counted {counted:.4f}")
    wins = sum(by[seed, "planned"] > max(by[seed, "half"], by[seed, "double"]) for seed in seeds)
    print(f"the planned interval is best in {wins} of {len(seeds)} seeds", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--count-only", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
