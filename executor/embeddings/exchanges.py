"""Slices of embedding tables on ranks, and exchanges of ids, rows and vectors that count the bytes they send.

The bytes that a rank sends to others in a step follow from tables and sharding; counters must agree to the byte. Of W
ranks, b samples of each, slices of D columns with P bags a sample, e bytes an element:

    whole, column    forward b·P·D·e to each other rank from the holder; backward as much from each other rank to it
    row              forward and backward (W − 1)·b·P·D·e from every rank
    node-row         forward (L − 1)·N·b·P·D·e in its node, b·P·D·e to each other node; backward as much
    dense network    (W − 1)·⌈parameters / W⌉·4, twice: its sums are scattered, then gathered
    ids              8 of each that goes to another rank, 4 of the length of each bag there
    copies           (W − 1)·(D·e + 8) of each row that this rank's samples use, 8 for how many of each table

Leaves out the sums of squares that row-wise Adagrad's column slices exchange in the update: 8 bytes a row used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cost_models.recommender.options import STAGES
from cost_models.specs.recommender.sharding import Form
from executor.embeddings.bags import Bags, Counts, cut, joined


@dataclass(frozen=True, slots=True)
class Places:
    """Number of ranks of a run and of each node; ranks of a node are neighbours."""

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.ranks // self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of an embedding table on one rank, or a copy of some rows on every rank.

    Of `rows` rows from `first` on it has every `ways`-th, beginning with the one at `residue`; of each the columns from
    `begin` to `end` − 1.
    """

    table: int
    form: Form
    rank: int | None = None
    """Rank that holds the slice; None if every rank does."""
    first: int = 0
    rows: int
    ways: int = 1
    residue: int = 0
    begin: int = 0
    end: int
    bags: int
    """Bags of a sample: 1, or with `concat` the number of ids of a sample."""
    cached: float = 1.0
    """Share of the slice's rows that are on the device, those used most; the rest is in host memory."""
    hashed: bool = False
    """Whether ids are keys: key k lies in slice k mod `ways`, in a row assigned when it first came."""

    @property
    def held_rows(self) -> int:
        """Number of rows of this slice."""
        return -(-(self.rows - self.residue) // self.ways)

    @property
    def rows_before(self) -> int:
        """Number of rows of the slices that precede this one by `residue`."""
        return sum(-(-(self.rows - residue) // self.ways) for residue in range(self.residue))

    @property
    def device_rows(self) -> int:
        """Number of the slice's rows on the device: its first ones, as rows are numbered by decreasing use."""
        return round(self.held_rows * self.cached)

    @property
    def width(self) -> int:
        """Number of columns of this slice."""
        return self.end - self.begin


class SentBytes(Counts):
    """Bytes that this rank sent to other ranks, by stage of a recommender's step."""

    stage = ""
    """Stage in which bytes are counted now."""

    def add(self, count: int) -> None:
        """Count `count` bytes as sent in the current stage."""
        self[self.stage] += count


Sizes = Sequence[int]
"""Number of elements for, or from, each rank of a group."""
Message = tuple[Tensor, dist.Work | None]
"""Memory that a collective fills, and the work to wait for; None if it is filled."""


class Peers:
    """Collectives among this rank and the other ranks of a group, which count the bytes that this rank sends. A group
    of one sends nothing.
    """

    def __init__(self, counter: SentBytes, group: dist.ProcessGroup | None = None) -> None:
        self.traffic, self.group = counter, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def all_to_all(self, sends: Sequence[Tensor], counts: Sizes) -> list[Tensor]:
        """Send tensor `sends[r]`, flat, to each rank r; returns the `counts[r]` elements that each rank r sends."""
        if self.size == 1:
            return [sends[0]]
        message = self.exchange(torch.cat(list(sends)), [send.numel() for send in sends], counts)
        return list(torch.split(message, list(counts)))

    def exchange(self, message: Tensor, sizes: Sizes, counts: Sizes) -> Tensor:
        """Send `sizes[r]` elements of a flat message to each rank r; returns `counts[r]` elements from each.

        Nothing else is held beside these two.
        """
        return wait_for(self.begin_exchange(message, sizes, counts))

    def begin_exchange(self, message: Tensor, sizes: Sizes, counts: Sizes) -> Message:
        """Begin an `exchange`."""
        if self.size == 1:
            return message, None
        self.traffic.add((sum(sizes) - sizes[self.rank]) * message.element_size())
        received = message.new_empty(sum(counts))
        return received, self._all_to_all(received, message, counts, sizes)

    def reduce_scatter(self, parts: Tensor) -> Tensor:
        """Sum over ranks of the part for this rank, (n,); `parts`, (ranks, n), are this rank's addends."""
        if self.size == 1 or not parts.numel():
            return parts[0]
        total = parts.new_empty(parts.shape[1])
        self.traffic.add((self.size - 1) * total.numel() * total.element_size())
        self._reduce_scatter(total, parts.contiguous().view(-1))
        return total

    def all_gather(self, values: Tensor) -> Tensor:
        """Values (n,) of every rank, as (ranks, n)."""
        return wait_for(self.begin_all_gather(values))

    def begin_all_gather(self, values: Tensor) -> Message:
        """Begin an `all_gather`."""
        if self.size == 1 or not values.numel():
            return values.expand(self.size, *values.shape), None
        gathered = values.new_empty(self.size, values.numel())
        self.traffic.add((self.size - 1) * values.nbytes)
        return gathered, self._all_gather(gathered.view(-1), values.contiguous())

    def all_gather_uneven(self, values: Tensor, counts: Sizes) -> list[Tensor]:
        """Values (n,) of every rank, `counts[r]` elements of rank r."""
        return self.all_to_all([values] * self.size, counts)

    def sum_in_order(self, values: Tensor) -> Tensor:
        """Sum of values (n,) over ranks in their order: the same bits on every rank, and at every attempt.

        It is a reduce-scatter and an all-gather as in a ring, where each rank sums a share in an order that no library
        chooses.
        """
        sums = Summing(self, values)
        sums.gather()
        return sums.result()

    def _all_to_all(self, received: Tensor, message: Tensor, counts: Sizes, sizes: Sizes) -> dist.Work | None:
        """Begin to fill `received` with `counts[r]` elements from each rank r; `message` has `sizes[r]` for it."""
        how: dict[str, Any] = {"group": self.group, "async_op": True}
        work: dist.Work | None = dist.all_to_all_single(received, message, [*counts], [*sizes], **how)
        return work

    def _reduce_scatter(self, total: Tensor, parts: Tensor) -> None:
        """Fill `total` with the sum over ranks of their parts for this rank."""
        dist.reduce_scatter_tensor(total, parts, group=self.group)

    def _all_gather(self, gathered: Tensor, values: Tensor) -> dist.Work | None:
        """Begin to fill `gathered` with the values of every rank."""
        how: dict[str, Any] = {"group": self.group, "async_op": True}
        work: dist.Work | None = dist.all_gather_into_tensor(gathered, values, **how)
        return work


def wait_for(message: Message) -> Tensor:
    """Wait for a message that a collective fills, and return it."""
    values, work = message
    if work is not None:
        work.wait()
    return values


class SingleRank(Peers):
    """This rank as a group of its own, which sends nothing."""

    def __init__(self, counter: SentBytes) -> None:
        self.traffic, self.group, self.rank, self.size = counter, None, 0, 1

    def all_gather(self, values: Tensor) -> Tensor:
        """The values themselves, as no other rank has any."""
        return values


class Summing:
    """`Peers.sum_in_order` in two asynchronous parts: shares of the sum, then sums, travel while the caller computes.

    Every rank makes one, then calls `gather` and `result`, in the same order among all collectives of the group.
    """

    def __init__(self, peers: Peers, values: Tensor) -> None:
        """Begin to send values, (n,), to the ranks, each of which sums a share."""
        self._peers, self._number = peers, values.numel()
        even = [-(-self._number // peers.size)] * peers.size
        missing = sum(even) - self._number
        padded = torch.nn.functional.pad(values, (0, missing)) if missing else values
        self._message = peers.begin_exchange(padded, even, even)

    def gather(self) -> None:
        """Wait for the values of this rank's share, sum them, and begin to send the sum to all ranks."""
        if self._peers.size > 1:
            first, *rest = wait_for(self._message).view(self._peers.size, -1)
            share = first.clone()
            for part in rest:
                share += part
            self._message = self._peers.begin_all_gather(share)

    def result(self) -> Tensor:
        """Wait for the sum over ranks, (n,), and return it."""
        return wait_for(self._message).view(-1)[: self._number]


Parts = Mapping[tuple[int, int], Bags]
"""(table, first row) → this rank's ids of the part of a table that begins there."""


class Router:
    """Exchange of ids for all slices that are on a single rank each, unlike copies."""

    def __init__(self, peers: Peers, slices: Sequence[Slice], samples: int) -> None:
        self.peers, self.samples = peers, samples
        self.by_rank = [[part for part in slices if part.rank == rank] for rank in range(peers.size)]
        self.own_slices = self.by_rank[peers.rank]
        self._splits = {(part.table, part.first): part.ways for part in slices}

    def exchange(self, parts: Parts) -> dict[Slice, Bags]:
        """Ids of all ranks' samples for each slice on this rank, given this rank's ids by part of a table."""
        if not self._splits:
            return {}
        split = {part: parts[part].split(ways) for part, ways in self._splits.items()}
        like = next(iter(split.values()))[0]
        none = Bags(like.values[:0], like.lengths[:0])
        sends = [
            joined([none, *(split[piece.table, piece.first][piece.residue] for piece in slices)])
            for slices in self.by_rank
        ]
        bags = [self.samples * piece.bags for piece in self.own_slices]
        lengths = self.peers.all_to_all([to.lengths for to in sends], [sum(bags)] * self.peers.size)
        counts = [int(from_rank.sum()) for from_rank in lengths]
        values = self.peers.all_to_all([to.values for to in sends], counts)
        of_ranks: list[list[Bags]] = []
        for from_rank, ids in zip(lengths, values, strict=True):
            parts_of_rank = cut(from_rank, bags)
            ids_of_slices = cut(ids, [int(piece.sum()) for piece in parts_of_rank])
            of_ranks.append(list(map(Bags, ids_of_slices, parts_of_rank)))
        of_slices = zip(*of_ranks, strict=True)
        return {piece: joined(list(own)) for piece, own in zip(self.own_slices, of_slices, strict=True)}


_ID_BYTES, _LENGTH_BYTES, _FP32 = 8, 4, 4


def sent_bytes(
    slices: Sequence[Slice],
    places: Places,
    rank: int,
    *,
    samples: int,
    element_bytes: int,
    dense_parameters: int,
    ids: Sequence[Tensor],
) -> dict[str, int]:
    """Bytes that this rank should send in each stage of a recommender's step, given its samples' ids by table."""
    ranks, total = places.ranks, Counter(dict.fromkeys(STAGES, 0))
    for piece in slices:
        values = ids[piece.table]
        if not piece.hashed:
            values = values[(values >= piece.first) & (values < piece.first + piece.rows)] - piece.first
        if piece.rank is None:
            if ranks > 1:
                rows = len(set(values.tolist()))
                row_bytes = piece.width * element_bytes + _ID_BYTES
                total[STAGES.backward_exchange] += (ranks - 1) * (rows * row_bytes + _ID_BYTES)
            continue
        vectors = samples * piece.bags * piece.width * element_bytes
        in_node = {"row": ranks, "node-row": places.per_node}.get(piece.form, 1)
        nodes, is_owner = ranks // in_node, piece.rank == rank
        partial_sums = (in_node - 1) * nodes * vectors * is_owner
        total[STAGES.forward_exchange] += partial_sums + (nodes - 1) * vectors * is_owner
        total[STAGES.backward_exchange] += partial_sums
        if not is_owner:
            requested = int((values % piece.ways == piece.residue).sum())
            total[STAGES.index_exchange] += samples * piece.bags * _LENGTH_BYTES + requested * _ID_BYTES
            total[STAGES.backward_exchange] += vectors * (piece.rank % in_node == rank % in_node)
    if ranks > 1:
        total[STAGES.update] += 2 * (ranks - 1) * -(-dense_parameters // ranks) * _FP32
    return dict(total)
