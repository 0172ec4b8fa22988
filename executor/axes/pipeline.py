"""Pipeline parallelism: `torch.distributed.pipelining` runs the schedule that the planner priced.

A stage is given a tuple of tensors and hands one on; the first is given what the data have. Gradients of what several
stages hold, as the first and the last do a tied embedding, are summed after the backward pass. In a process group that
sends nothing a stage runs without its neighbours: shapes come from the plan, activations are noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import _utils as described
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _Action,
    _PipelineScheduleRuntime,
)

from cost_models.axes.layout import Layout
from cost_models.schedules.actions import ActionTable
from cost_models.schedules.registry import build, schedule_named
from cost_models.specs.kinds import frozen_parts
from executor.axes.axis import Axis, Gradient, Rank
from executor.axes.overlap import posts_ahead
from executor.mesh import local, make_groups, rank_places, with_values
from executor.models.ends import held_by_several
from planner.plan import Plan

Loss = Callable[[Tensor, Tensor], Tensor]


class _Stage(PipelineStage):
    """Pipeline stage that records which passes it runs and when. It also collects gradients after the weight half of a
    backward pass, in which autograd calls no parameter hooks.
    """

    def __init__(self, rank: Rank, stage: int, take_gradients: Callable[[], None]) -> None:
        part, group = rank.parts[rank.stages.index(stage)], rank.mesh["pp"].get_group()
        super().__init__(part, stage, rank.layout.num_stages, rank.device, group=group)
        self._take_gradients = take_gradients
        self._plan, self._dtype, self._passes = rank.plan, rank.dtype, rank.passes

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """First messages to neighbour stages on other ranks. In a V two stages may be on one rank, and gloo cannot send
        to itself.
        """
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
        """Compute the weight gradients of one microbatch and collect them."""
        with self._passes.run("W", self.stage_index, bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward=last_backward)
            self._take_gradients()


class PipelineStep:
    """One training step of the plan's pipeline schedule over this rank's virtual stages."""

    def __init__(self, rank: Rank, loss: Loss, take: Callable[[], None], *, loss_inside: bool) -> None:
        """With `loss_inside` the last stage gets the targets as well, and `loss` gets its output. `take` collects
        gradients out of `.grad`.
        """
        layout, microbatches = rank.layout, rank.share.microbatches
        self._first, self._last = 0 in rank.stages, layout.num_stages - 1 in rank.stages
        self._loss_inside = loss_inside
        self._joins = any(part.embedding is not None for part in rank.parts)
        """Whether a pipeline stage of this rank joins images and text."""
        fake = dist.get_backend(rank.mesh["pp"].get_group()) == "fake"
        stages = [(EmulatedStage if fake else _Stage)(rank, stage, take) for stage in rank.stages]
        engine = getattr(pipelining, schedule_named(layout.schedule).engine)
        options: dict[str, Any] = {"loss_fn": loss, "scale_grads": False}
        self._schedule: PipelineScheduleMulti | PipelineScheduleSingle
        if issubclass(engine, PipelineScheduleMulti):
            self._schedule = engine([*stages], microbatches, **options)
        elif posts_ahead(layout):
            table = build(layout.schedule, layout.pp, layout.vpp, microbatches)
            self._schedule = _posting_ahead(stages, table, **options)
        else:
            self._schedule = engine(stages[0], microbatches, **options)

    def step(self, inputs: Sequence[Tensor], targets_BS: Tensor, text_inputs: Mapping[str, Tensor]) -> float:
        """Run forward and backward passes of every microbatch; returns their summed losses on the last stage, else 0.

        `text_inputs` go, by name, to the stage that joins images and text.
        """
        losses: list[Tensor] = []
        inside: dict[str, Any] = {**text_inputs} if self._joins else {}
        inputs = inputs if self._first else ()
        if self._last:
            inside |= {"targets_BS": targets_BS} if self._loss_inside else {}
            self._schedule.step(*inputs, target=targets_BS, losses=losses, return_outputs=False, **inside)
            return float(torch.stack([local(value.detach()) for value in losses]).sum())
        self._schedule.step(*inputs, return_outputs=False, **inside)
        return 0.0


def _posting_ahead(stages: Sequence[_Stage], table: ActionTable, **how: Any) -> _PipelineScheduleRuntime:
    """A pipeline schedule with one stage for each rank, which posts sends and receives before its next action.

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


_SCALE = 0.02
"""Standard deviation of the noise: finite and small, like the activations of a model in training."""


class EmulatedStage(_Stage):
    """Pipeline stage without neighbours: shapes come from the plan, and noise in place of their messages."""

    def _recv_meta(self, src_stage: int) -> Any:
        """Shapes that a neighbour stage would send: of its outputs, or of gradients of its inputs."""
        boundary_tensors = stage_inputs(self._plan, max(src_stage, self.stage_index), self._dtype)
        if src_stage < self.stage_index:
            activations = described.extract_tensor_metas(boundary_tensors)
            return described._StageForwardMeta(forward_metas=activations)  # type: ignore[arg-type]
        gradient_tensors = tuple(one.detach() if one.requires_grad else None for one in boundary_tensors)
        gradients = described.extract_tensor_metas(gradient_tensors, allow_none=True)
        return described._StageBackwardMeta(backward_metas=gradients)  # type: ignore[arg-type]

    def _send_meta(self, meta: Any, dst_stage: int) -> None:
        """Send nothing: there is no receiver."""

    def _shape_inference(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Infer shapes of inputs and outputs at once, as torch before 2.13 does. Stages of this rank pass outputs
        on in `args`.
        """
        inputs = args or stage_inputs(self._plan, self.stage_index, self._dtype)
        self.inputs_meta = tuple(one.detach().to("meta") for one in inputs)
        with torch.no_grad():
            zeros = [torch.zeros_like(one, device=self.device) for one in self.inputs_meta]
            answer = self.submod(*zeros, **(kwargs or {}))
        outputs = tuple(one.to("meta") for one in (answer if isinstance(answer, tuple) else (answer,)))
        self._configure_outputs_meta(outputs)  # type: ignore[attr-defined]
        returns = self.is_last or self.stage_index_to_group_rank[self.stage_index + 1] == self.group_rank
        return outputs if returns else ()

    @torch.no_grad()
    def _create_noise(self, received: dict[int, tuple[Any, ...]]) -> None:
        """Fill receive buffers with noise."""
        for info in chain.from_iterable(received.values()):
            if isinstance(buffer := getattr(info, "buffer", None), Tensor):
                buffer.normal_(std=_SCALE)

    def _prepare_forward_infra(self, *arguments: Any, **options: Any) -> Any:
        """Allocate buffers for received activations, filled with noise once for all steps."""
        answer = super()._prepare_forward_infra(*arguments, **options)
        self._create_noise(self.args_recv_info)
        return answer

    def _prepare_backward_infra(self, *arguments: Any, **options: Any) -> Any:
        """Allocate buffers for received gradients, filled with noise once for all steps."""
        answer = super()._prepare_backward_infra(*arguments, **options)
        self._create_noise(self.grad_recv_info)
        return answer


def stage_inputs(plan: Plan, into: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Empty tensors of the shapes that pipeline stage `into` receives for one microbatch. They are (B, S, D) for each
    sequence of a sample, with this rank's tokens, or with `sp` its part of them. Tensors whose gradient is sent back
    require one.
    """
    layout, training, model = plan.layout, plan.training, plan.model
    parts, first = layout.cp * (layout.tp if layout.sp else 1), sum(layout.layers[:into])
    needs_gradient = frozen_parts(model, training).trained_before(first)
    empty = partial(torch.empty, dtype=dtype, device="meta", requires_grad=needs_gradient)
    if model.tower is not None and first <= model.tower.layers:
        images = layout.mbs * (training.images or 1)
        return (empty(images, model.tower.tokens, model.tower.hidden_size),)
    return tuple(empty(layout.mbs, length // parts, model.hidden_size) for length in training.sequences)


class PipelineAxis(Axis):
    """Pipeline parallelism: sums gradients of parameters that several stages hold, such as a tied matrix."""

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        """Whether a layout has more than one pipeline rank."""
        return layout.pp > 1

    def parts_made(self) -> None:
        """Make the process groups of the stages that hold the same parameters."""
        stages_by_name = held_by_several(self.rank.plan.model, self.rank.layout.layers)
        self.groups = {name: self._meet(stages) for name, stages in stages_by_name.items()}

    def join(self, gradient: Gradient) -> None:
        """Sum gradients of parameters that several stages hold, over the copies on this rank and on others."""
        for name, copies in self.rank.copies.items():
            gradients = [grad for copy in copies.values() if (grad := gradient(copy)) is not None]
            for copy_gradient in gradients[1:]:  # of several stages on one rank, as in a V
                gradients[0].add_(copy_gradient)
            if gradients and (group := self.groups[name]) is not None:
                dist.all_reduce(gradients[0], group=group)
            for copy_gradient in gradients[1:]:
                copy_gradient.copy_(gradients[0])

    @with_values
    def _meet(self, stages: Sequence[int]) -> dist.ProcessGroup | None:
        """Group of this rank and its counterparts on the pipeline ranks with these stages; None if it is alone."""
        layout = self.rank.layout
        of_rank = schedule_named(layout.schedule).stages_of_rank(layout.pp, layout.vpp)
        holding = [rank for rank in range(layout.pp) if {*map(int, of_rank[rank])} & {*stages}]
        if len(holding) == 1:
            return None
        places = rank_places(layout)
        group = make_groups(torch.stack([places[rank].flatten() for rank in holding], dim=1))
        return group if dist.get_world_size(group) > 1 else None
