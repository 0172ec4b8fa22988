"""Train a transformer's plan on this rank, inside an initialised process group, and measure it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload.channels import channel_seconds
from cost_models.axes.offload.traffic import drive_step_bytes
from cost_models.defaults import OWN_COMPILED, OWN_STACK
from executor.checkpoints.checkpointer import Checkpointer
from executor.checkpoints.transformers import TransformerState
from executor.data.batches import Batches
from executor.engine.engine import Engine
from executor.measure.here import environment_of
from executor.measure.memory import allocator_peak, held_on_drive, out_of_memory_by_part, predicted_parts
from executor.measure.report import (
    AllocatorPeak,
    DriveReport,
    HostReport,
    PhaseReport,
    RankReport,
    RunReport,
    make_report,
)
from executor.measure.step_spans import StepSpans, typical_thread, typical_waits
from executor.messages import gather_json
from executor.run_config import RunConfig
from executor.steps import Curve, Stopped, Watcher, kept_report, run_steps
from executor.timing import StepClock
from executor.transformer.diagnosis import LEFT_OUT, Diagnosis, run_diagnostic_steps
from planner.plan import Plan

_UNCOMPILED = (
    "parts and memory are of steps whose blocks were not compiled: torch compiles nothing that is watched"
)


def train(
    plan: Plan,
    device: torch.device,
    config: RunConfig,
    watcher: Watcher,
    stop: Callable[[], bool] = lambda: False,
) -> RunReport | Stopped:
    """Train and measure a plan; every rank calls it and gets the answer.

    Every rank asks `stop` after each step. After the last one stopping costs only what diagnostic steps would find.

    Raises:
        OutOfMemoryError: this rank's memory ran out; the error says which part held what.
        InputError: data or checkpoint do not go with the plan.
        RunError: the loss is no number, or a checkpoint could not be written; on every rank. Or a step after the last
            one failed on this of several ranks, and the watcher keeps the report of what came before.
    """
    if (kept := kept_report(watcher)) is not None:
        assert isinstance(kept, RunReport)
        return kept
    with out_of_memory_by_part(device) as held:
        engine = Engine(plan, device, config.engine)
        held.append(engine)
        batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=config.seed, data=config.data)
        checkpointer = (
            Checkpointer(TransformerState(engine), config.saving, batches.name) if config.saving else None
        )
        curve = run_steps(engine, batches, config, checkpointer, watcher, stop)
        if curve.stopped_at is not None:
            return Stopped(step=curve.stopped_at, saved=checkpointer.saved if checkpointer else None)
        peak = allocator_peak(device)

        def keep(so_far: Diagnosis) -> None:
            report = _report(engine, curve, peak, so_far, watcher.notes)
            if dist.get_rank() == 0:
                watcher.keep(report)

        keep(Diagnosis(notes=(LEFT_OUT,)))
        diagnosis = run_diagnostic_steps(engine, batches, config, keep, stop)
        if dist.get_rank() == 0:
            for note in diagnosis.notes:
                watcher.note(note)
        return _report(engine, curve, peak, replace(diagnosis, notes=()), watcher.notes)


def _report(
    engine: Engine, curve: Curve, peak: AllocatorPeak | None, diagnosis: Diagnosis, notes: Sequence[str]
) -> RunReport:
    """The report of all ranks; `peak` is of the measured steps."""
    plan, clock, steps = engine.plan, curve.clock, diagnosis.steps
    pipeline_rank = engine.mesh["pp"].get_local_rank()
    mine = RankReport(
        rank=dist.get_rank(),
        pipeline_rank=pipeline_rank,
        wall_seconds=tuple(clock.wall_seconds),
        thread_seconds=tuple(sum(lap.thread for lap in step) for step in clock.steps),
        process_seconds=tuple(sum(lap.process for lap in step) for step in clock.steps),
        forward_backward=_phase(clock, steps, update=False),
        update=_phase(clock, steps, update=True),
        parts=dict(diagnosis.parts),
        memory=dict(diagnosis.memory),
        predicted_memory=predicted_parts(plan.prediction.rank_memory[pipeline_rank]),
        allocator_peak=peak,
        host=_host(plan, curve, diagnosis.host_bytes) if engine.offloading is not None else None,
        drive=_drive(engine, curve),
    )
    ranks = [RankReport.model_validate_json(told) for told in gather_json(mine.model_dump_json())]
    return make_report(
        plan,
        ranks,
        losses=curve.losses,
        gradient_norms=curve.norms,
        first_step=curve.first_step,
        warm_up=curve.warm_up,
        seed=engine.options.seed,
        environment=environment_of(engine.device),
        stack=_stack(engine),
        notes=(*notes, *diagnosis.notes, *[_UNCOMPILED] * engine.options.compile),
        routers=curve.routers,
    )


def _host(plan: Plan, curve: Curve, peak_bytes: int) -> HostReport:
    cluster, columns = plan.question.cluster, LayoutColumns.of([plan.layout])
    ranks = min(plan.layout.num_gpus, cluster.gpus_per_node)
    channels = channel_seconds(plan.question, columns)
    return HostReport(
        peak_bytes=peak_bytes,
        predicted_bytes=(plan.prediction.host_bytes or 0.0) / ranks,
        down_bytes=tuple(step.down_bytes for step in curve.host),
        up_bytes=tuple(step.up_bytes for step in curve.host),
        copy_seconds=tuple(step.copy_seconds for step in curve.host),
        update_seconds=tuple(step.update_seconds for step in curve.host),
        predicted_copy_seconds=float(channels.copies[0]),
        predicted_update_seconds=float(channels.update[0]),
    )


def _drive(engine: Engine, curve: Curve) -> DriveReport | None:
    plan = engine.plan
    if not plan.layout.offload.drive:
        return None
    columns = LayoutColumns.of([plan.layout])
    read, written = drive_step_bytes(plan.question, columns)
    channels = channel_seconds(plan.question, columns)
    ranks = min(plan.layout.num_gpus, plan.question.cluster.gpus_per_node)
    return DriveReport(
        held_bytes=held_on_drive(engine),
        predicted_bytes=(plan.prediction.drive_bytes or 0.0) / ranks,
        read_bytes=tuple(step.drive_read_bytes for step in curve.host),
        written_bytes=tuple(step.drive_written_bytes for step in curve.host),
        seconds=tuple(step.drive_seconds for step in curve.host),
        predicted_read_bytes=float(read[0]),
        predicted_written_bytes=float(written[0]),
        predicted_seconds=float((channels.read + channels.write)[0]),
    )


def _stack(engine: Engine) -> str:
    return OWN_COMPILED if engine.options.compile else OWN_STACK


def _phase(clock: StepClock, watched: Sequence[StepSpans], *, update: bool) -> PhaseReport:
    laps = [step[int(update)] for step in clock.steps]
    return PhaseReport(
        wall_seconds=tuple(lap.wall for lap in laps),
        thread_seconds=tuple(lap.thread for lap in laps),
        waiting_seconds=typical_waits(watched, update=update),
        waiting_thread_seconds=typical_thread(watched, update=update),
    )
