"""Messages between ranks that share a sequence: several tensors in one buffer.

A message is one buffer; the tensors in it are views, so what is computed into them can go on as it lies there.

Shape legend: c ranks, B batch, H heads, S tokens of one rank, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(slots=True)
class Message:
    """Tensors in one buffer: (elements,), or (c, elements) with a row for each rank."""

    buffer: Tensor
    shapes: tuple[torch.Size, ...]
    """Of one row."""

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> Message:
        """A message that holds a copy of these tensors."""
        buffer = torch.cat([one.flatten() for one in tensors])
        return Message(buffer, tuple(one.shape for one in tensors))

    @staticmethod
    def for_ranks(ranks: int, shapes: tuple[torch.Size, ...], like: Tensor) -> Message:
        """Room for tensors of these shapes for each rank, to be filled."""
        return Message(like.new_empty(ranks, sum(shape.numel() for shape in shapes)), shapes)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Views of the buffer, one for each tensor."""
        parts = torch.split(self.buffer, [shape.numel() for shape in self.shapes], dim=-1)
        return tuple(torch.unflatten(part, -1, shape) for part, shape in zip(parts, self.shapes, strict=True))


@dataclass(slots=True)
class Coming:
    """A message on its way to this rank."""

    message: Message
    work: dist.Work
    sent: Message
    """Kept alive until it has been sent."""

    def wait(self) -> Message:
        """The message, once it has arrived."""
        self.work.wait()
        return self.message


def pass_on(message: Message, group: dist.ProcessGroup) -> Coming:
    """Send to the next rank of the ring what the one before sends here; returns at once."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    come = torch.empty_like(message.buffer)
    there, here = [0] * ranks, [0] * ranks
    there[(rank + 1) % ranks] = here[(rank - 1) % ranks] = come.numel()
    work = dist.all_to_all_single(come, message.buffer, here, there, group=group, async_op=True)
    assert work is not None
    return Coming(Message(come, message.shapes), work, message)


def gather(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """(…) of each rank → (c, …) of all."""
    mine = Message.of(tensors)
    rows = mine.buffer.new_empty(dist.get_world_size(group), mine.buffer.numel())
    dist.all_gather_into_tensor(rows.view(-1), mine.buffer, group=group)
    return Message(rows, mine.shapes).tensors


def scatter(rows: Message, group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """A row for each rank → this rank's, added up over those who had one for it."""
    mine = rows.buffer.new_empty(rows.buffer.shape[1])
    dist.reduce_scatter_tensor(mine, rows.buffer.view(-1), group=group)
    return Message(mine, rows.shapes).tensors


def to_heads(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """(B, H, S, K) → (B, H/c, c·S, K): every rank has its heads of all tokens."""
    ranks = dist.get_world_size(group)
    rows = [torch.unflatten(one, 1, (ranks, -1)).movedim(1, 0) for one in tensors]  # (c, B, H/c, S, K)
    return tuple(one.movedim(0, 2).flatten(2, 3) for one in _all_to_all(rows, group))


def to_tokens(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """(B, H/c, c·S, K) → (B, H, S, K), which lies as (B, S, H, K): every rank has all heads of its tokens."""
    ranks = dist.get_world_size(group)
    rows = [torch.unflatten(one, 2, (ranks, -1)).movedim(2, 0) for one in tensors]  # (c, B, H/c, S, K)
    by_token = (one.permute(1, 3, 0, 2, 4).flatten(2, 3) for one in _all_to_all(rows, group))
    return tuple(one.transpose(1, 2) for one in by_token)


def _all_to_all(rows: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """Row i of each tensor to rank i; (c, …) by where they came from."""
    message = Message.for_ranks(len(rows[0]), tuple(one.shape[1:] for one in rows), rows[0])
    for room, one in zip(message.tensors, rows, strict=True):
        room.copy_(one)
    come = torch.empty_like(message.buffer)
    dist.all_to_all_single(come, message.buffer, group=group)
    return Message(come, message.shapes).tensors
