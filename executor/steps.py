"""The steps of a run on this rank, of any model family: data, training, notes, checkpoints, and when to stop."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

from cost_models.errors import Problem, RunError
from cost_models.files.local import processor_name
from executor.checkpoints.checkpointer import Checkpointer, Saved
from executor.clock import StartClock, date
from executor.faults.failures import Heartbeat
from executor.faults.stopping import any_rank
from executor.measure.report import AnyReport, Environment, parse_report
from executor.measure.slow_ranks import RankWatch
from executor.messages import json_from_first
from executor.requirements import name_of
from executor.run_config import ALLOCATOR, RunConfig
from executor.timing import StepClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Loss, gradient norm and time of one finished step."""

    step: int
    """Number of the step, from 1, warm-up included."""
    loss: float
    gradient_norm: float
    seconds: float
    measured: bool
    """Whether the step is measured; False in the warm-up."""
    at: float
    """Time when the step ended, seconds since 1970."""


class Watcher:
    """Receives the events of a run: on every rank its progress, on rank 0 also steps and notes."""

    def __init__(self) -> None:
        self.heartbeat = Heartbeat(None, dist.get_rank())
        self.clock = StartClock(date())
        """Stopwatch of the run's start, until the first step ends."""
        self.groups: list[float] = []
        """Seconds of making each process group since all ranks joined."""
        self.notes: list[str] = []

    def step(self, progress: Progress) -> None:
        """Called on rank 0 after each step."""

    def note(self, text: str) -> None:
        """Called with a note for people."""
        self.notes.append(text)

    def saved(self, step: int, seconds: float) -> None:
        """Called when training goes on after it waited `seconds` for a save."""

    def written(self, step: int, seconds: float, size: int) -> None:
        """Called by the writing thread once a checkpoint is on the disk; training went on `seconds` earlier."""

    def resumed(self, step: int, loading_seconds: float) -> None:
        """Called when training resumes, with the seconds of finding and reading the checkpoint."""

    def keep(self, report: AnyReport) -> None:
        """Keep a report that has every measured step, and lacks only results of diagnostic steps."""

    def earlier_report(self) -> AnyReport | None:
        """Report that was kept by an earlier start of this run; None if there is none."""
        return None

    def metrics_before(self, step: int) -> tuple[list[float], list[float]]:
        """Losses and gradient norms of earlier starts, up to this step; empty if there are none."""
        return [], []


def kept_report(watcher: Watcher) -> AnyReport | None:
    """Report that an earlier start of this run kept, sent by rank 0 to every rank; None if there is none."""
    report = watcher.earlier_report() if dist.get_rank() == 0 else None
    if report is not None:
        notes = dict.fromkeys((*watcher.notes, *report.notes))
        report = report.model_copy(update={"notes": tuple(notes)})
    text = json_from_first(None if report is None else report.model_dump_json())
    return None if text is None else parse_report(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What a run that stopped on request returns in place of a report."""

    step: int
    """Number of steps done."""
    saved: int | None
    """Step of the newest checkpoint."""


@dataclass(slots=True)
class Curve:
    """Losses, gradient norms and times of the steps of a run."""

    clock: StepClock
    """Clock of the measured steps."""
    warm_up: int
    """Number of steps of this start that are not measured."""
    first_step: int
    """Step of the first loss; 1 unless the run was resumed."""
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    stopped_at: int | None = None

    def progress(self, step: int, *, measured: bool) -> Progress:
        """Loss, gradient norm and time of the last step."""
        metrics = {"loss": self.losses[-1], "gradient_norm": self.norms[-1]}
        seconds = self.clock.wall_seconds[-1]
        return Progress(step=step, **metrics, seconds=seconds, measured=measured, at=date())

    def course(self, device: torch.device, seed: int, notes: Sequence[str]) -> dict[str, Any]:
        """Fields of the run's report that do not depend on single ranks."""
        return {
            "environment": _environment(device),
            "seed": seed,
            "warm_up_steps": self.warm_up,
            "first_step": self.first_step,
            "losses": tuple(self.losses),
            "gradient_norms": tuple(self.norms),
            "notes": tuple(notes),
        }


class Trained(Protocol):
    """Interface of a run's model, of any family, together with its data."""

    @property
    def device(self) -> torch.device:
        """Device on which the model trains."""

    def begin(self) -> None:
        """Initialise the model; called if no checkpoint was resumed."""

    def one_step(self, step: int, curve: Curve, heart: Heartbeat) -> None:
        """Train one step and add its loss, norm and time to the curve; steps count from 1."""

    def forget(self) -> None:
        """Discard counts of the warm-up, if there are any but the clock's."""
        return

    def watch(self) -> RankWatch | None:
        """The watch for slow ranks; None, as here, if the work of ranks cannot be compared. Every rank calls it."""
        return None


def train_to_end(
    trained: Trained, state: Saved, data: str, config: RunConfig, watcher: Watcher, stop: Callable[[], bool]
) -> Curve | Stopped:
    """Train all steps, with checkpoints if the run has a folder for them; returns the curve, or where it stopped."""
    checkpointer = Checkpointer(state, config.saving, data) if config.saving else None
    curve = follow_steps(trained, config, checkpointer, watcher, stop)
    if curve.stopped_at is None:
        return curve
    return Stopped(step=curve.stopped_at, saved=checkpointer.saved if checkpointer else None)


def follow_steps(
    trained: Trained,
    config: RunConfig,
    checkpointer: Checkpointer | None,
    watcher: Watcher,
    stop: Callable[[], bool],
) -> Curve:
    """Train from the last checkpoint, or from the beginning, to the last step, or until asked to stop.

    Raises:
        InputError: there is a checkpoint, and it belongs to another run.
        RunError: the loss is no number; a checkpoint could not be written; none is whole.
    """
    heart, last = watcher.heartbeat, config.warm_up + config.steps
    start = _start(trained, checkpointer, watcher)
    if checkpointer is not None:
        watcher.clock.end("checkpoint")
    losses, norms = watcher.metrics_before(start)
    curve = Curve(
        clock=StepClock(trained.device),
        warm_up=max(0, min(config.warm_up, last - start - 1)),
        first_step=start + 1 - len(losses),
        losses=losses,
        norms=norms,
    )
    if start > last or (start == last and not losses):
        raise RunError(
            f"the run is at step {start} already; --steps {config.steps} ends at step {last}, warm-up included",
            hint="give more steps",
        )
    if start == last:
        # ranks were lost after the last step, before there was a report: one step more, not kept
        trained.one_step(last + 1, curve, heart)
        del curve.losses[-1], curve.norms[-1]
    watch = trained.watch()
    for step in range(start + 1, last + 1):
        if step == start + curve.warm_up + 1:
            curve.clock.forget()
            if curve.warm_up:
                trained.forget()
        trained.one_step(step, curve, heart)
        watcher.clock.end("first_step")
        _require_number(step, curve.losses[-1], curve.norms[-1], checkpointer)
        if watch is not None and step > start + curve.warm_up:
            for sentence in watch.step(step, [lap.thread for lap in curve.clock.steps[-1][1:]]):
                watcher.note(sentence)
        if dist.get_rank() == 0:
            watcher.step(curve.progress(step, measured=step > start + curve.warm_up))
        save_failed = checkpointer is not None and checkpointer.failed()
        stop_wanted, failed = any_rank(trained.device, stop(), save_failed)
        if checkpointer is not None:
            _save(checkpointer, step, watcher, due=stop_wanted or step == last, failed=failed)
        if stop_wanted and step < last:
            curve.stopped_at = step
            break
    heart.beat(curve.stopped_at or last, "end")
    return curve


def _start(trained: Trained, checkpointer: Checkpointer | None, watcher: Watcher) -> int:
    """Initialise the model or resume it from a checkpoint, if requested; returns the number of steps that are done."""
    resumes = checkpointer is not None and checkpointer.saving.resume
    if not resumes:
        if checkpointer is not None:
            checkpointer.require_empty()
        trained.begin()
    watcher.clock.end("weights", inside=sum(watcher.groups))
    if checkpointer is None or not resumes:
        return 0
    began = time.monotonic()
    resumed = checkpointer.resume()
    if dist.get_rank() == 0:
        for note in resumed.notes:
            watcher.note(note)
        watcher.resumed(resumed.step, time.monotonic() - began)
    if resumed.step == 0:
        trained.begin()
    return resumed.step


def _require_number(step: int, loss: float, norm: float, checkpointer: Checkpointer | None) -> None:
    """Raise RunError, on every rank alike, if loss or gradient norm is not finite; to be called before a save."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    symptom = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
    problems, hint = [], "try a smaller learning rate, or clip gradients"
    if checkpointer is not None:
        checkpointer.wait()
        last_save = f"step {checkpointer.saved}" if checkpointer.saved else "none yet"
        problems = [Problem("last checkpoint", f"{last_save}; the state since then was not saved")]
    raise RunError(f"{symptom} in step {step}", problems=problems, hint=hint)


def _save(checkpointer: Checkpointer, step: int, watcher: Watcher, *, due: bool, failed: bool) -> None:
    """Begin a checkpoint every `saving.every` steps; if one is `due`, save now and wait for it."""
    heart = watcher.heartbeat
    if failed:
        checkpointer.wait()
    if not due and step % checkpointer.saving.every:
        return
    heart.beat(step, "save")
    began = time.monotonic()
    checkpointer.save(step, heart.alive, watcher.written)
    if due:
        checkpointer.wait(heart.alive)
    if dist.get_rank() == 0:
        watcher.saved(step, time.monotonic() - began)


def _environment(device: torch.device) -> Environment:
    """Devices and software of the run, as seen from this rank."""
    return Environment(
        torch=str(torch.__version__),
        python=platform.python_version(),
        device=name_of(device),
        backend=dist.get_backend(),
        world_size=dist.get_world_size(),
        cores=os.cpu_count() or 1,
        processor=processor_name(),
        allocator=os.environ.get(ALLOCATOR, "") if device.type == "cuda" else "",
    )
