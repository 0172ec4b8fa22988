"""Attention in tiles, merged into rows over all keys; and the messages that carry keys and values between ranks.

A tile is some queries with some keys. A message is one buffer of several tensors, which are views of it, so that what
is computed into them is sent as it lies there.

Shape legend: c ranks, B batch, H query heads, G key/value heads, S tokens of this rank, K head width; queries, outputs
and gradients are (B, H, S, K), keys and values (B, G, …, K), log-sum-exps (B, H, S).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from executor.models.mixing.kernels import Meeting, kernel_for
from executor.models.mixing.positions import Places, Visibility

Tensors = tuple[Tensor, ...]
Way = Callable[[Tensors, dist.ProcessGroup], Tensors]
"""How tensors are exchanged between the ranks that share a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Some of this rank's queries and some of the keys at hand."""

    rows: slice
    """Queries, as this rank numbers its tokens."""
    columns: slice
    """Keys, as the tensor at hand numbers them."""
    queries: Places
    keys: Places

    def attend(self, visibility: Visibility, query: Tensor, pair: Tensors) -> tuple[Tensor, Tensor] | None:
        """Output and log-sum-exp of the rows over these keys; None where they see none of them."""
        if visibility.blind(self.queries, self.keys):
            return None
        met = self._meeting(visibility, query, pair)
        return kernel_for(met).forward(met)

    def gradients(
        self,
        visibility: Visibility,
        gradient: Tensor,
        query: Tensor,
        pair: Tensors,
        out: Tensor,
        lse: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Gradients of queries, keys and values; None where the queries see none of the keys."""
        if visibility.blind(self.queries, self.keys):
            return None
        met = self._meeting(visibility, query, pair)
        gradient, out, lse = (one[:, :, self.rows] for one in (gradient, out, lse))
        return kernel_for(met).backward(met, gradient, out, lse.contiguous())

    def _meeting(self, visibility: Visibility, query: Tensor, pair: Tensors) -> Meeting:
        query = query[:, :, self.rows]
        key, value = (one[:, :, self.columns] for one in pair)
        causal, bias = visibility.is_causal(self.queries, self.keys), None
        if not causal and not visibility.sees_all(self.queries, self.keys):
            bias = visibility.bias(self.queries, self.keys, query.shape[1], query)
        return Meeting(query, key, value, bias, causal)


_ALL = slice(None)


def zigzag_places(rank: int, ranks: int, count: int) -> Places:
    """The positions of a rank's `count` tokens: the `rank`-th of 2·ranks pieces, and the `rank`-th from the end."""
    size, last = count // 2, 2 * ranks - 1
    head, tail = (range(piece * size, (piece + 1) * size) for piece in (rank, last - rank))
    return head, tail


def tile_of_ring(rank: int, source: int, ranks: int, count: int, both_ways: bool = False) -> Tile:
    """The queries of a rank and the keys of `source` that the causal mask lets meet; all where they see `both_ways`.

    Of an earlier rank everyone sees the first piece and nobody the second; a later rank's are both before this one's
    second piece, and after its first.
    """
    half = count // 2
    own, theirs = zigzag_places(rank, ranks, count), zigzag_places(source, ranks, count)
    if source == rank or both_ways:
        return Tile(rows=_ALL, columns=_ALL, queries=own, keys=theirs)
    if source < rank:
        return Tile(rows=_ALL, columns=slice(0, half), queries=own, keys=theirs[:1])
    return Tile(rows=slice(half, count), columns=_ALL, queries=own[1:], keys=theirs)


def tiles_of_whole(places: Places, visibility: Visibility, count: int) -> list[Tile]:
    """A tile for each run of queries, with all of `count` keys that it may see; keys lie in order."""
    tiles, row = [], 0
    for run in places:
        first, end = visibility.first_seen(run.start), count if visibility.both_ways else run.stop
        rows, columns = slice(row, row + len(run)), slice(first, end)
        tiles.append(Tile(rows=rows, columns=columns, queries=(run,), keys=(range(first, end),)))
        row += len(run)
    return tiles


class Merged:
    """Outputs over parts of the keys, merged as they come: each weighs as much as its sum of exponentials.

    They lie as (B, S, H, K), as the projection after attention reads them.
    """

    def __init__(self, query: Tensor, value: Tensor) -> None:
        batch, heads, tokens, _ = query.shape
        like = query.new_empty(0, dtype=torch.float32)
        self.out = like.new_zeros(batch, tokens, heads, value.shape[-1]).transpose(1, 2)
        self.lse = like.new_full((batch, heads, tokens), -torch.inf)

    def add(self, tile: Tile, found: tuple[Tensor, Tensor] | None) -> None:
        """Add the output of a tile to its rows."""
        if found is None:
            return
        out, lse = found
        rows = self.out[:, :, tile.rows]
        old = self.lse[:, :, tile.rows]
        new = torch.logaddexp(old, lse)
        rows.mul_((old - new).exp()[..., None]).addcmul_(out.float(), (lse - new).exp()[..., None])
        old.copy_(new)

    def rows(self, dtype: torch.dtype) -> Tensor:
        """(B, H, S, K) the merged outputs."""
        return self.out.to(dtype)


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


class Exchanged(torch.autograd.Function):
    """Tensors through `there`, one of `to_heads` and `to_tokens`; gradients through `back`, which is the other."""

    @staticmethod
    def forward(
        ctx: Any, group: dist.ProcessGroup, there: Way, back: Way, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.group, ctx.back = group, back
        return there(tensors, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *ctx.back(gradients, ctx.group)


def _all_to_all(rows: Sequence[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """Row i of each tensor to rank i; (c, …) by where they came from."""
    message = Message.for_ranks(len(rows[0]), tuple(one.shape[1:] for one in rows), rows[0])
    for room, one in zip(message.tensors, rows, strict=True):
        room.copy_(one)
    come = torch.empty_like(message.buffer)
    dist.all_to_all_single(come, message.buffer, group=group)
    return Message(come, message.shapes).tensors
