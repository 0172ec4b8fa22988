"""Ways to shard a table over ranks: the slices of each, and how vectors and gradients travel.

    whole    each table on one rank; ids go there, vectors come back in an all-to-all, uneven where tables are
    columns  each rank has some columns of every row and gets all ids; vectors travel as those of whole tables, in the
             same messages. Row-wise Adagrad keeps one number for a whole row: ranks that have columns of it add up
             their squares. (Trainers that keep one number a slice train another model than with the table whole.)
    rows     row r on rank r mod W, so that those used most are spread; partial sums travel in a reduce-scatter,
             gradients in an all-gather
    nodes    rows inside a node, tables whole between nodes: partial sums are added in the node that has the table, over
             its fast links, and travel between nodes in an all-to-all among ranks of the same place in their nodes

So one exchange serves all. Copies, which every rank has, are in `executor.embeddings.copies`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from cost_models.specs.recommender.sharding import TablePlacement
from executor.embeddings.bags import cut
from executor.embeddings.exchanges import Peers
from executor.embeddings.places import Places, Slice


def whole_slices(table: Slice, placed: TablePlacement, places: Places) -> list[Slice]:
    """The whole table, on its rank."""
    return [replace(table, rank=placed.at[0])]


def row_slices(table: Slice, placed: TablePlacement, places: Places) -> list[Slice]:
    """One on each rank; or, of so many slices on ranks of their own, sums that travel as whole tables do."""
    if placed.at:
        ways = len(placed.at)
        return [
            replace(table, form="whole", rank=rank, ways=ways, residue=residue)
            for residue, rank in enumerate(placed.at)
        ]
    return [replace(table, rank=rank, ways=places.ranks, residue=rank) for rank in range(places.ranks)]


def node_slices(table: Slice, placed: TablePlacement, places: Places) -> list[Slice]:
    """One on each rank of the table's node, or nodes."""
    ranks = [node * places.per_node + place for node in placed.at for place in range(places.per_node)]
    return [replace(table, rank=rank, ways=len(ranks), residue=residue) for residue, rank in enumerate(ranks)]


class Exchange:
    """Sends partial sums inside a node and then between nodes, and gradients back.

    Whole tables have nothing to add up: every rank is a node of its own. Rows on all ranks lie in one node of them all.
    """

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
        parts = cut(_in_order(self._message), self.my_sizes, dim=2)
        return dict(zip(self.mine, parts, strict=True))

    def forward(self) -> dict[Slice, Tensor]:
        """What was written → (b · bags, D) of this rank's samples, by the first slice of each table in each of its
        nodes."""
        if not any(self.counts):
            return {}
        message, self._message = self._message, self.empty
        sums = self.node.reduce_scatter(message.view(self.node.size, -1))
        came = self.across.exchange(sums, [sum(self.my_sizes)] * self.across.size, self.counts)
        every = [one for of in self.by_node for one in of]
        parts = cut(came, [size for sizes in self.sizes for size in sizes])
        return {one: part.view(-1, one.width) for one, part in zip(every, parts, strict=True)}

    def backward(self, gradients: Mapping[Slice, Tensor]) -> dict[Slice, Tensor]:
        """(b · bags, D) gradients by the first slice of each table → (nodes, places, b · bags · D) of this rank's,
        parts of what came."""
        if not any(self.counts):
            return {}
        message = torch.cat([self.empty, *(gradients[one].reshape(-1) for of in self.by_node for one in of)])
        came = self.across.exchange(message, self.counts, [sum(self.my_sizes)] * self.across.size)
        node = self.node.all_gather(came).view(self.node.size, self.across.size, -1)
        return dict(zip(self.mine, cut(_in_order(node), self.my_sizes, dim=2), strict=True))


def _in_order(message: Tensor) -> Tensor:
    """(places, nodes, n) → (nodes, places, n), the order of ranks; with one of either it is that already."""
    return message if 1 in message.shape[:2] else message.transpose(0, 1)


def column_slices(table: Slice, placed: TablePlacement, places: Places) -> list[Slice]:
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
