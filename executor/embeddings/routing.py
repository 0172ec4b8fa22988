"""Ids on their way to the ranks that hold their rows: how many in each bag, then which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from executor.embeddings.bags import Bags, cut
from executor.embeddings.exchanges import Peers
from executor.embeddings.places import Slice

Parts = Mapping[tuple[int, int], Bags]
"""(table, first row) → this rank's ids of the part of a table that begins there."""


class Router:
    """The exchange of ids for all slices that lie on ranks of their own."""

    def __init__(self, peers: Peers, held: Sequence[Slice], samples: int) -> None:
        self.peers, self.samples = peers, samples
        self.by_rank: list[list[Slice]] = [[] for _ in range(peers.size)]
        for one in held:
            assert one.rank is not None
            self.by_rank[one.rank].append(one)
        self.mine = self.by_rank[peers.rank]
        self._splits = {(one.table, one.first): one.ways for one in held}

    def exchange(self, parts: Parts) -> dict[Slice, Bags]:
        """This rank's ids → for each of its slices the ids of all samples, in the order of ranks."""
        if not self._splits:
            return {}
        split = {part: parts[part].split(ways) for part, ways in self._splits.items()}
        sends = [[split[one.table, one.first][one.residue] for one in of] for of in self.by_rank]
        return self.put_together(*self._send(sends))

    def _send(self, sends: Sequence[Sequence[Bags]]) -> tuple[list[Tensor], list[Tensor]]:
        """Bags to each rank → (lengths, values) from each."""
        some = next(bags for of in sends for bags in of)
        bags = self.samples * sum(one.bags for one in self.mine)
        lengths = self.peers.all_to_all(
            [torch.cat([some.lengths[:0], *(one.lengths for one in of)]) for of in sends],
            [bags] * self.peers.size,
        )
        values = self.peers.all_to_all(
            [torch.cat([some.values[:0], *(one.values for one in of)]) for of in sends],
            [int(of.sum()) for of in lengths],
        )
        return lengths, values

    def put_together(self, lengths: Sequence[Tensor], values: Sequence[Tensor]) -> dict[Slice, Bags]:
        """What came from each rank, its slices' bags one after another → bags of each slice."""
        bags = [self.samples * one.bags for one in self.mine]
        of_slice: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.mine]
        for from_rank, ids in zip(lengths, values, strict=True):
            parts = cut(from_rank, bags)
            for place, part in enumerate(
                zip(parts, cut(ids, [int(one.sum()) for one in parts]), strict=True)
            ):
                of_slice[place].append(part)
        return {
            one: Bags(torch.cat([ids for _, ids in came]), torch.cat([counts for counts, _ in came]))
            for one, came in zip(self.mine, of_slice, strict=True)
        }
