"""Rows inside a node, tables whole between nodes: partial sums are added in the node that has the table, over its fast
links, and travel between nodes in an all-to-all among ranks of the same place in their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cost_models.specs.recommender.sharding import Placed
from executor.embeddings.bags import cut
from executor.embeddings.exchanges import Peers
from executor.embeddings.places import Places, Slice


def slices(table: Slice, placed: Placed, places: Places) -> list[Slice]:
    """One on each rank of the table's node, or nodes."""
    ranks = [node * places.per_node + place for node in placed.at for place in range(places.per_node)]
    return [replace(table, rank=rank, ways=len(ranks), residue=residue) for residue, rank in enumerate(ranks)]


class Exchange:
    """Partial sums on their way inside a node and then between nodes, and gradients on their way back."""

    def __init__(
        self, node: Peers, across: Peers, held: Sequence[Slice], samples: int, empty: Tensor
    ) -> None:
        """`empty` has no element, and the type and device of what is sent."""
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
