"""Train a plan on this rank, inside an initialised process group, and measure it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from executor.batches import Batches
from executor.engine import Engine, Options, mean_over_data
from executor.exhausted import telling_what_was_held
from executor.memory import allocator_peak, measure_memory, predicted_parts
from executor.report import (
    Environment,
    PhaseReport,
    RankReport,
    RouterReport,
    RunReport,
    make_report,
)
from executor.routers import router_reports, take_loads
from executor.timing import Lap, StepClock, measure_waits
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
    waiting_steps: int = 3
    """More steps, slower, in which waiting for other ranks is measured; 0: it is not."""
    measure_memory: bool = True
    """One more step, slower, in which every storage is followed."""


def train(
    plan: Plan, device: torch.device, options: Options, schedule: Schedule, on_progress: OnProgress
) -> RunReport:
    """Every rank calls it and gets the report; `on_progress` is called on rank 0 only.

    Raises:
        ExhaustedError: this rank's memory ran out; the error says which part held what.
    """
    with telling_what_was_held(device) as held:
        engine = Engine(plan, device, options)
        held.append(engine)
        return _measured(engine, schedule, on_progress)


def _measured(engine: Engine, schedule: Schedule, on_progress: OnProgress) -> RunReport:
    plan, device, options = engine.plan, engine.device, engine.options
    batches = Batches(
        plan.training,
        vocabulary=plan.model.vocab_size,
        seed=options.seed,
        tokens_path=schedule.tokens_path,
    )
    place, replicas = engine.place.dp, plan.layout.dp
    clock = StepClock(device)
    losses: list[float] = []
    norms: list[float] = []
    last = schedule.warm_up + schedule.steps
    for index in range(last):
        if index == schedule.warm_up:
            clock.forget()
            _router_reports(engine)  # what the warm-up did does not count
        batch = batches.slice(index, place, replicas)
        engine.optimizer.set_rate(options.rate.at(index))
        value, norm = clock.time(partial(engine.forward_backward, *batch), engine.update)
        losses.append(mean_over_data(value, engine))
        norms.append(norm)
        if dist.get_rank() == 0:
            measured = index >= schedule.warm_up
            seconds = clock.wall_seconds[-1]
            on_progress(Progress(step=index + 1, loss=losses[-1], seconds=seconds, measured=measured))
    routed = _router_reports(engine)
    peak = allocator_peak(device)
    waits: tuple[dict[str, float], dict[str, float]] = ({}, {})
    if schedule.waiting_steps:
        more = [batches.slice(last + index, place, replicas) for index in range(schedule.waiting_steps)]
        waits = measure_waits(engine, more)
    memory: dict[str, int] = {}
    if schedule.measure_memory:
        memory = measure_memory(engine, *batches.slice(last + schedule.waiting_steps, place, replicas))
    pipeline_rank = engine.mesh["pp"].get_local_rank()
    mine = RankReport(
        rank=dist.get_rank(),
        pipeline_rank=pipeline_rank,
        wall_seconds=tuple(clock.wall_seconds),
        thread_seconds=tuple(sum(lap.thread for lap in step) for step in clock.steps),
        process_seconds=tuple(sum(lap.process for lap in step) for step in clock.steps),
        forward_backward=_phase([step[0] for step in clock.steps], waits[0]),
        update=_phase([step[1] for step in clock.steps], waits[1]),
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
        routers=routed,
    )


def _router_reports(engine: Engine) -> tuple[RouterReport, ...]:
    """What the routers did since the last call."""
    model, training = engine.plan.model, engine.plan.training
    if not model.has_experts:
        return ()
    loads = take_loads(engine.parts, model.num_layers, model.num_experts, engine.device)
    return router_reports(loads, training.tokens_per_step * model.experts_per_token)


def _phase(laps: list[Lap], waiting: dict[str, float]) -> PhaseReport:
    return PhaseReport(
        wall_seconds=tuple(lap.wall for lap in laps),
        thread_seconds=tuple(lap.thread for lap in laps),
        waiting_seconds=waiting,
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
