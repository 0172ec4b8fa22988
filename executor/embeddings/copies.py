"""Copies: every rank has all rows and looks its own samples up; gradients of the rows used travel in an all-gather,
and each rank adds them up, where they are many a piece after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from cost_models.specs.recommender.sharding import TablePlacement
from executor.embeddings.bags import Bags, RowGradients, cut, row_gradients
from executor.embeddings.exchanges import Peers
from executor.embeddings.places import Places, Slice


def copy_slices(table: Slice, placed: TablePlacement, places: Places) -> list[Slice]:
    """One slice that all ranks have."""
    return [table]


class CopyExchange:
    """Sends gradients of copied rows to all ranks: those of all tables together, a piece of each at a time."""

    def __init__(self, peers: Peers, dtype: torch.dtype, at_once: int) -> None:
        """Gradients travel as `dtype`, of about so many rows of a bag at once."""
        self.peers, self.dtype, self.at_once = peers, dtype, at_once

    def summed(self, mine: Mapping[Slice, RowGradients]) -> dict[Slice, list[RowGradients]]:
        """Gradients of the rows that this rank's samples use → of those that any rank's samples use, added in the order
        of ranks, a piece of each slice after another."""
        if self.peers.size == 1 or not mine:
            return {one: [gradients] for one, gradients in mine.items()}
        rows_of = self.rows_of_ranks([one.rows for one in mine.values()])
        pieces = {
            one: _pieces([of[place] for of in rows_of], self.at_once * one.bags)
            for place, one in enumerate(mine)
        }
        found: dict[Slice, list[RowGradients]] = {one: [] for one in mine}
        for nth in range(max(map(len, pieces.values()))):
            now = {one: of[nth] for one, of in pieces.items() if nth < len(of)}
            for one, gradients in self._added_up(mine, now).items():
                found[one].append(gradients)
        return found

    def rows_of_ranks(self, mine: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """By rank, then by slice: the rows that its samples use."""
        counts = torch.tensor([len(rows) for rows in mine], device=mine[0].device)
        of_ranks = self.peers.all_gather(counts).tolist()
        rows = self.peers.all_gather_uneven(torch.cat(list(mine)), list(map(sum, of_ranks)))
        return [cut(came, of) for came, of in zip(rows, of_ranks, strict=True)]

    def _added_up(
        self, mine: Mapping[Slice, RowGradients], now: Mapping[Slice, _Piece]
    ) -> dict[Slice, RowGradients]:
        """A piece of each of some slices: this rank's gradients of it → those of all ranks, added up."""
        me, ranks = self.peers.rank, range(self.peers.size)
        sends = [piece.of(me, mine[one].values) for one, piece in now.items()]
        sizes = [[len(piece.rows[rank]) * one.width for one, piece in now.items()] for rank in ranks]
        message = torch.cat([values.to(self.dtype).view(-1) for values in sends])
        came = self.peers.all_gather_uneven(message, list(map(sum, sizes)))
        values = [cut(of, each) for of, each in zip(came, sizes, strict=True)]
        return {
            one: _added(
                torch.cat(piece.rows),
                torch.cat([of[place].view(-1, one.width) for of in values]).float(),
            )
            for place, (one, piece) in enumerate(now.items())
        }


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some of a slice's rows."""

    rows: list[Tensor]
    """Of each rank, those of them that its samples use."""
    begins: list[int]
    """Of each rank, where they begin among the rows that its samples use."""

    def of(self, rank: int, values: Tensor) -> Tensor:
        """(U, D) of a rank's rows → those of the piece."""
        number = len(self.rows[rank])
        return values if number == len(values) else values.narrow(0, self.begins[rank], number)


def _pieces(rows_of: Sequence[Tensor], most: int) -> list[_Piece]:
    """Rows that the samples of each rank use, rising → pieces of them: gradients of about `most` rows or fewer, those
    of a row all in one piece."""
    sizes = [len(rows) for rows in rows_of]
    begins = [0] * len(sizes)
    if sum(sizes) <= most:
        return [_Piece(list(rows_of), begins)]
    borders = torch.cat(list(rows_of)).sort().values[most::most].contiguous()
    inner = torch.stack([torch.searchsorted(rows, borders) for rows in rows_of], dim=1)
    return [
        _Piece([rows[a:b] for rows, a, b in zip(rows_of, before, after, strict=True)], before)
        for before, after in pairwise([begins, *inner.tolist(), sizes])
    ]


def _added(rows: Tensor, values: Tensor) -> RowGradients:
    """(n,) rows, some of them several times, and their gradients → each row once, added in the order they are in."""
    once = torch.ones(len(rows), dtype=torch.int32, device=rows.device)
    return row_gradients(Bags(rows, once), values)
