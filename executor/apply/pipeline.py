"""Pipeline parallelism: `torch.distributed.pipelining` runs the schedule that the planner costed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from executor.apply.local import local
from executor.models.transformer import Transformer
from planner.plan import Plan

Schedule = ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B
Loss = Callable[[Tensor, Tensor], Tensor]

_SINGLE: dict[str, type[ScheduleGPipe] | type[Schedule1F1B]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class PipelineStep:
    """One step of a schedule on this rank; hides which ends of the pipeline the rank holds."""

    def __init__(self, schedule: Schedule, *, first: bool, last: bool) -> None:
        self.schedule = schedule
        self.first, self.last = first, last

    def step(self, inputs_BS: Tensor, targets_BS: Tensor) -> float:
        """Forward and backward of every microbatch; their losses added up on the last stage, else 0."""
        losses: list[Tensor] = []
        inputs = (inputs_BS,) if self.first else ()
        if self.last:
            self.schedule.step(*inputs, target=targets_BS, losses=losses, return_outputs=False)
            return float(torch.stack([local(value.detach()) for value in losses]).sum())
        self.schedule.step(*inputs, return_outputs=False)
        return 0.0


def make_pipeline(
    plan: Plan,
    parts: Sequence[Transformer],
    stages: Sequence[int],
    mesh: DeviceMesh,
    device: torch.device,
    microbatches: int,
    loss: Loss,
) -> PipelineStep:
    """The plan's schedule over this rank's virtual stages."""
    layout = plan.layout
    group = mesh["pp"].get_group()
    made = [
        PipelineStage(part, stage, layout.num_stages, device, group=group)
        for part, stage in zip(parts, stages, strict=True)
    ]
    if layout.schedule == "interleaved":
        schedule: Schedule = ScheduleInterleaved1F1B([*made], microbatches, loss_fn=loss, scale_grads=False)
    else:
        schedule = _SINGLE[layout.schedule](made[0], microbatches, loss_fn=loss, scale_grads=False)
    return PipelineStep(schedule, first=0 in stages, last=layout.num_stages - 1 in stages)
