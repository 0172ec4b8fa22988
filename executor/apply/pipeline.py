"""Pipeline parallelism: `torch.distributed.pipelining` runs the schedule that the planner costed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _Action,
    _PipelineScheduleRuntime,
)

from cost_models.schedules import ActionTable, build, schedule_named
from executor.apply.emulated_stage import emulated_stage
from executor.apply.local import local
from executor.models.transformer import Transformer
from executor.passes import Passes
from planner.plan import Plan

Loss = Callable[[Tensor, Tensor], Tensor]


class _Stage(PipelineStage):
    """Records what it runs when, and when the weight half of a backward pass has run: autograd calls no hooks of the
    parameters then."""

    def __init__(
        self,
        part: Transformer,
        stage: int,
        stages: int,
        device: torch.device,
        group: dist.ProcessGroup,
        take_gradients: Callable[[], None],
        passes: Passes,
    ) -> None:
        super().__init__(part, stage, stages, device, group=group)
        self._take_gradients = take_gradients
        self._passes = passes

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Greetings to other ranks alone: neighbours in a V share one, and over gloo none can greet itself."""
        return [one for one in super()._get_init_p2p_neighbors_ops() if one.group_peer != self.group_rank]

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """Run the forward pass of one microbatch."""
        with self._passes.run("F", self.stage_index, fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *arguments, **options)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> Any:
        """Run the backward pass of one microbatch, or its dgrad half."""
        with self._passes.run("B" if full_backward else "I", self.stage_index, bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Gradients of one microbatch's weights, then away with them."""
        with self._passes.run("W", self.stage_index, bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward=last_backward)
            self._take_gradients()


class PipelineStep:
    """One step of a schedule on this rank; hides which ends of the pipeline the rank holds."""

    def __init__(
        self,
        schedule: PipelineScheduleMulti | PipelineScheduleSingle,
        *,
        first: bool,
        last: bool,
        loss_inside: bool,
    ) -> None:
        self.schedule = schedule
        self.first, self.last = first, last
        self.loss_inside = loss_inside

    def step(self, inputs_BS: Tensor, targets_BS: Tensor) -> float:
        """Forward and backward of every microbatch; their losses added up on the last stage, else 0."""
        losses: list[Tensor] = []
        inputs = (inputs_BS,) if self.first else ()
        if self.last:
            inside: dict[str, Any] = {"targets_BS": targets_BS} if self.loss_inside else {}
            self.schedule.step(*inputs, target=targets_BS, losses=losses, return_outputs=False, **inside)
            return float(torch.stack([local(value.detach()) for value in losses]).sum())
        self.schedule.step(*inputs, return_outputs=False)
        return 0.0


def make_pipeline(
    plan: Plan,
    parts: Sequence[Transformer],
    stages: Sequence[int],
    mesh: DeviceMesh,
    device: torch.device,
    dtype: torch.dtype,
    microbatches: int,
    loss: Loss,
    loss_inside: bool,
    take_gradients: Callable[[], None],
    passes: Passes,
) -> PipelineStep:
    """The plan's schedule over this rank's virtual stages, between which activations of `dtype` go.

    With `loss_inside` the last stage is given the targets too, and its answer, made of them, is what `loss` is given.
    `take_gradients` collects what is in `.grad`, and `passes` is told of every pass.
    """
    layout = plan.layout
    group = mesh["pp"].get_group()
    kind = emulated_stage(_Stage, plan, dtype) if dist.get_backend(group) == "fake" else _Stage
    made = [
        kind(part, stage, layout.num_stages, device, group, take_gradients, passes)
        for part, stage in zip(parts, stages, strict=True)
    ]
    engine = getattr(pipelining, schedule_named(layout.schedule).engine)
    how: dict[str, Any] = {"loss_fn": loss, "scale_grads": False}
    schedule: PipelineScheduleMulti | PipelineScheduleSingle
    if issubclass(engine, PipelineScheduleMulti):
        schedule = engine([*made], microbatches, **how)
    elif "pp" in (layout.overlap or ()):
        schedule = _posting_ahead(made, build(layout.schedule, layout.pp, layout.vpp, microbatches), **how)
    else:
        schedule = engine(made[0], microbatches, **how)
    first, last = 0 in stages, layout.num_stages - 1 in stages
    return PipelineStep(schedule, first=first, last=last, loss_inside=loss_inside)


def _posting_ahead(
    stages: Sequence[PipelineStage], table: ActionTable, **how: Any
) -> _PipelineScheduleRuntime:
    """A schedule of one stage a rank whose sends and receives are posted before the action that comes next.

    torch runs these by loops that wait for what they send and for what they are sent at once. All others it runs off
    tables, where only what an action needs is waited for; so does this.
    """
    schedule = _PipelineScheduleRuntime([*stages], table.microbatches, **how)  # type: ignore[no-untyped-call]
    actions: dict[int, list[_Action | None]] = {
        rank: [_Action.from_str(f"{one.stage}{one.kind}{one.microbatch}") for one in table.actions(rank)]
        for rank in range(table.pp)
    }
    schedule._prepare_schedule_with_comms(actions)
    return schedule
