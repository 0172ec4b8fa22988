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

    def forward(self, vectors: Mapping[Slice, Tensor]) -> dict[Slice, Tensor]:
        """(B · bags, width) of this rank's slices, samples of all ranks → (b · bags, width) of all slices."""
        mine = [vectors[one].view(self.peers.size, -1) for one in self.mine]
        sends = torch.cat([self.empty.expand(self.peers.size, 0), *mine], dim=1)
        came = self.peers.all_to_all(list(sends), [sum(map(self._elements, of)) for of in self.by_rank])
        return {
            one: part.view(-1, one.width)
            for of, message in zip(self.by_rank, came, strict=True)
            for one, part in zip(of, cut(message, [self._elements(one) for one in of]), strict=True)
        }

    def backward(self, gradients: Mapping[Slice, Tensor]) -> dict[Slice, Tensor]:
        """(b · bags, width) gradients of all slices → (B · bags, width) of this rank's."""
        sends = [torch.cat([self.empty, *(gradients[one].reshape(-1) for one in of)]) for of in self.by_rank]
        sizes = [self._elements(one) for one in self.mine]
        came = self.peers.all_to_all(sends, [sum(sizes)] * self.peers.size)
        parts = cut(torch.stack(came), sizes, dim=1)
        return {one: part.reshape(-1, one.width) for one, part in zip(self.mine, parts, strict=True)}

    def _elements(self, one: Slice) -> int:
        return self.samples * one.bags * one.width
