"""Context parallelism: ranks hold parts of each sequence and exchange keys and values, or heads.

**Tiles and messages.** Attention is computed in tiles, merged into rows over all keys. A tile is some queries with some
keys. A message is one buffer of several tensors, which are views of it, so that what is computed into them is sent as
it lies there.

**Recurrences.** For their scans tokens are traded for heads, whichever way attention goes.

**Ways.**

    ring         keys and values go round while attention works on those that came before, and their gradients after
                 them; what each step finds is merged by its log-sum-exp (Liu et al. 2023)
    all-gather   all keys and values at once, and once more in the backward pass, which scatters their gradients
                 (Llama 3, arXiv 2407.21783, section 3.3.2)
    all-to-all   tokens are exchanged for heads before attention and back after it (Jacobs et al. 2023, Ulysses)

A ring and a gathered sequence are dealt in 2c pieces, and rank r has the r-th from either end, so that the causal mask
leaves every rank the same work; with all-to-all it has the r-th of c. Why this is not torch's own
`context_parallel`: docs/concepts/executor.md.

Shape legend: c ranks, B batch, H query heads, G key/value heads, S tokens of this rank, K head width; queries, outputs
and gradients are (B, H, S, K), keys and values (B, G, …, K), log-sum-exps (B, H, S). Of a recurrence U heads, or groups
of them, W numbers of each.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from executor.axes.axis import Axis, Rank
from executor.models.attention import (
    Attention,
    AttentionInputs,
    AttentionResult,
    Gradients,
    LatentAttention,
    kernel_for,
)
from executor.models.ends import Positions
from executor.models.positions import Places, Sequence, Turns, Visibility, WholeSequence, positions
from executor.models.recurrence import StateScan
from executor.models.transformer import Transformer

Tensors = tuple[Tensor, ...]
Way = Callable[[Tensors, dist.ProcessGroup], Tensors]
"""Function that exchanges tensors between the ranks that share a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Some of this rank's queries with some of the keys in memory: one call of the attention kernel."""

    rows: slice
    """Range of the queries in this rank's tensor of queries."""
    columns: slice
    """Range of the keys in the tensor of keys in memory."""
    queries: Places
    keys: Places

    def attend(self, visible: Visibility, query: Tensor, pair: Tensors) -> tuple[Tensor, Tensor] | None:
        """Output and log-sum-exp of the tile's queries over its keys; None if no query sees any key."""
        if visible.blind(self.queries, self.keys):
            return None
        inputs = self._inputs(visible, query, pair)
        return kernel_for(inputs).forward(inputs)

    def gradients(
        self, visible: Visibility, query: Tensor, pair: Tensors, result: AttentionResult
    ) -> Gradients | None:
        """Gradients of the tile's queries, keys and values; None if no query sees any key."""
        if visible.blind(self.queries, self.keys):
            return None
        inputs = self._inputs(visible, query, pair)
        out, lse, gradient = (one[:, :, self.rows] for one in result)
        return kernel_for(inputs).backward(inputs, AttentionResult(out, lse.contiguous(), gradient))

    def _inputs(self, visible: Visibility, query: Tensor, pair: Tensors) -> AttentionInputs:
        """Inputs of the attention kernel for this tile: sliced tensors, causal flag and mask bias."""
        query = query[:, :, self.rows]
        key, value = (one[:, :, self.columns] for one in pair)
        causal, bias = visible.is_causal(self.queries, self.keys), None
        if not causal and not visible.sees_all(self.queries, self.keys):
            bias = visible.bias(self.queries, self.keys, query.shape[1], query)
        return AttentionInputs(query, key, value, bias, causal)


_ALL = slice(None)


def zigzag_places(rank: int, ranks: int, count: int) -> Places:
    """Positions of `rank`'s `count` tokens, as two ranges.

    The sequence has 2·ranks equal pieces; a rank has the `rank`-th from the start and the `rank`-th from the end.
    """
    size, last = count // 2, 2 * ranks - 1
    head, tail = (range(piece * size, (piece + 1) * size) for piece in (rank, last - rank))
    return head, tail


def tile_of_ring(rank: int, source: int, ranks: int, count: int, both_ways: bool = False) -> Tile:
    """Tile of `rank`'s queries and the keys of rank `source` that they may attend to: all keys if `both_ways`.

    Queries see the first piece of an earlier rank's keys and not the second; both pieces of a later rank's keys are
    seen by the second piece of queries, and not by the first.
    """
    half = count // 2
    own_places, source_places = zigzag_places(rank, ranks, count), zigzag_places(source, ranks, count)
    if source == rank or both_ways:
        return Tile(rows=_ALL, columns=_ALL, queries=own_places, keys=source_places)
    if source < rank:
        return Tile(rows=_ALL, columns=slice(0, half), queries=own_places, keys=source_places[:1])
    return Tile(rows=slice(half, count), columns=_ALL, queries=own_places[1:], keys=source_places)


def tiles_of_whole(places: Places, visible: Visibility, count: int) -> list[Tile]:
    """One tile for each run of this rank's queries, with those of the sequence's `count` keys that it may see."""
    tiles, row = [], 0
    for run in places:
        first, end = visible.first_seen(run.start), count if visible.both_ways else run.stop
        rows, columns = slice(row, row + len(run)), slice(first, end)
        tiles.append(Tile(rows=rows, columns=columns, queries=(run,), keys=(range(first, end),)))
        row += len(run)
    return tiles


class Merged:
    """Attention outputs over parts of the keys, merged by log-sum-exp as they are added.

    Stored as (B, S, H, K), the order in which the projection after attention reads them.
    """

    def __init__(self, query: Tensor, value: Tensor) -> None:
        batch, heads, tokens, _ = query.shape
        like = query.new_empty(0, dtype=torch.float32)
        self.out = like.new_zeros(batch, tokens, heads, value.shape[-1]).transpose(1, 2)
        self.lse = like.new_full((batch, heads, tokens), -torch.inf)

    def add(self, tile: Tile, part: tuple[Tensor, Tensor] | None) -> None:
        """Merge the output and log-sum-exp of a tile into the rows of its queries; None adds nothing."""
        if part is None:
            return
        out, lse = part
        rows = self.out[:, :, tile.rows]
        old = self.lse[:, :, tile.rows]
        new = torch.logaddexp(old, lse)
        rows.mul_((old - new).exp()[..., None]).addcmul_(out.float(), (lse - new).exp()[..., None])
        old.copy_(new)


Shapes = abc.Sequence[torch.Size]


def parts_of(message: Tensor, shapes: Shapes) -> Tensors:
    """Views of a message, (…, elements): the tensors of these shapes, (…, *shape), that lie in it one after another."""
    pieces = torch.split(message, [shape.numel() for shape in shapes], dim=-1)
    return tuple(torch.unflatten(piece, -1, shape) for piece, shape in zip(pieces, shapes, strict=True))


def message_of(tensors: Tensors) -> tuple[Tensor, Shapes]:
    """A message with a copy of these tensors, (elements,), and their shapes."""
    return torch.cat([one.flatten() for one in tensors]), [one.shape for one in tensors]


def message_for_ranks(ranks: int, shapes: Shapes, like: Tensor) -> Tensor:
    """An uninitialised message, (c, elements), with a row for each rank that holds tensors of these shapes."""
    return like.new_empty(ranks, sum(shape.numel() for shape in shapes))


def pass_on(message: Tensor, group: dist.ProcessGroup) -> Callable[[], Tensor]:
    """Start to send a message to the next rank of the ring. Returns a function that waits for the message of the
    previous rank, and returns it.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    come = torch.empty_like(message)
    sent, received = (
        [message.numel() * (peer == (rank + way) % ranks) for peer in range(ranks)] for way in (1, -1)
    )
    work = dist.all_to_all_single(come, message, received, sent, group=group, async_op=True)
    assert work is not None

    def arrived() -> Tensor:
        """Wait until both messages have arrived; returns that of the previous rank."""
        work.wait()
        return come

    return arrived


def gather(tensors: Tensors, group: dist.ProcessGroup) -> Tensors:
    """All-gather tensors (…) of each rank; returns tensors (c, …) with a row for each of the c ranks."""
    message, shapes = message_of(tensors)
    rows = message.new_empty(dist.get_world_size(group), message.numel())
    dist.all_gather_into_tensor(rows.view(-1), message, group=group)
    return parts_of(rows, shapes)


def to_heads(tensors: Tensors, group: dist.ProcessGroup) -> Tensors:
    """Exchange tokens for heads: (B, H, S, K) → (B, H/c, c·S, K), this rank's share of the heads of all tokens."""
    ranks = dist.get_world_size(group)
    rows = [torch.unflatten(one, 1, (ranks, -1)).movedim(1, 0) for one in tensors]  # (c, B, H/c, S, K)
    return tuple(one.movedim(0, 2).flatten(2, 3) for one in _all_to_all(rows, group))


def to_tokens(tensors: Tensors, group: dist.ProcessGroup) -> Tensors:
    """Exchange heads for tokens: (B, H/c, c·S, K) → (B, H, S, K), all heads of this rank's tokens."""
    ranks = dist.get_world_size(group)
    rows = [torch.unflatten(one, 2, (ranks, -1)).movedim(2, 0) for one in tensors]  # (c, B, H/c, S, K)
    by_token = (one.permute(1, 3, 0, 2, 4).flatten(2, 3) for one in _all_to_all(rows, group))
    return tuple(one.transpose(1, 2) for one in by_token)


def _all_to_all(rows: abc.Sequence[Tensor], group: dist.ProcessGroup) -> Tensors:
    """Send row i of each tensor to rank i; returns tensors (c, …) whose row i came from rank i."""
    shapes = [tensor.shape[1:] for tensor in rows]
    message = message_for_ranks(len(rows[0]), shapes, rows[0])
    for room, tensor in zip(parts_of(message, shapes), rows, strict=True):
        room.copy_(tensor)
    come = torch.empty_like(message)
    dist.all_to_all_single(come, message, group=group)
    return parts_of(come, shapes)


def exchanged(group: dist.ProcessGroup, trade: Way, *tensors: Tensor) -> Tensors:
    """Exchange tensors by `to_heads` or `to_tokens` (`trade`); gradients are exchanged by the inverse function."""
    return _Exchange.apply(group, trade, *tensors)  # type: ignore[no-untyped-call, no-any-return]


class _Exchange(torch.autograd.Function):
    """`to_heads` or `to_tokens` as an autograd function, whose backward is the inverse exchange."""

    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, trade: Way, *tensors: Tensor) -> Tensors:
        """Exchange the tensors among the ranks of `group` by `trade`."""
        ctx.group, ctx.back = group, to_tokens if trade is to_heads else to_heads
        return trade(tensors, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Exchange the gradients by the inverse of the forward exchange."""
        return None, None, *ctx.back(gradients, ctx.group)


class ContextAxis(Axis):
    """Context parallelism on one rank: gives its modules the rank's part of every sequence."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        way, group = rank.layout.context or rank.plan.question.stack.context_parallel, rank.context_group
        self.sequence: Sequence = WholeSequence()
        if group is not None:
            kind = {"all-to-all": _Ulysses, "ring": _Ring, "all-gather": _Gathered}[way]
            self.sequence = kind(group, dist.get_rank(group), dist.get_world_size(group))

    def apply(self, part: Transformer, stage: int) -> None:
        """Tell the modules of a model slice which tokens this rank has."""
        share_sequence(part, self.sequence)

    def take(self, tokens_BS: Tensor) -> Tensor:
        """This rank's part of whole sequences of tokens, (B, S)."""
        runs = self.sequence.places(tokens_BS.shape[1] // self.rank.layout.cp)
        return torch.cat([tokens_BS[:, run.start : run.stop] for run in runs], dim=1)


def share_sequence(model: Transformer, sequence: Sequence) -> None:
    """Tell every module that depends on positions which tokens this rank has; call before blocks are wrapped."""
    turns = Turns()
    for module in model.modules():
        if isinstance(module, (Attention, LatentAttention)):
            module.sequence, module.turns = sequence, turns
        elif isinstance(module, (Positions, StateScan)):
            module.sequence = sequence


@dataclass(frozen=True)
class _SharedSequence:
    """Tokens that this rank has of a sequence, which the ranks of a group share."""

    group: dist.ProcessGroup
    rank: int
    ranks: int

    def to_heads(self, *tensors_BSUW: Tensor) -> Tensors:
        """Exchange tokens for heads: each tensor (B, S, U, W) → (B, c·S, U / c, W), tokens in sequence order."""
        traded = exchanged(self.group, to_heads, *(one.transpose(1, 2) for one in tensors_BSUW))
        return tuple(one.transpose(1, 2) for one in traded)

    def to_tokens(self, mixed_BSHP: Tensor) -> Tensor:
        """Exchange the scan's output back, (B, c·S, H / c, P) → (B, S, H, P): all heads of this rank's tokens."""
        (tokens_BHSP,) = exchanged(self.group, to_tokens, mixed_BSHP.transpose(1, 2))
        return tokens_BHSP.transpose(1, 2)


@dataclass(frozen=True)
class _Ulysses(_SharedSequence):
    """All-to-all attention: each rank holds a run of the sequence and computes some heads over all of it."""

    sequence: WholeSequence = field(default_factory=WholeSequence)
    """Attention over all tokens for a share of the heads."""

    def places(self, count: int) -> Places:
        """Positions of this rank's `count` tokens: the `rank`-th run of the sequence."""
        return (range(self.rank * count, (self.rank + 1) * count),)

    def attend(self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visible: Visibility) -> Tensor:
        """Attention output, (B, H, S, K), of this rank's tokens, computed by head over the whole sequence."""
        heads = query_BHSK.shape[1] // self.ranks
        query, key, value = exchanged(self.group, to_heads, query_BHSK, key_BGSK, value_BGSK)
        head_visibility = replace(visible, first_head=visible.first_head + self.rank * heads)
        mixed = self.sequence.attend(query, key, value, head_visibility)
        (out,) = exchanged(self.group, to_tokens, mixed)
        return out


class _ZigZag(_SharedSequence):
    """Ring and all-gather attention: each rank holds two pieces of the sequence, one from either end."""

    def places(self, count: int) -> Places:
        """Positions of this rank's `count` tokens: two pieces of the sequence, one from either end."""
        return zigzag_places(self.rank, self.ranks, count)

    def to_heads(self, *tensors_BSUW: Tensor) -> Tensors:
        """Exchange tokens for heads: each tensor (B, S, U, W) → (B, c·S, U / c, W), tokens in sequence order."""
        traded = super().to_heads(*tensors_BSUW)
        order = self._positions(traded[0]).argsort()
        return tuple(one.index_select(1, order) for one in traded)

    def to_tokens(self, mixed_BSHP: Tensor) -> Tensor:
        """Exchange the scan's output back, (B, c·S, H / c, P) → (B, S, H, P): all heads of this rank's tokens."""
        return super().to_tokens(mixed_BSHP.index_select(1, self._positions(mixed_BSHP)))

    def _positions(self, like_BSHP: Tensor) -> Tensor:
        """Positions in the sequence, (c·S,), of the tokens of rank 0, then of rank 1 and so on."""
        count = like_BSHP.shape[1] // self.ranks
        runs = [run for rank in range(self.ranks) for run in zigzag_places(rank, self.ranks, count)]
        return positions(tuple(runs), like_BSHP.device)

    def attend(self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visible: Visibility) -> Tensor:
        """Attention output, (B, H, S, K), of this rank's queries over the keys and values of all ranks."""
        out: Tensor = _Attend.apply(self, visible, query_BHSK, key_BGSK, value_BGSK)  # type: ignore[no-untyped-call]
        return out

    def tiles(self, visible: Visibility, count: int, pair: Tensors) -> Iterator[tuple[Tile, Tensors]]:
        """Yield tiles of this rank's `count` queries, each with the keys and values that `Tile.columns` numbers."""
        raise NotImplementedError

    def gradients(
        self, visible: Visibility, query: Tensor, pair: Tensors, result: AttentionResult
    ) -> Gradients:
        """Gradients of this rank's queries, keys and values, given the gradient of its attention output."""
        raise NotImplementedError


class _Attend(torch.autograd.Function):
    """Attention to the keys and values of all ranks as an autograd function, computed tile by tile."""

    @staticmethod
    def forward(ctx: Any, share: _ZigZag, visible: Visibility, query: Tensor, *pair: Tensor) -> Tensor:
        """Attention output of this rank's queries, merged over the tiles."""
        merged = Merged(query, pair[1])
        for tile, keys_values in share.tiles(visible, query.shape[2], pair):
            merged.add(tile, tile.attend(visible, query, keys_values))
        out = merged.out.to(query.dtype)
        ctx.share, ctx.visibility = share, visible
        ctx.save_for_backward(query, *pair, out, merged.lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor, Tensor, Tensor]:
        """Gradients of this rank's queries, keys and values."""
        query, key, value, out, lse = ctx.saved_tensors
        result = AttentionResult(out, lse, gradient)
        return None, None, *ctx.share.gradients(ctx.visibility, query, (key, value), result)


class _Ring(_ZigZag):
    """Ring attention: keys and values travel to the next rank while this rank attends to those it has."""

    def tile(self, step: int, count: int, visible: Visibility) -> Tile:
        """Tile of this rank's queries and of the keys that are on this rank after `step` steps of the ring."""
        source = (self.rank - step) % self.ranks
        return tile_of_ring(self.rank, source, self.ranks, count, visible.both_ways)

    def rounds(self, pair: Tensors) -> Iterator[tuple[int, Tensor]]:
        """Yield each step of the ring with the message of its keys and values, while the next is being received."""
        message, _ = message_of(pair)
        for step in range(self.ranks - 1):
            arrived = pass_on(message, self.group)
            yield step, message
            message = arrived()
        yield self.ranks - 1, message

    def tiles(self, visible: Visibility, count: int, pair: Tensors) -> Iterator[tuple[Tile, Tensors]]:
        """Yield one tile for each step of the ring, with the keys and values that this rank has in that step."""
        shapes = [one.shape for one in pair]
        for step, message in self.rounds(pair):
            yield self.tile(step, count, visible), parts_of(message, shapes)

    def gradients(
        self, visible: Visibility, query: Tensor, pair: Tensors, result: AttentionResult
    ) -> Gradients:
        """Gradients of this rank's queries, keys and values, summed as keys and values travel round the ring."""
        dquery, shapes = torch.zeros_like(query, dtype=torch.float32), [one.shape for one in pair]
        own_sums: Tensor | None = None
        # gradients, which follow the keys and values of others on their way home
        behind: Callable[[], Tensor] | None = None
        for step, message in self.rounds(pair):
            tile = self.tile(step, query.shape[2], visible)
            gradients = tile.gradients(visible, query, parts_of(message, shapes), result)
            sums = torch.zeros_like(message) if behind is None else behind()
            if gradients is not None:
                dquery[:, :, tile.rows] += gradients[0]
                for total, part in zip(parts_of(sums, shapes), gradients[1:], strict=True):
                    total[:, :, tile.columns] += part
            if own_sums is None:
                own_sums = sums
            else:
                behind = pass_on(sums, self.group)
        assert behind is not None
        assert own_sums is not None
        dkey, dvalue = parts_of(own_sums.add_(behind()), shapes)
        return dquery.to(query.dtype), dkey, dvalue


class _Gathered(_ZigZag):
    """All-gather attention: the keys and values of the whole sequence are gathered for each attention call."""

    def tiles(self, visible: Visibility, count: int, pair: Tensors) -> Iterator[tuple[Tile, Tensors]]:
        """Yield one tile for each of this rank's two pieces, with the gathered keys and values."""
        keys_values = _full_sequences(pair, self.group)
        for tile in tiles_of_whole(self.places(count), visible, keys_values[0].shape[2]):
            yield tile, keys_values

    def gradients(
        self, visible: Visibility, query: Tensor, pair: Tensors, result: AttentionResult
    ) -> Gradients:
        """Gradients of this rank's queries, keys and values, by a reduce-scatter for keys and values."""
        dquery = torch.empty_like(query)
        parts = []
        for tile, keys_values in self.tiles(visible, query.shape[2], pair):
            gradients = tile.gradients(visible, query, keys_values, result)
            assert gradients is not None  # a query sees itself
            dquery[:, :, tile.rows] = gradients[0]
            parts.append((tile, gradients[1:]))
        del keys_values, gradients
        shapes = [one.shape for one in pair]
        rows = message_for_ranks(self.ranks, shapes, query)
        for index, room in enumerate(parts_of(rows, shapes)):
            _deal(room, [(tile, part[index]) for tile, part in parts])
        del parts
        message = torch.empty_like(rows[0])
        dist.reduce_scatter_tensor(message, rows.view(-1), group=self.group)
        dkey, dvalue = parts_of(message, shapes)
        return dquery, dkey, dvalue


def _full_sequences(pair: Tensors, group: dist.ProcessGroup) -> Tensors:
    """Gather keys and values of all ranks into tensors (B, G, c·S, K) in sequence order."""
    pieces = (rows.movedim(0, 2).chunk(2, dim=3) for rows in gather(pair, group))
    return tuple(torch.cat([first, second.flip(2)], dim=2).flatten(2, 3) for first, second in pieces)


def _deal(room: Tensor, parts: list[tuple[Tile, Tensor]]) -> None:
    """Sum the gradients of all tiles by column into `room`, (c, B, G, S, K); undoes `_full_sequences`."""
    ranks, batch, heads, tokens, width = room.shape
    sequence = room.new_zeros(batch, heads, ranks * tokens, width)
    for tile, part in parts:
        sequence[:, :, tile.columns] += part
    pieces = torch.unflatten(sequence, 2, (2 * ranks, -1)).movedim(2, 0)
    room[:, :, :, : tokens // 2] = pieces[:ranks]
    room[:, :, :, tokens // 2 :] = pieces[ranks:].flip(0)
