"""Whole tables: each on one rank; ids go there, and vectors come back in an all-to-all, uneven where tables are.

Slices of columns travel in the same messages: a whole table is one slice of all its columns.
"""

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
    """The table as it is, on its rank."""
    return [replace(table, rank=placed.at[0])]


class Exchange:
    """Vectors of samples on their way from the ranks that have their tables, and gradients on their way back."""

    def __init__(self, peers: Peers, held: Sequence[Slice], samples: int, empty: Tensor) -> None:
        """`empty` has no element, and the type and device of what is sent."""
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
