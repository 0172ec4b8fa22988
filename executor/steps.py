"""The steps of a run on this rank, of any model family: data, training, notes, checkpoints, and when to stop."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from cost_models.errors import Problem, RunError
from cost_models.files.local import processor_name
from executor.checkpoints.checkpointer import Checkpointer
from executor.clock import StartClock, date, process_began
from executor.faults.failures import Heartbeat, last_sign, naming
from executor.faults.stopping import any_rank
from executor.measure.report import (
    AnyReport,
    Environment,
    load_any_report,
    operations_of_record,
    parse_report,
    save_report,
)
from executor.measure.slow_ranks import RankWatch
from executor.messages import json_from_first
from executor.requirements import name_of
from executor.run_config import ALLOCATOR, PROGRESS, REPORT, RunConfig
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
    """Record of a run: on every rank its progress; on rank 0 also steps, saves and notes, as lines of JSON in the run's
    folder. Lines are kept when ranks are started again. Without a folder nothing is written.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        is_continued: bool = False,
        start: int = 1,
        interval: int | None = None,
    ) -> None:
        """`is_continued`: whether to go on with what an earlier start wrote to the folder; `start` counts the starts of
        this run's ranks, from 1; `interval`: steps between saves, None if none.
        """
        self.heartbeat = Heartbeat(None, dist.get_rank())
        self.clock = StartClock(date())
        """Stopwatch of the run's start, until the first step ends."""
        self.groups: list[float] = []
        """Seconds of making each process group since all ranks joined."""
        self._folder, self._start, self._save_interval = folder, start, interval
        self._continued_folder = folder if is_continued else None
        self._last_sign = last_sign(self._continued_folder) if self._continued_folder else None
        self._earlier = read_progress(self._continued_folder) if self._continued_folder else []
        self.notes = [line["note"] for line in self._earlier if "note" in line]

    def step(self, progress: Progress) -> None:
        """Write the numbers of a finished step; called on rank 0."""
        self._append(asdict(progress))

    def note(self, text: str) -> None:
        """Keep a note for the report, and write it."""
        self.notes.append(text)
        self._append({"note": text})

    def saved(self, step: int, seconds: float) -> None:
        """Write the seconds that training waited for a save, when it goes on."""
        self._append({"save": step, "blocked_seconds": seconds, "at": date()})

    def written(self, step: int, seconds: float, size: int) -> None:
        """Write the seconds from when training went on until a checkpoint was on the disk, and its bytes; called by the
        writing thread.
        """
        self._append({"saved": step, "flush_seconds": seconds, "bytes": size, "at": date()})

    def resumed(self, step: int, loading_seconds: float) -> None:
        """Write the seconds that a restart after a loss of ranks took; do nothing if no earlier start is continued."""
        if self._continued_folder is None:
            return
        now, process_start = date(), process_began()
        dates = [line["at"] for line in self._earlier if "at" in line]
        seen = max([*dates, *filter(None, [self._last_sign])], default=process_start)
        self._append(
            {
                "restart": self._start,
                "detection_seconds": max(0.0, process_start - seen),
                "starting_seconds": now - loading_seconds - max(process_start, seen),
                "loading_seconds": loading_seconds,
                "resumed_step": step,
                "steps_lost": len({line["step"] for line in self._earlier if line.get("step", 0) > step}),
                "at": now,
            }
        )

    def keep(self, report: AnyReport) -> AnyReport:
        """Write a report that may lack results of diagnostic steps, and return it. It gets the seconds of this start,
        and saves and restarts if the run saves checkpoints.
        """
        update: dict[str, Any] = {"start": self.clock.report()}
        if self._folder is not None and self._save_interval is not None:
            update["operations"] = operations_of_record(read_progress(self._folder), self._save_interval)
        report = report.model_copy(update=update)
        if self._folder is not None:
            save_report(report, self._folder / REPORT)
        return report

    def earlier_report(self) -> AnyReport | None:
        """Report that an earlier start of this run wrote, complete or not; None if there is none."""
        path = self._continued_folder and self._continued_folder / REPORT
        return load_any_report(path) if path and path.exists() else None

    def metrics_before(self, step: int) -> tuple[list[float], list[float]]:
        """Losses and gradient norms of earlier starts, up to `step`, each as it was last trained."""
        lines = {line["step"]: line for line in self._earlier if line.get("step", step + 1) <= step}
        last_lines = [lines[number] for number in sorted(lines)]
        return [line["loss"] for line in last_lines], [line["gradient_norm"] for line in last_lines]

    def _append(self, line: dict[str, Any]) -> None:
        """Append a line of JSON with a single write, so that a killed rank or a full disk leaves no half line."""
        if self._folder is None:
            return
        path, text = self._folder / PROGRESS, (json.dumps(line) + "\n").encode()
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            with naming(path):
                if os.write(descriptor, text) < len(text):
                    os.ftruncate(descriptor, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def read_progress(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's progress file."""
    path = folder / PROGRESS
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


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


def follow_steps(
    trained: Trained,
    config: RunConfig,
    checkpointer: Checkpointer | None,
    watcher: Watcher,
    stop: Callable[[], bool],
) -> Curve | Stopped:
    """Train from the last checkpoint, or from the beginning, to the last step; returns the curve, or where the run
    stopped on request.

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
    watch, first_measured = trained.watch(), start + curve.warm_up + 1
    for step in range(start + 1, last + 1):
        if step == first_measured:
            curve.clock.forget()
            if curve.warm_up:
                trained.forget()
        trained.one_step(step, curve, heart)
        watcher.clock.end("first_step")
        loss, norm, seconds = curve.losses[-1], curve.norms[-1], curve.clock.wall_seconds[-1]
        _require_number(step, loss, norm, checkpointer)
        measured = step >= first_measured
        if watch is not None and measured:
            for sentence in watch.step(step, [lap.thread for lap in curve.clock.steps[-1][1:]]):
                watcher.note(sentence)
        if dist.get_rank() == 0:
            watcher.step(
                Progress(
                    step=step, loss=loss, gradient_norm=norm, seconds=seconds, measured=measured, at=date()
                )
            )
        save_failed = checkpointer is not None and checkpointer.failed()
        stop_wanted, failed = any_rank(trained.device, stop(), save_failed)
        if checkpointer is not None:
            _save(checkpointer, step, watcher, due=stop_wanted or step == last, failed=failed)
        if stop_wanted and step < last:
            heart.beat(step, "end")
            return Stopped(step=step, saved=checkpointer.saved if checkpointer else None)
    heart.beat(last, "end")
    return curve


def _start(trained: Trained, checkpointer: Checkpointer | None, watcher: Watcher) -> int:
    """Initialise the model or resume it from a checkpoint, if requested; returns the number of steps that are done."""
    resumes = checkpointer is not None and checkpointer.config.resume
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
    """Begin a checkpoint every `config.every` steps; if one is `due`, save now and wait for it."""
    heart = watcher.heartbeat
    if failed:
        checkpointer.wait()
    if not due and step % checkpointer.config.every:
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
