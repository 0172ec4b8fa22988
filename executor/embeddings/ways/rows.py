"""Rows over all ranks: row r on rank r mod W, so that those used most are spread; partial sums travel in a
reduce-scatter, gradients in an all-gather."""

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
    """One on each rank; or, of so many slices on ranks of their own, sums that travel as whole tables do."""
    if placed.at:
        ways = len(placed.at)
        return [
            replace(table, form="whole", rank=rank, ways=ways, residue=residue)
            for residue, rank in enumerate(placed.at)
        ]
    return [replace(table, rank=rank, ways=places.ranks, residue=rank) for rank in range(places.ranks)]


class Exchange:
    """Partial sums on their way to the ranks of their samples, and gradients to all ranks."""

    def __init__(self, peers: Peers, held: Sequence[Slice], samples: int, empty: Tensor) -> None:
        """`empty` has no element, and the type and device of what is sent."""
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
