"""Copies: every rank has all rows and looks its own samples up; gradients of the rows used travel in an all-gather,
and each rank adds them up."""

from __future__ import annotations

from collections.abc import Mapping
from operator import mul

import torch
from torch import Tensor

from cost_models.specs.recommender.sharding import Placed
from executor.embeddings.bags import Bags, RowGradients, cut, row_gradients
from executor.embeddings.exchanges import Peers
from executor.embeddings.places import Places, Slice


def slices(table: Slice, placed: Placed, places: Places) -> list[Slice]:
    """One that all ranks have."""
    return [table]


def summed(peers: Peers, mine: Mapping[Slice, RowGradients], dtype: torch.dtype) -> dict[Slice, RowGradients]:
    """Gradients of the rows that this rank's samples use → of those that any rank's samples use, added in the order of
    ranks. Rows and gradients of all tables are gathered together, gradients as `dtype`."""
    if peers.size == 1 or not mine:
        return dict(mine)
    counts = torch.tensor(
        [len(one.rows) for one in mine.values()], device=next(iter(mine.values())).rows.device
    )
    of_ranks = peers.all_gather(counts).tolist()
    rows = peers.all_gather_uneven(
        torch.cat([one.rows for one in mine.values()]), [sum(counts) for counts in of_ranks]
    )
    widths = [one.width for one in mine]
    values = peers.all_gather_uneven(
        torch.cat([one.values.to(dtype).view(-1) for one in mine.values()]),
        [sum(map(mul, counts, widths)) for counts in of_ranks],
    )
    rows_of = [cut(came, counts) for came, counts in zip(rows, of_ranks, strict=True)]
    values_of = [
        cut(came, list(map(mul, counts, widths))) for came, counts in zip(values, of_ranks, strict=True)
    ]
    return {
        one: _added(
            torch.cat([of[place] for of in rows_of]),
            torch.cat([of[place].view(-1, one.width) for of in values_of]).float(),
        )
        for place, one in enumerate(mine)
    }


def _added(rows: Tensor, values: Tensor) -> RowGradients:
    """(n,) rows, some of them several times, and their gradients → each row once, added in the order they are in."""
    once = torch.ones(len(rows), dtype=torch.int32, device=rows.device)
    return row_gradients(Bags(rows, once), values)
