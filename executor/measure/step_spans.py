"""Records every pass and every wait of this rank in a step, on a clock that all ranks start together.

All ranks leave a barrier, and that moment is zero on each of them: clocks of different hosts need not agree, and spans
of different ranks are as far off as ranks left it apart. Watching slows a step down a little.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch._C._profiler import _RecordFunctionFast
from torch.profiler import record_function

from cost_models.axes.offload.moves import Lane
from executor.mesh import Place
from executor.messages import gather_json
from executor.timing import WAITS, Carried, Mark, Pass, Wait, Waits, finish, lap_between, mark_on

if TYPE_CHECKING:
    from executor.engine.engine import Engine


class WorkSpan(NamedTuple):
    """One pass of one microbatch; seconds from the common start."""

    kind: str
    """The letter of the action table: F, B, I, W."""
    stage: int
    microbatch: int
    start: float
    end: float


class WaitSpan(NamedTuple):
    """One interval in which the rank waited for one of `WAITS`; seconds from the common start."""

    axis: str
    start: float
    end: float
    thread: float
    """CPU time that the training thread spent on it nevertheless."""


class CarriedSpan(NamedTuple):
    """One copy between device and host memory, or one update there; seconds from the common start."""

    lane: Lane
    block: int
    """-1: of no block in particular."""
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpans:
    """One recorded step of one rank; seconds from the common start."""

    rank: int
    place: Place
    work: tuple[WorkSpan, ...]
    waits: tuple[WaitSpan, ...]
    """The waits of both phases, in order."""
    carried: tuple[CarriedSpan, ...] = ()
    """Of a layout with blocks in host memory."""
    update_start: float
    """The end of forward and backward."""
    end: float
    forward_backward_thread: float
    """CPU time of the training thread in forward and backward, waits included."""
    update_thread: float
    """Likewise in the update."""

    def waits_in_phase(self, *, update: bool) -> list[WaitSpan]:
        """The waits in forward and backward, or those in the update."""
        return [wait for wait in self.waits if (wait.start >= self.update_start) == update]


def record_steps(engine: Engine, batches: Sequence[Sequence[Tensor]]) -> list[StepSpans]:
    """Train a step on each batch and return the recording of each; a profiler sees steps, passes and waits by name."""
    waits = Waits(engine.mesh, engine.device, engine.context_group, engine.experts)
    steps = []
    for number, batch in enumerate(batches):
        engine.passes.kept = []
        finish(engine.device)
        dist.barrier()
        origin = mark_on(engine.device)
        carried: list[Carried] = []
        engine.record(carried)
        with record_function(f"ProfilerStep#{number}"), waits.watching():
            engine.forward_backward(*batch)
            middle = mark_on(engine.device)
            with _RecordFunctionFast("optimizer step"):
                engine.update()
            end = mark_on(engine.device)
        engine.record(None)
        seen, engine.passes.kept = engine.passes.kept, None
        steps.append(_spans(engine.place, origin, middle, end, seen, waits.take(), carried))
    return steps


def typical_waits(steps: Sequence[StepSpans], *, update: bool) -> dict[str, float]:
    """Which of `WAITS` → median over the steps of the seconds waited in one phase; empty without steps."""
    if not steps:
        return {}
    each = [step.waits_in_phase(update=update) for step in steps]
    return {
        axis: statistics.median(
            sum(wait.end - wait.start for wait in waits if wait.axis == axis) for waits in each
        )
        for axis in WAITS
    }


def typical_thread(steps: Sequence[StepSpans], *, update: bool) -> float | None:
    """Median over the steps of the CPU time that the training thread spent in those waits; None without steps."""
    if not steps:
        return None
    return statistics.median(
        sum(wait.thread for wait in step.waits_in_phase(update=update)) for step in steps
    )


def gather_typical(steps: Sequence[StepSpans]) -> list[StepSpans]:
    """The recorded step of median length, of every rank of the job; every rank calls it."""
    everyone = [[_step_of(one) for one in rank] for rank in gather_json([asdict(step) for step in steps])]
    ends = [max(rank[index].end for rank in everyone) for index in range(len(steps))]
    typical = ends.index(statistics.median_low(ends))
    return [rank[typical] for rank in everyone]


def _step_of(told: dict[str, Any]) -> StepSpans:
    """The step that another rank sent as JSON."""
    work = tuple(WorkSpan(*one) for one in told["work"])
    waits = tuple(WaitSpan(*one) for one in told["waits"])
    carried = tuple(CarriedSpan(*one) for one in told["carried"])
    return StepSpans(
        **{**told, "place": Place(**told["place"]), "work": work, "waits": waits, "carried": carried}
    )


def _spans(
    place: Place,
    origin: Mark,
    middle: Mark,
    end: Mark,
    passes: Sequence[Pass],
    waits: Sequence[Wait],
    carried: Sequence[Carried],
) -> StepSpans:
    def when(mark: Mark) -> float:
        return lap_between(origin, mark).wall

    return StepSpans(
        rank=dist.get_rank(),
        place=place,
        work=tuple(
            WorkSpan(one.kind, one.stage, one.microbatch, when(one.start), when(one.end)) for one in passes
        ),
        waits=tuple(
            WaitSpan(one.axis, when(one.start), when(one.end), lap_between(one.start, one.end).thread)
            for one in waits
        ),
        carried=tuple(
            CarriedSpan(one.lane, one.block, max(0.0, when(one.start)), when(one.end)) for one in carried
        ),
        update_start=when(middle),
        end=when(end),
        forward_backward_thread=lap_between(origin, middle).thread,
        update_thread=lap_between(middle, end).thread,
    )
