"""A pipeline stage that runs without its neighbours, in a process group that sends nothing.

What it would have been told of them it knows from the plan, and what would have come from them is noise.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import _utils as described

from planner.plan import Plan

Stage = TypeVar("Stage", bound=PipelineStage)

_SCALE = 0.02
"""Standard deviation of the noise: finite and small, as what trains is."""


def emulated_stage(stage: type[Stage], plan: Plan, dtype: torch.dtype) -> type[Stage]:
    """A subclass of this kind of stage that runs without its neighbours."""
    between = torch.empty(_shape_between(plan), dtype=dtype, device="meta")

    class EmulatedStage(stage):  # type: ignore[misc, valid-type]
        """Takes shapes from the plan, and noise for what neighbours would send."""

        def _recv_meta(self, src_stage: int) -> Any:
            """Shapes that a neighbour would send: of its outputs, or of the gradients of its inputs."""
            if src_stage < self.stage_index:
                activations = described.extract_tensor_metas((between.detach().requires_grad_(),))
                return described._StageForwardMeta(forward_metas=activations)  # type: ignore[arg-type]
            gradients = described.extract_tensor_metas((between,))
            return described._StageBackwardMeta(backward_metas=gradients)  # type: ignore[arg-type]

        def _send_meta(self, meta: Any, dst_stage: int) -> None:
            """Send nothing: nobody listens."""

        def _shape_inference(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
            """Both at once, as torch before 2.13 asks; stages of this rank hand their outputs on in `args`."""
            self.inputs_meta = tuple(one.to("meta") for one in args or (between,))
            with torch.no_grad():
                zeros = [torch.zeros_like(one, device=self.device) for one in self.inputs_meta]
                outputs = (self.submod(*zeros, **(kwargs or {})).to("meta"),)
            self._configure_outputs_meta(outputs)
            here = self.is_last or self.stage_index_to_group_rank[self.stage_index + 1] == self.group_rank
            return outputs if here else ()

        @torch.no_grad()
        def _create_noise(self, received: dict[int, tuple[Any, ...]]) -> None:
            buffers = [getattr(info, "buffer", None) for infos in received.values() for info in infos]
            for buffer in buffers:
                if isinstance(buffer, Tensor):
                    buffer.normal_(std=_SCALE)

        def _prepare_forward_infra(self, *arguments: Any, **options: Any) -> Any:
            """Buffers for activations, filled once for all steps."""
            answer = super()._prepare_forward_infra(*arguments, **options)
            self._create_noise(self.args_recv_info)
            return answer

        def _prepare_backward_infra(self, *arguments: Any, **options: Any) -> Any:
            """Buffers for gradients, likewise."""
            answer = super()._prepare_backward_infra(*arguments, **options)
            self._create_noise(self.grad_recv_info)
            return answer

    return EmulatedStage


def _shape_between(plan: Plan) -> tuple[int, int, int]:
    """(B, S, D) of one microbatch between two stages: this rank's tokens, its part of them with `sp`."""
    layout, training = plan.layout, plan.training
    parts = layout.cp * (layout.tp if layout.sp else 1)
    return layout.mbs, training.sequence_length // parts, plan.model.hidden_size
