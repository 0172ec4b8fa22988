"""Copies: every rank has all rows and looks its own samples up; gradients of the rows used travel in an all-gather,
and each rank adds them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cost_models.specs.recommender.sharding import Placed
from executor.embeddings.bags import Bags, RowGradients, cut, row_gradients
from executor.embeddings.exchanges import Peers
from executor.embeddings.places import Places, Slice


def slices(table: Slice, placed: Placed, places: Places) -> list[Slice]:
    """One that all ranks have."""
    return [table]


class Exchange:
    """Gradients of copied rows on their way to all ranks, those of all tables together."""

    def __init__(self, peers: Peers, dtype: torch.dtype) -> None:
        """Gradients travel as `dtype`."""
        self.peers, self.dtype = peers, dtype

    def summed(self, mine: Mapping[Slice, RowGradients]) -> dict[Slice, RowGradients]:
        """Gradients of the rows that this rank's samples use → of those that any rank's samples use, added in the order
        of ranks."""
        if self.peers.size == 1 or not mine:
            return dict(mine)
        rows_of = self.rows_of_ranks([one.rows for one in mine.values()])
        widths = [one.width for one in mine]
        sizes = [[len(rows) * width for rows, width in zip(of, widths, strict=True)] for of in rows_of]
        values = self.peers.all_gather_uneven(
            torch.cat([one.values.to(self.dtype).view(-1) for one in mine.values()]), list(map(sum, sizes))
        )
        values_of = [cut(came, of) for came, of in zip(values, sizes, strict=True)]
        return {
            one: _added(
                torch.cat([of[place] for of in rows_of]),
                torch.cat([of[place].view(-1, one.width) for of in values_of]).float(),
            )
            for place, one in enumerate(mine)
        }

    def rows_of_ranks(self, mine: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """By rank, then by slice: the rows that its samples use."""
        counts = torch.tensor([len(rows) for rows in mine], device=mine[0].device)
        of_ranks = self.peers.all_gather(counts).tolist()
        rows = self.peers.all_gather_uneven(torch.cat(list(mine)), list(map(sum, of_ranks)))
        return [cut(came, of) for came, of in zip(rows, of_ranks, strict=True)]


def _added(rows: Tensor, values: Tensor) -> RowGradients:
    """(n,) rows, some of them several times, and their gradients → each row once, added in the order they are in."""
    once = torch.ones(len(rows), dtype=torch.int32, device=rows.device)
    return row_gradients(Bags(rows, once), values)
