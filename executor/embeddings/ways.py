"""Ways to shard a table over ranks: the slices of each, and how vectors and gradients travel.

    whole    each table on one rank; ids go there, vectors come back in an all-to-all, uneven where tables are
    columns  each rank has some columns of every row and gets all ids; vectors travel as those of whole tables, in the
             same messages. Row-wise Adagrad keeps one number for a whole row: ranks that have columns of it add up
             their squares. (Trainers that keep one number a slice train another model than with the table whole.)
    rows     row r on rank r mod W, so that those used most are spread; partial sums travel in a reduce-scatter,
             gradients in an all-gather
    nodes    rows inside a node, tables whole between nodes: partial sums are added in the node that has the table, over
             its fast links, and travel between nodes in an all-to-all among ranks of the same place in their nodes

Copies, which every rank has, are in `executor.embeddings.copies`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from cost_models.specs.recommender.sharding import Placed
from executor.embeddings.bags import cut
from executor.embeddings.exchanges import Peers
from executor.embeddings.places import Places, Slice


def whole_slices(table: Slice, placed: Placed, places: Places) -> list[Slice]:
    """The whole table, on its rank."""
    return [replace(table, rank=placed.at[0])]


class WholeExchange:
    """Sends vectors of samples from the ranks of their tables, and gradients back."""

    def __init__(self, peers: Peers, held: Sequence[Slice], samples: int, empty: Tensor) -> None:
        """`empty` is a tensor of no element, with the type and device of messages."""
        self.peers, self.samples, self.empty = peers, samples, empty
        self.by_rank: list[list[Slice]] = [[] for _ in range(peers.size)]
        for one in held:
            assert one.rank is not None
            self.by_rank[one.rank].append(one)
        self.mine = self.by_rank[peers.rank]
        self.sizes = [self._elements(one) for one in self.mine]
        self.counts = [sum(map(self._elements, of)) for of in self.by_rank]
        self._message = empty

    def room(self) -> dict[Slice, Tensor]:
        """Where this rank's slices write what is sent: (ranks, b · bags · width) each, parts of one message."""
        self._message = self.empty.new_empty(self.peers.size, sum(self.sizes))
        return dict(zip(self.mine, cut(self._message, self.sizes, dim=1), strict=True))

    def forward(self) -> dict[Slice, Tensor]:
        """What was written, of the samples of all ranks → (b · bags, width) of all slices, of this rank's."""
        message, self._message = self._message, self.empty
        came = self.peers.exchange(message.view(-1), [sum(self.sizes)] * self.peers.size, self.counts)
        every = [one for of in self.by_rank for one in of]
        parts = cut(came, [self._elements(one) for one in every])
        return {one: part.view(-1, one.width) for one, part in zip(every, parts, strict=True)}

    def backward(self, gradients: Mapping[Slice, Tensor]) -> dict[Slice, Tensor]:
        """(b · bags, width) gradients of all slices → (ranks, b · bags · width) of this rank's, parts of what came."""
        message = torch.cat([self.empty, *(gradients[one].reshape(-1) for of in self.by_rank for one in of)])
        came = self.peers.exchange(message, self.counts, [sum(self.sizes)] * self.peers.size)
        parts = cut(came.view(self.peers.size, -1), self.sizes, dim=1)
        return dict(zip(self.mine, parts, strict=True))

    def _elements(self, one: Slice) -> int:
        return self.samples * one.bags * one.width


def row_slices(table: Slice, placed: Placed, places: Places) -> list[Slice]:
    """One on each rank; or, of so many slices on ranks of their own, sums that travel as whole tables do."""
    if placed.at:
        ways = len(placed.at)
        return [
            replace(table, form="whole", rank=rank, ways=ways, residue=residue)
            for residue, rank in enumerate(placed.at)
        ]
    return [replace(table, rank=rank, ways=places.ranks, residue=rank) for rank in range(places.ranks)]


class RowExchange:
    """Sends partial sums to the ranks of their samples, and gradients to all ranks."""

    def __init__(self, peers: Peers, held: Sequence[Slice], samples: int, empty: Tensor) -> None:
        """`empty` is a tensor of no element, with the type and device of messages."""
        self.peers, self.empty = peers, empty
        self.mine = [one for one in held if one.rank == peers.rank]
        self.sizes = [samples * one.bags * one.width for one in self.mine]
        self._message = empty

    def room(self) -> dict[Slice, Tensor]:
        """Where this rank's slices write what they add to the samples of all: (ranks, b · bags · D) each."""
        self._message = self.empty.new_empty(self.peers.size, sum(self.sizes))
        return dict(zip(self.mine, cut(self._message, self.sizes, dim=1), strict=True))

    def forward(self) -> dict[Slice, Tensor]:
        """What was written → (b · bags, D) sums of this rank's samples."""
        message, self._message = self._message, self.empty
        sums = cut(self.peers.reduce_scatter(message), self.sizes)
        return {one: part.view(-1, one.width) for one, part in zip(self.mine, sums, strict=True)}

    def backward(self, gradients: Mapping[Slice, Tensor]) -> dict[Slice, Tensor]:
        """(b · bags, D) gradients of this rank's samples → (ranks, b · bags · D) of all, parts of what came."""
        everyone = self.peers.all_gather(torch.cat([gradients[one].reshape(-1) for one in self.mine]))
        return dict(zip(self.mine, cut(everyone, self.sizes, dim=1), strict=True))


def node_slices(table: Slice, placed: Placed, places: Places) -> list[Slice]:
    """One on each rank of the table's node, or nodes."""
    ranks = [node * places.per_node + place for node in placed.at for place in range(places.per_node)]
    return [replace(table, rank=rank, ways=len(ranks), residue=residue) for residue, rank in enumerate(ranks)]


class NodeExchange:
    """Sends partial sums inside a node and then between nodes, and gradients back."""

    def __init__(
        self, node: Peers, across: Peers, held: Sequence[Slice], samples: int, empty: Tensor
    ) -> None:
        """`empty` is a tensor of no element, with the type and device of messages."""
        self.node, self.across, self.empty = node, across, empty
        tables = [one for one in held if one.residue % node.size == 0]
        self.by_node: list[list[Slice]] = [[] for _ in range(across.size)]
        for one in tables:
            assert one.rank is not None
            self.by_node[one.rank // node.size].append(one)
        me = across.rank * node.size + node.rank
        self.mine = [one for one in held if one.rank == me]
        self.sizes = [[samples * one.bags * one.width for one in of] for of in self.by_node]
        self.counts = list(map(sum, self.sizes))
        self.my_sizes = self.sizes[across.rank]
        self._message = empty

    def room(self) -> dict[Slice, Tensor]:
        """Where this rank's slices write what they add to the samples of all: (nodes, places, b · bags · D) each.

        Samples of the ranks at one place of their nodes are added up by the one at that place of this node.
        """
        self._message = self.empty.new_empty(self.node.size, self.across.size, sum(self.my_sizes))
        parts = cut(self._message.transpose(0, 1), self.my_sizes, dim=2)
        return dict(zip(self.mine, parts, strict=True))

    def forward(self) -> dict[Slice, Tensor]:
        """What was written → (b · bags, D) of this rank's samples, by the first slice of each table in each of its
        nodes."""
        message, self._message = self._message, self.empty
        sums = self.node.reduce_scatter(message.view(self.node.size, -1))
        came = self.across.exchange(sums, [sum(self.my_sizes)] * self.across.size, self.counts)
        every = [one for of in self.by_node for one in of]
        parts = cut(came, [size for sizes in self.sizes for size in sizes])
        return {one: part.view(-1, one.width) for one, part in zip(every, parts, strict=True)}

    def backward(self, gradients: Mapping[Slice, Tensor]) -> dict[Slice, Tensor]:
        """(b · bags, D) gradients by the first slice of each table → (nodes, places, b · bags · D) of this rank's,
        parts of what came."""
        message = torch.cat([self.empty, *(gradients[one].reshape(-1) for of in self.by_node for one in of)])
        came = self.across.exchange(message, self.counts, [sum(self.my_sizes)] * self.across.size)
        node = self.node.all_gather(came).view(self.node.size, self.across.size, -1)
        return dict(zip(self.mine, cut(node.transpose(0, 1), self.my_sizes, dim=2), strict=True))


def column_slices(table: Slice, placed: Placed, places: Places) -> list[Slice]:
    """As many slices as the option says, of columns side by side, as even as may be."""
    count = placed.option.shards
    borders = [table.end * index // count for index in range(count + 1)]
    return [
        replace(table, rank=rank, begin=begin, end=end)
        for rank, (begin, end) in zip(placed.at, pairwise(borders), strict=True)
    ]


def squares_of_rows(
    peers: Peers, held: Sequence[Slice], mine: Mapping[Slice, Tensor], device: torch.device
) -> dict[Slice, Tensor]:
    """(U,) sums of squares over a slice's columns → over the columns of the whole rows, added in their order."""
    groups: dict[tuple[int, int], list[Slice]] = {}
    for one in held:
        groups.setdefault((one.table, one.first), []).append(one)
    here = [group for group in groups.values() if any(one.rank == peers.rank for one in group)]
    empty = torch.empty(0, dtype=torch.float64, device=device)
    sends, comes = [], []
    for rank in range(peers.size):
        shared = (
            [group for group in here if any(one.rank == rank for one in group)] if rank != peers.rank else []
        )
        sends.append(
            torch.cat([empty, *(mine[one] for group in shared for one in group if one.rank == peers.rank)])
        )
        comes.append([one for group in shared for one in group if one.rank == rank])
    rows = {id(group): len(next(mine[one] for one in group if one in mine)) for group in here}
    group_of = {one: id(group) for group in here for one in group}
    sizes = [[rows[group_of[one]] for one in of] for of in comes]
    came = peers.all_to_all(sends, [sum(of) for of in sizes])
    parts = dict(mine)
    for of, message, lengths in zip(comes, came, sizes, strict=True):
        parts.update(zip(of, cut(message, lengths), strict=True))
    totals: dict[Slice, Tensor] = {}
    for group in here:
        total = sum((parts[one] for one in group[1:]), parts[group[0]])
        totals |= {one: total for one in group if one.rank == peers.rank}
    return totals
