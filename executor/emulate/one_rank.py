"""Runs one rank of a transformer's plan alone in this process: compute and memory are real, neighbours are not.

The process group is a fake one that sends nothing: gathers repeat what this rank has, sums keep its part, and what a
pipeline neighbour would send is noise. Operators, shapes, buffers and their lives are those of the real rank; time
spent on communication is the model's. Without values (`executor.emulate.stand_ins`) only memory is left, and no
device is needed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from pydantic import SerializerFunctionWrapHandler, model_serializer
from torch import Tensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE
from cost_models.axes.offload.channels import channel_seconds
from cost_models.errors import RunError
from cost_models.pipeline.pricing import estimate, price_ranks
from executor.axes.offload.reporting import DriveReport, HostReport
from executor.emulate.stand_ins import (
    NO_DEVICE,
    AnyEmulation,
    as_run_here,
    fake_process_group,
    require_rank,
    spread_evenly,
    without_values,
)
from executor.engine.engine import Engine
from executor.faults.failures import memory_failure
from executor.measure.memory import (
    OutOfMemoryError,
    allocator_peak,
    measure_memory,
    measure_tiers,
    out_of_memory_by_part,
)
from executor.measure.report import AllocatorPeak, predicted_parts
from executor.requirements import (
    as_planned,
    device_for,
    name_of,
    require_fp8_gemms,
    require_memory,
    require_torchao,
)
from executor.run_config import EngineOptions
from executor.timing import StepClock, compute_seconds
from executor.transformer.training import TransformerTraining, require_trainable
from planner.plan import LayoutText, Plan, Prediction

_WORK = {"forward_backward": ("compute", "recompute", "host"), "update": ("optimizer",)}
"""Phases of a step, and the parts of the predicted time in which this rank computes in each."""


_FIRST = (
    *("schema_version", "model", "layout", "rank", "pipeline_rank", "device", "torch"),
    *("memory", "predicted_memory", "memory_as_run", "allocator_peak"),
)
"""First fields of a report, in the order of its file."""
_OFFLOADED = ("host", "drive")
"""Fields that are in a report only if the layout offloads."""


class EmulationReport(AnyEmulation):
    """Report of one emulated rank of a transformer's plan; memory by part: weights, gradients, optimizer, rest."""

    layout: LayoutText
    pipeline_rank: int
    allocator_peak: AllocatorPeak | None = None
    """Peak of torch's allocator on a GPU; None on a CPU."""
    host: HostReport | None = None
    """Host memory, copies and CPU updates of offloaded blocks. None if all is on the device, or with `--fake`."""
    drive: DriveReport | None = None
    """Bytes, reads and writes of the drive; None if nothing is on a drive."""
    predicted: Prediction

    @model_serializer(mode="wrap")
    def _in_order(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Fields of the report in the order of its file."""
        fields: dict[str, Any] = write(self)
        order = [name for name in (*_FIRST, *fields) if name in fields]
        return {name: fields[name] for name in order if fields[name] is not None or name not in _OFFLOADED}

    @property
    def peak_bytes(self) -> int:
        """Sum of the measured memory of all parts, in bytes."""
        return sum(self.memory.values())

    @property
    def on_a_device(self) -> bool:
        """Whether a device computed; False with `--fake`."""
        return self.device != NO_DEVICE

    @property
    def step_seconds(self) -> float | None:
        """Predicted step seconds of the plan, with this rank's measured compute and updates in place of the predicted.

        Communication and waiting are as predicted. None without a device, or on a CPU in the place of a GPU.
        """
        if not self.seconds or not self.on_planned_device:
            return None
        extra_seconds = sum(self.compute_seconds.values()) - sum(self.predicted_seconds.values())
        return self.predicted.step_seconds + extra_seconds


def emulate(plan: Plan, rank: int, *, steps: int = 3, fake: bool = False) -> EmulationReport:
    """Run one rank of a plan alone, and report its memory by part and, on a device, its compute time, each
    predicted and emulated.

    Trains one step of warm-up, `steps` whose compute is timed and one whose storages are followed, on random tokens: on
    a GPU where the plan is for GPUs and there is one, else on one CPU thread. With `fake` nothing is computed, and
    memory is what the same operators on a CPU would hold.

    Raises:
        InputError: the plan cannot be trained, or has no such rank.
        HostError: the device has less memory than the plan predicts for the rank, or does not multiply as it says.
        RunError: the rank ran out of memory, or cannot be built as the plan says.
    """
    require_trainable(plan, byte_text=False)
    ranks = plan.layout.num_gpus
    require_rank(rank, ranks)
    stage = plan.layout.place_along("pp", rank)
    device = torch.device("cpu") if fake else device_for(plan.gpu)
    require_torchao(plan, "plan")
    if not fake:
        require_fp8_gemms(plan, "plan", on_gpu=device.type == "cuda")
        needs = sum(predicted_parts(plan.prediction.rank_memory[stage]).values())
        hint = "--fake measures its memory without a device"
        require_memory(f"rank {rank} (stage {stage})", needs, device, hint)
    try:
        with fake_process_group(rank, ranks), out_of_memory_by_part(device) as engines:
            if fake:
                memory, seconds, offloaded = _sizes(plan, device), {}, {}
            else:
                engine = Engine(plan, device, EngineOptions(compile=plan.stack.compiled))
                engines.append(engine)
                seconds = _timed(engine, steps)
                memory, on_host = measure_tiers(engine, *tokens_of(engine))
                offloaded = engine.report(on_host)
    except OutOfMemoryError as error:
        of_rank = TransformerTraining().of_rank(plan, rank)
        raise memory_failure({"rank": rank, "allocated": error.parts, **of_rank}) from error
    except (AssertionError, RuntimeError, ValueError) as error:
        raise RunError(f"rank {rank} cannot be emulated: {error}") from error
    finally:
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # it remembers meshes whose groups are gone
    return EmulationReport(
        model=plan.model.name,
        layout=plan.layout,
        rank=rank,
        pipeline_rank=stage,
        device=NO_DEVICE if fake else name_of(device),
        torch=str(torch.__version__),
        memory=memory,
        predicted_memory=predicted_parts(plan.prediction.rank_memory[stage]),
        memory_as_run=_as_run(plan, stage, device),
        allocator_peak=allocator_peak(device),
        seconds=seconds,
        on_planned_device=not fake and as_planned(device, plan.gpu),
        predicted_seconds=_predicted(plan, stage, device),
        predicted=plan.prediction,
        **offloaded,
    )


def _predicted(plan: Plan, stage: int, device: torch.device) -> dict[str, float]:
    """Predicted seconds of each phase that is measured: the rank's compute, and its work for offloaded blocks.

    Beside its compute that is what it does for offloaded blocks: on a CPU the training thread makes the copies, on a
    GPU the update waits for what outlasts the passes.
    """
    ranks = price_ranks(plan.question, plan.layout)
    parts = {part: float(seconds[stage]) for part, seconds in ranks.seconds.items()}
    seconds = {phase: sum(parts[name] for name in names) for phase, names in _WORK.items()}
    if plan.layout.offload == NOWHERE:
        return seconds
    if device.type != "cpu":
        return seconds | {"update": seconds["update"] + parts["offload"]}
    channels = channel_seconds(plan.question, LayoutColumns.of([plan.layout]))
    in_passes, afterwards = channels.down + channels.up, channels.back + channels.park
    return {
        "forward_backward": seconds["forward_backward"] + float(in_passes[0]),
        "update": seconds["update"] + float(afterwards[0]),
    }


def _as_run(plan: Plan, stage: int, device: torch.device) -> dict[str, float]:
    """Memory by part that the cost model predicts for a rank of this executor in eager mode on this device."""
    question = plan.question
    here = as_run_here(question.cluster, question.stack, device)
    priced = estimate(replace(question, **here), plan.layout)
    return predicted_parts(dict(priced.rank_memory[stage]))


def _timed(engine: Engine, steps: int) -> dict[str, tuple[float, ...]]:
    """Measured seconds of each phase in each step, after one warm-up step."""
    clock = StepClock(engine.device)
    tokens = tokens_of(engine)
    for step in range(1 + steps):
        if step == 1:
            clock.forget()
            engine.forget()
        clock.time(lambda: engine.forward_backward(*tokens), engine.update)
        engine.end_step()
    laps = [[compute_seconds(lap, engine.device) for lap in phases] for phases in clock.steps]
    return dict(zip(_WORK, map(tuple, zip(*laps, strict=True)), strict=True))


def _sizes(plan: Plan, device: torch.device) -> dict[str, int]:
    """Bytes of each part of memory in a second step, when optimizer states exist."""
    with without_values():
        engine = Engine(plan, device, EngineOptions())
        spread_evenly(engine.parts)
        tokens = tokens_of(engine)
        engine.step(*tokens)
        return measure_memory(engine, *tokens)


def tokens_of(engine: Engine) -> tuple[Tensor, ...]:
    """Random inputs and targets of this rank's sequences of a step, (B, S), after images if the model sees any."""
    lengths = engine.plan.training.sequences
    draw = partial(torch.randint, 0, engine.plan.model.vocab_size)
    tokens = tuple(draw((engine.share.sequences, length)) for length in (*lengths, lengths[-1]))
    if (tower := engine.plan.model.tower) is None:
        return tokens
    images = engine.share.sequences, engine.plan.training.images or 1
    return torch.randn(*images, tower.channels, tower.image, tower.image), *tokens
