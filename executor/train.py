"""Train a plan on this rank, inside an initialised process group, and measure it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from executor.batches import Batches
from executor.checkpoints.keeper import Keeper
from executor.engine import Engine, Options
from executor.exhausted import telling_what_was_held
from executor.memory import allocator_peak, measure_memory, predicted_parts
from executor.operators import operator_share
from executor.parts import step_parts
from executor.report import Environment, PhaseReport, RankReport, RunReport, make_report
from executor.steps import Curve, Schedule, Stopped, Watcher, run_steps
from executor.timing import StepClock
from executor.trace import chrome_trace, save_trace
from executor.watched import StepSpans, gather_typical, typical_thread, typical_waits, watch_steps
from planner.plan import Plan

_UNCOMPILED = (
    "parts and memory are of steps whose blocks were not compiled: torch compiles nothing that is watched"
)


def train(
    plan: Plan,
    device: torch.device,
    options: Options,
    schedule: Schedule,
    watcher: Watcher,
    stop: Callable[[], bool] = lambda: False,
) -> RunReport | Stopped:
    """Every rank calls it and gets the answer; `stop` is asked after every step, on every rank.

    Raises:
        ExhaustedError: this rank's memory ran out; the error says which part held what.
        InputError: data or checkpoint do not go with the plan.
        RunError: the loss is no number, or a checkpoint could not be written; on every rank.
    """
    with telling_what_was_held(device) as held:
        engine = Engine(plan, device, options)
        held.append(engine)
        batches = Batches(
            plan.training, vocabulary=plan.model.vocab_size, seed=options.seed, data=schedule.data
        )
        keeper = Keeper(engine, schedule.saving, batches.name) if schedule.saving else None
        curve = run_steps(engine, batches, schedule, keeper, watcher, stop)
        if curve.stopped_at is not None:
            return Stopped(step=curve.stopped_at, saved=keeper.saved if keeper else None)
        return _measured(engine, batches, schedule, curve, watcher.notes)


def _measured(
    engine: Engine, batches: Batches, schedule: Schedule, curve: Curve, notes: list[str]
) -> RunReport:
    """What only further steps can tell, and everything put together."""
    plan, device, clock = engine.plan, engine.device, curve.clock
    place, replicas = engine.place.dp, plan.layout.dp
    last = schedule.warm_up + schedule.steps
    peak = allocator_peak(device)
    steps: list[StepSpans] = []
    parts: dict[str, float] = {}
    if schedule.waiting_steps:
        more = [batches.slice(last + index, place, replicas) for index in range(schedule.waiting_steps + 1)]
        steps = watch_steps(engine, more[:-1])
        parts = _parts_of(steps, operator_share(engine, *more[-1]), engine, schedule.trace_path)
    memory: dict[str, int] = {}
    if schedule.measure_memory:
        memory = measure_memory(engine, *batches.slice(last + schedule.waiting_steps + 1, place, replicas))
    pipeline_rank = engine.mesh["pp"].get_local_rank()
    mine = RankReport(
        rank=dist.get_rank(),
        pipeline_rank=pipeline_rank,
        wall_seconds=tuple(clock.wall_seconds),
        thread_seconds=tuple(sum(lap.thread for lap in step) for step in clock.steps),
        process_seconds=tuple(sum(lap.process for lap in step) for step in clock.steps),
        forward_backward=_phase(clock, steps, update=False),
        update=_phase(clock, steps, update=True),
        parts=parts,
        memory=memory,
        predicted_memory=predicted_parts(plan.prediction.rank_memory[pipeline_rank]),
        allocator_peak=peak,
    )
    ranks: list[RankReport] = [mine] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    return make_report(
        plan,
        ranks,
        losses=curve.losses,
        gradient_norms=curve.norms,
        first_step=curve.first_step,
        warm_up=curve.warm_up,
        seed=engine.options.seed,
        environment=_environment(device),
        notes=(*notes, *[_UNCOMPILED] * engine.options.compile),
        routers=curve.routers,
    )


def _parts_of(
    steps: list[StepSpans], share: float, engine: Engine, trace_path: Path | None
) -> dict[str, float]:
    """Where the typical one of the watched steps went on this rank; rank 0 writes its trace."""
    everyone = gather_typical(steps)
    shares = [share] * len(everyone)
    dist.all_gather_object(shares, share)
    if trace_path is not None and dist.get_rank() == 0:
        save_trace(chrome_trace(engine.plan, everyone), trace_path)
    parts = step_parts(everyone, dict(enumerate(shares)), on_cpu=engine.device.type != "cuda")
    return parts[dist.get_rank()]


def _phase(clock: StepClock, watched: list[StepSpans], *, update: bool) -> PhaseReport:
    laps = [step[int(update)] for step in clock.steps]
    return PhaseReport(
        wall_seconds=tuple(lap.wall for lap in laps),
        thread_seconds=tuple(lap.thread for lap in laps),
        waiting_seconds=typical_waits(watched, update=update),
        waiting_thread_seconds=typical_thread(watched, update=update),
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
