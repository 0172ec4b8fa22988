"""Context parallelism: which tokens of a sequence each rank has, and attention over those that others have.

    ring         keys and values go round while attention works on those that came before, and their gradients after
                 them; what each step finds is merged by its log-sum-exp (Liu et al. 2023)
    all-gather   all keys and values at once, and once more in the backward pass, which scatters their gradients
                 (Llama 3, arXiv 2407.21783, section 3.3.2)
    all-to-all   tokens are exchanged for heads before attention and back after it (Jacobs et al. 2023, Ulysses)

A ring and a gathered sequence are dealt in 2c pieces, and rank r has the r-th from either end, so that the causal mask
leaves every rank the same work; with all-to-all it has the r-th of c. Why this is not torch's own
`context_parallel`: docs/concepts/executor.md.

Shape legend: B batch, H query heads, G key/value heads, S tokens of this rank, K head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from cost_models.specs.choices import Context
from executor.axes.axis import Axis, Rank
from executor.axes.context.heads import HeadsOfAll
from executor.axes.context.tiles import (
    Coming,
    Exchanged,
    Merged,
    Message,
    Tile,
    gather,
    pass_on,
    scatter,
    tile_of_ring,
    tiles_of_whole,
    to_heads,
    to_tokens,
    zigzag_places,
)
from executor.models.mixing.positions import Places, Turns, Visibility
from executor.models.mixing.sequence import Sequence, WholeSequence
from executor.models.transformer import Block, Transformer


class ContextAxis(Axis):
    """Gives every module the tokens of the sequences that this rank has."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        way = rank.layout.context or rank.plan.question.stack.context_parallel
        self.sequence = make_sequence(way, rank.context_group)

    def apply(self, part: Transformer, stage: int) -> None:
        share_sequence(part, self.sequence)

    def take(self, tokens_BS: Tensor) -> Tensor:
        return take_tokens(tokens_BS, self.sequence, self.rank.layout.cp)


def share_sequence(model: Transformer, sequence: Sequence) -> None:
    """Give every module that knows of positions the tokens of this rank; call it before anything wraps the blocks."""
    if model.embedding is not None and model.embedding.positions is not None:
        model.embedding.positions.sequence = sequence
    turns = Turns()
    for block in model.blocks.values():
        assert isinstance(block, Block)
        if block.attention is not None:
            block.attention.sequence, block.attention.turns = sequence, turns
        if block.recurrence is not None and isinstance(sequence, (_Ulysses, _ZigZag)):
            zigzags = isinstance(sequence, _ZigZag)
            block.recurrence.scan.traded = HeadsOfAll(sequence.group, sequence.rank, sequence.ranks, zigzags)


def make_sequence(way: Context, group: dist.ProcessGroup | None) -> Sequence:
    """The tokens that this rank of `group` has; all of them where there is no group."""
    if group is None:
        return WholeSequence()
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if way == "all-to-all":
        return _Ulysses(group, rank, ranks, WholeSequence())
    return _ZigZag(group, rank, ranks, rings=way == "ring")


def take_tokens(tokens_BS: Tensor, sequence: Sequence, ranks: int) -> Tensor:
    """(B, S / ranks) those of a whole sequence that this rank has."""
    runs = sequence.places(tokens_BS.shape[1] // ranks)
    return torch.cat([tokens_BS[:, run.start : run.stop] for run in runs], dim=1)


@dataclass(frozen=True, slots=True)
class _Ulysses:
    """All-to-all: each rank has a run of the sequence, and in attention some heads of all of it."""

    group: dist.ProcessGroup
    rank: int
    ranks: int
    whole: WholeSequence
    """What attention sees."""

    def places(self, count: int) -> Places:
        """The `rank`-th run of the sequence."""
        return (range(self.rank * count, (self.rank + 1) * count),)

    def attend(
        self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visibility: Visibility
    ) -> Tensor:
        """Attention over the whole sequence for a share of the heads."""
        heads = query_BHSK.shape[1] // self.ranks
        query, key, value = Exchanged.apply(  # type: ignore[no-untyped-call]
            self.group, to_heads, to_tokens, query_BHSK, key_BGSK, value_BGSK
        )
        mine = replace(visibility, first_head=visibility.first_head + self.rank * heads)
        mixed = self.whole.attend(query, key, value, mine)
        (out,) = Exchanged.apply(self.group, to_tokens, to_heads, mixed)  # type: ignore[no-untyped-call]
        return out  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _ZigZag:
    """Ring and all-gather: each rank has two pieces of the sequence, one from either end."""

    group: dist.ProcessGroup
    rank: int
    ranks: int
    rings: bool

    def places(self, count: int) -> Places:
        """This rank's two pieces."""
        return zigzag_places(self.rank, self.ranks, count)

    def tile(self, step: int, count: int, visibility: Visibility) -> Tile:
        """The queries and keys that meet after `step` steps of the ring."""
        source = (self.rank - step) % self.ranks
        return tile_of_ring(self.rank, source, self.ranks, count, visibility.both_ways)

    def attend(
        self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visibility: Visibility
    ) -> Tensor:
        """Attention around the ring, or over gathered keys and values."""
        way = _Ring if self.rings else _Gathered
        out: Tensor = way.apply(self, visibility, query_BHSK, key_BGSK, value_BGSK)  # type: ignore[no-untyped-call]
        return out


class _Ring(torch.autograd.Function):
    """Ring attention: keys and values travel to the next rank while this one attends to those it has."""

    @staticmethod
    def forward(
        ctx: Any, share: _ZigZag, visibility: Visibility, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        merged = Merged(query, value)
        held = Message.of((key, value))
        for step in range(share.ranks):
            coming = pass_on(held, share.group) if step + 1 < share.ranks else None
            tile = share.tile(step, query.shape[2], visibility)
            merged.add(tile, tile.attend(visibility, query, held.tensors))
            if coming is not None:
                held = coming.wait()
        out = merged.rows(query.dtype)
        ctx.share, ctx.visibility = share, visibility
        ctx.save_for_backward(query, key, value, out, merged.lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor, Tensor, Tensor]:
        share, visibility = ctx.share, ctx.visibility
        query, key, value, out, lse = ctx.saved_tensors
        dquery = torch.zeros_like(query, dtype=torch.float32)
        held = Message.of((key, value))
        mine = Message(torch.zeros_like(held.buffer), held.shapes)
        # gradients, which follow the keys and values of others on their way home
        behind: Coming | None = None
        for step in range(share.ranks):
            coming = pass_on(held, share.group) if step + 1 < share.ranks else None
            tile = share.tile(step, query.shape[2], visibility)
            found = tile.gradients(visibility, gradient, query, held.tensors, out, lse)
            sums = mine
            if step > 0:
                sums = behind.wait() if behind else Message(torch.zeros_like(held.buffer), held.shapes)
            if found is not None:
                dquery[:, :, tile.rows] += found[0]
                for total, part in zip(sums.tensors, found[1:], strict=True):
                    total[:, :, tile.columns] += part
            if step > 0:
                behind = pass_on(sums, share.group)
            if coming is not None:
                held = coming.wait()
        assert behind is not None
        dkey, dvalue = Message(mine.buffer.add_(behind.wait().buffer), mine.shapes).tensors
        return None, None, dquery.to(query.dtype), dkey, dvalue


class _Gathered(torch.autograd.Function):
    """All-gather attention: all keys and values, in sequence order, while this block attends to them."""

    @staticmethod
    def forward(
        ctx: Any, share: _ZigZag, visibility: Visibility, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        merged = Merged(query, value)
        whole = _whole(key, value, share.group)
        for tile in tiles_of_whole(share.places(query.shape[2]), visibility, whole[0].shape[2]):
            merged.add(tile, tile.attend(visibility, query, whole))
        out = merged.rows(query.dtype)
        ctx.share, ctx.visibility = share, visibility
        ctx.save_for_backward(query, key, value, out, merged.lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor, Tensor, Tensor]:
        share, visibility = ctx.share, ctx.visibility
        query, key, value, out, lse = ctx.saved_tensors
        dquery = torch.empty_like(query)
        whole = _whole(key, value, share.group)
        tiles = tiles_of_whole(share.places(query.shape[2]), visibility, whole[0].shape[2])
        parts = []
        for tile in tiles:
            found = tile.gradients(visibility, gradient, query, whole, out, lse)
            assert found is not None  # a query sees itself
            dquery[:, :, tile.rows] = found[0]
            parts.append(found[1:])
        del whole, found
        rows = Message.for_ranks(share.ranks, (key.shape, value.shape), key)
        for index, room in enumerate(rows.tensors):
            _deal(room, [(tile, part[index]) for tile, part in zip(tiles, parts, strict=True)])
        del parts
        dkey, dvalue = scatter(rows, share.group)
        return None, None, dquery, dkey, dvalue


def _whole(key: Tensor, value: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """(B, G, c·S, K) of keys and of values, in the order of the sequence: first pieces go up, second ones come down."""
    found = []
    for one in gather((key, value), group):
        ranks, batch, heads, tokens, width = one.shape
        whole = one.new_empty(batch, heads, 2 * ranks, tokens // 2, width)
        first, second = one.movedim(0, 2).chunk(2, dim=3)
        whole[:, :, :ranks] = first
        whole[:, :, ranks:] = second.flip(2)
        found.append(whole.flatten(2, 3))
    return tuple(found)


def _deal(room: Tensor, parts: list[tuple[Tile, Tensor]]) -> None:
    """The inverse of `_whole`, in place: gradients of all tiles, added up by column → (c, B, G, S, K)."""
    ranks, batch, heads, tokens, width = room.shape
    whole = room.new_zeros(batch, heads, ranks * tokens, width)
    for tile, part in parts:
        whole[:, :, tile.columns] += part
    pieces = torch.unflatten(whole, 2, (2 * ranks, -1)).movedim(2, 0)
    room[:, :, :, : tokens // 2] = pieces[:ranks]
    room[:, :, :, tokens // 2 :] = pieces[ranks:].flip(0)
