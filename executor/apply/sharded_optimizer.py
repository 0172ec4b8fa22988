"""ZeRO-1: gradients scattered, each data-parallel rank updates its share of the parameters, updates gathered.

The rank's parameters form one flat fp32 buffer, padded to a multiple of the data-parallel size; the optimizer sees only
the rank's slice of it. Rajbhandari et al. 2020, stage 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from executor.apply.local import local


class ShardedOptimizer:
    """Drop-in for an optimizer over `parameters`, sharded over a process group."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self.parameters = list(parameters)
        self.group = group
        self.ranks = dist.get_world_size(group)
        size = sum(local(parameter).numel() for parameter in self.parameters)
        self.shard_size = -(-size // self.ranks)
        self.padding = self.shard_size * self.ranks - size
        start = dist.get_rank(group) * self.shard_size
        master = self._flat([local(parameter).detach() for parameter in self.parameters])
        self.shard = nn.Parameter(master[start : start + self.shard_size].clone())
        self.inner = make([self.shard])

    def reduce_gradients(self) -> None:
        """Average the gradients over the group; this rank keeps its shard."""
        flat = self._flat([_gradient(parameter) for parameter in self.parameters])
        self.shard.grad = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(self.shard.grad, flat, op=dist.ReduceOp.SUM, group=self.group)
        self.shard.grad /= self.ranks
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Update the shard and gather everyone's."""
        self.inner.step()
        flat = self.shard.new_empty(self.shard_size * self.ranks)
        dist.all_gather_into_tensor(flat, self.shard.detach(), group=self.group)
        start = 0
        with torch.no_grad():
            for parameter in self.parameters:
                mine = local(parameter)
                mine.copy_(flat[start : start + mine.numel()].view_as(mine))
                start += mine.numel()

    def shard_gradients(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Views of the shard's gradient, one for each parameter that reaches into it."""
        assert self.shard.grad is not None
        first = dist.get_rank(self.group) * self.shard_size
        views: list[tuple[nn.Parameter, Tensor]] = []
        start = -first
        for parameter in self.parameters:
            stop = start + local(parameter).numel()
            if stop > 0 and start < self.shard_size:
                views.append((parameter, self.shard.grad[max(start, 0) : stop]))
            start = stop
        return views

    def zero_grad(self) -> None:
        """Forget the shard's gradient; the parameters' were freed when they were reduced."""
        self.shard.grad = None

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        pieces = [tensor.reshape(-1).float() for tensor in tensors]
        if self.padding:
            pieces.append(pieces[0].new_zeros(self.padding))
        return torch.cat(pieces)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(local(parameter))
    return local(parameter.grad)
