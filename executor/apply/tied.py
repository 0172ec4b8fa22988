"""Tied embeddings across pipeline stages: the gradients of the two copies, on the first and the last stage, add up."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from cost_models.axes.layout import Layout
from cost_models.schedules import V_SHAPED
from executor.mesh import rank_places, with_values
from executor.models.transformer import Transformer


class TiedGradients:
    """Sums the gradients of the two copies of the tied matrix; every rank of the job must construct it."""

    def __init__(self, layout: Layout, mesh: DeviceMesh, parts: list[Transformer], *, tied: bool) -> None:
        self.group: dist.ProcessGroup | None = None
        self.copies: list[Tensor] = []
        if not tied or layout.pp == 1:
            return
        if layout.schedule not in V_SHAPED:  # in a V one rank holds both
            self._meet(layout)
        for part in parts:
            if part.embedding is not None:
                self.copies.append(part.embedding.tokens.weight)
            if part.head is not None:
                self.copies.append(part.head.weight)

    def add_up(self, gradient: Callable[[Tensor], Tensor | None]) -> None:
        """Call after the backward pass, before the optimizer; `gradient` finds what a parameter has accumulated."""
        mine = [found for copy in self.copies if (found := gradient(copy)) is not None]
        if self.group is not None:
            for one in mine:
                dist.all_reduce(one, group=self.group)
        elif len(mine) == 2:
            mine[0].add_(mine[1])
            mine[1].copy_(mine[0])

    @with_values
    def _meet(self, layout: Layout) -> None:
        """A group of each place on the first pipeline rank with the same place on the last."""
        rank, places = dist.get_rank(), rank_places(layout)
        ends = torch.stack([places[0].flatten(), places[-1].flatten()], dim=1)
        for members in ends.tolist():  # creating a group is collective, so all ranks create all of them
            group = dist.new_group(members)
            if rank in members:
                self.group = group
