"""A pipeline stage whose neighbours never answer: the only one of its plan, in a process group that sends nothing.

What it would have been told of them it knows from the plan, and what would have come from them is noise.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import _utils as described

from cost_models.errors import RunError
from planner.plan import Plan

Stage = TypeVar("Stage", bound=PipelineStage)

_SCALE = 0.02
"""Standard deviation of the noise: finite and small, as what trains is."""


def alone(stage: type[Stage], plan: Plan, dtype: torch.dtype) -> type[Stage]:
    """This kind of stage, alone.

    Raises:
        RunError: this release of PyTorch has its stages agree in another way.
    """
    if not hasattr(PipelineStage, "_recv_meta"):
        raise RunError(
            f"pipeline stages cannot be emulated with torch {torch.__version__}", hint="torch 2.13 can"
        )
    between = torch.empty(_shape_between(plan), dtype=dtype, device="meta")

    class Alone(stage):  # type: ignore[misc, valid-type]
        """Answers its own questions."""

        def _recv_meta(self, src_stage: int) -> Any:
            """What the neighbour would say: its outputs, or the gradients of its inputs."""
            if src_stage < self.stage_index:
                activations = described.extract_tensor_metas((between.detach().requires_grad_(),))
                return described._StageForwardMeta(forward_metas=activations)  # type: ignore[arg-type]
            gradients = described.extract_tensor_metas((between,))
            return described._StageBackwardMeta(backward_metas=gradients)  # type: ignore[arg-type]

        def _send_meta(self, meta: Any, dst_stage: int) -> None:
            """To nobody."""

        def _create_noise(self, received: dict[int, tuple[Any, ...]]) -> None:
            buffers = [info.buffer for infos in received.values() for info in infos]
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

    return Alone


def _shape_between(plan: Plan) -> tuple[int, int, int]:
    """(B, S, D) of one microbatch between two stages: this rank's tokens, its part of them with `sp`."""
    layout, training = plan.layout, plan.training
    parts = layout.cp * (layout.tp if layout.sp else 1)
    return layout.mbs, training.sequence_length // parts, plan.model.hidden_size
