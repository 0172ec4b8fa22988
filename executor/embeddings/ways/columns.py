"""Column slices: each rank has some columns of every row. All of them get the ids; vectors travel as whole tables do.

Row-wise Adagrad keeps one number a row, of the whole row: ranks that have slices of a row add up what their columns
bring. (Trainers that keep one number a slice train another model than with the table whole.)
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


def slices(table: Slice, placed: Placed, places: Places) -> list[Slice]:
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
