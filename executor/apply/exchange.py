"""What ranks that share a sequence send one another: several tensors in one message, forward and backward alike.

Shape legend: c ranks, B batch, H heads, S tokens of one rank, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(slots=True)
class Coming:
    """Tensors on their way to this rank."""

    message: Tensor
    work: dist.Work
    sent: Tensor
    """Must live until it has gone."""
    shapes: list[torch.Size]

    def wait(self) -> tuple[Tensor, ...]:
        """What came; shaped as what was sent."""
        self.work.wait()
        return _unpacked(self.message, self.shapes)


def pass_on(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> Coming:
    """Send to the next rank of the ring what the one before sends here; returns at once."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    sent = _packed(tensors)
    message = torch.empty_like(sent)
    there, here = [0] * ranks, [0] * ranks
    there[(rank + 1) % ranks] = here[(rank - 1) % ranks] = sent.numel()
    work = dist.all_to_all_single(message, sent, here, there, group=group, async_op=True)
    assert work is not None
    return Coming(message, work, sent, [one.shape for one in tensors])


def gather(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """(…) of each rank → (c, …) of all."""
    ranks = dist.get_world_size(group)
    mine = _packed(tensors)
    message = mine.new_empty(ranks * mine.numel())
    dist.all_gather_into_tensor(message, mine, group=group)
    return _unpacked_rows(message.view(ranks, -1), [one.shape for one in tensors])


def scatter(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """(c, …) of each rank → (…), added up over the ranks."""
    rows = torch.cat([one.flatten(1) for one in tensors], dim=1)
    message = rows.new_empty(rows.shape[1])
    dist.reduce_scatter_tensor(message, rows.flatten(), group=group)
    return _unpacked(message, [one.shape[1:] for one in tensors])


def to_heads(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """(B, H, S, K) → (B, H/c, c·S, K): every rank has its heads of all tokens."""
    ranks = dist.get_world_size(group)
    rows = [torch.unflatten(one, 1, (ranks, -1)).movedim(1, 0) for one in tensors]  # (c, B, H/c, S, K)
    return tuple(one.movedim(0, 2).flatten(2, 3) for one in _traded(rows, group))


def to_tokens(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """(B, H/c, c·S, K) → (B, H, S, K): every rank has all heads of its tokens."""
    ranks = dist.get_world_size(group)
    rows = [torch.unflatten(one, 2, (ranks, -1)).movedim(2, 0) for one in tensors]  # (c, B, H/c, S, K)
    return tuple(one.movedim(0, 1).flatten(1, 2) for one in _traded(rows, group))


def _traded(rows: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """Row i of each tensor to rank i; (c, …) by where they came from."""
    message = torch.cat([one.flatten(1) for one in rows], dim=1)
    come = torch.empty_like(message)
    dist.all_to_all_single(come, message, group=group)
    return _unpacked_rows(come, [one.shape[1:] for one in rows])


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.flatten() for one in tensors])


def _unpacked(message: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
    parts = torch.split(message, [shape.numel() for shape in shapes])
    return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))


def _unpacked_rows(message: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
    """(c, elements) → (c, *shape) each."""
    parts = torch.split(message, [shape.numel() for shape in shapes], dim=1)
    return tuple(torch.unflatten(part, 1, shape) for part, shape in zip(parts, shapes, strict=True))
