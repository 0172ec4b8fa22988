"""Train a plan on this rank, inside an initialised process group, and measure it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from executor.batches import Batches
from executor.engine import Engine, Options, mean_over_data
from executor.memory import allocator_peak, measure_memory, predicted_parts
from executor.report import Environment, RankReport, RunReport, make_report
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step as it happened."""

    step: int
    """From 1, warm-up included."""
    loss: float
    seconds: float
    measured: bool
    """False in the warm-up."""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long to train and what to measure."""

    steps: int
    """Measured steps, after the warm-up."""
    warm_up: int = 2
    tokens_path: Path | None = None
    """Token file; None: the text of the Python library, byte by byte."""
    measure_memory: bool = True
    """One more step, slower, in which every storage is followed."""


@dataclass(slots=True)
class _Clocks:
    """Seconds of the measured steps, by clock."""

    wall: list[float] = field(default_factory=list)
    thread: list[float] = field(default_factory=list)
    process: list[float] = field(default_factory=list)

    def time(self, device: torch.device, step: Callable[[], tuple[float, float]]) -> tuple[float, float]:
        """Run one step, from a common start to its end on this rank."""
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        before = (time.perf_counter(), time.thread_time(), time.process_time())
        result = step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        after = (time.perf_counter(), time.thread_time(), time.process_time())
        for clock, start, end in zip((self.wall, self.thread, self.process), before, after, strict=True):
            clock.append(end - start)
        return result

    def forget(self) -> None:
        """Start over after the warm-up."""
        for clock in (self.wall, self.thread, self.process):
            clock.clear()


def train(
    plan: Plan, device: torch.device, options: Options, schedule: Schedule, on_progress: OnProgress
) -> RunReport:
    """Every rank calls it and gets the report; `on_progress` is called on rank 0 only."""
    engine = Engine(plan, device, options)
    batches = Batches(
        plan.training,
        vocabulary=plan.model.vocab_size,
        seed=options.seed,
        tokens_path=schedule.tokens_path,
    )
    place, replicas = engine.mesh["dp"].get_local_rank(), plan.layout.dp
    clocks = _Clocks()
    losses: list[float] = []
    norms: list[float] = []
    for index in range(schedule.warm_up + schedule.steps):
        if index == schedule.warm_up:
            clocks.forget()
        batch = batches.slice(index, place, replicas)
        value, norm = clocks.time(device, lambda batch=batch: engine.step(*batch))  # type: ignore[misc]
        losses.append(mean_over_data(value, engine))
        norms.append(norm)
        if dist.get_rank() == 0:
            measured = index >= schedule.warm_up
            on_progress(Progress(step=index + 1, loss=losses[-1], seconds=clocks.wall[-1], measured=measured))
    peak = allocator_peak(device)
    memory: dict[str, int] = {}
    if schedule.measure_memory:
        memory = measure_memory(engine, *batches.slice(schedule.warm_up + schedule.steps, place, replicas))
    pipeline_rank = engine.mesh["pp"].get_local_rank()
    mine = RankReport(
        rank=dist.get_rank(),
        pipeline_rank=pipeline_rank,
        wall_seconds=tuple(clocks.wall),
        thread_seconds=tuple(clocks.thread),
        process_seconds=tuple(clocks.process),
        memory=memory,
        predicted_memory=predicted_parts(plan.prediction.rank_memory[pipeline_rank]),
        allocator_peak=peak,
    )
    ranks: list[RankReport] = [mine] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    return make_report(
        plan,
        ranks,
        losses=losses,
        gradient_norms=norms,
        warm_up=schedule.warm_up,
        seed=options.seed,
        environment=_environment(device),
    )


def _environment(device: torch.device) -> Environment:
    return Environment(
        torch=str(torch.__version__),
        python=platform.python_version(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        backend=dist.get_backend(),
        world_size=dist.get_world_size(),
        cores=os.cpu_count() or 1,
    )
