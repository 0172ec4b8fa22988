"""Exchanges of a recommender's rank without the others: what they would ask of it is known, as they draw from the same
made-up samples, and what they would send beside that is noise.

Sizes are those of the real rank, message by message, so its buffers and what it looks up and updates are, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from executor.data.clicks import MadeUpClicks
from executor.embeddings.bags import Bags
from executor.embeddings.collection import AT_ONCE, Embeddings, ids_of_part
from executor.embeddings.exchanges import Peers
from executor.embeddings.places import Slice
from executor.embeddings.routing import Parts, Router
from executor.embeddings.ways import copies

_SCALE = 0.02
"""Noise lies between 0 and this: sums of squares are among what ranks send."""


class AbsentPeers(Peers):
    """Ranks that are not there: their vectors and gradients are noise."""

    def _all_to_all(self, came: Tensor, sent: Tensor, counts: Sequence[int], sizes: Sequence[int]) -> None:
        if came.is_floating_point():
            came.uniform_(0, _SCALE)
        else:
            came.zero_()

    def _reduce_scatter(self, mine: Tensor, parts: Tensor) -> None:
        theirs = parts.clone() if parts.device.type == "cpu" else parts  # gloo adds up in a copy
        mine.copy_(theirs.view(self.size, -1)[self.rank])

    def _all_gather(self, everyone: Tensor, mine: Tensor) -> None:
        everyone.view(self.size, -1).copy_(mine)


class _KnownRouter(Router):
    """Ids that samples of all ranks have for the slices of this one."""

    came: dict[Slice, Bags]

    def exchange(self, parts: Parts) -> dict[Slice, Bags]:
        """This rank's ids are cut up as they are; what comes is known, and comes now."""
        super().exchange(parts)
        return {one: Bags(bags.values.clone(), bags.lengths.clone()) for one, bags in self.came.items()}


class _KnownCopies(copies.Exchange):
    """Rows of copies that samples of all ranks use."""

    rows: list[Sequence[Tensor]]

    def rows_of_ranks(self, mine: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """What this rank has is gathered as it is; what comes is known, and comes now."""
        super().rows_of_ranks(mine)
        return [[rows.clone() for rows in of] for of in self.rows]


class OtherRanks:
    """What the ranks that are not there do to one that is."""

    def __init__(self, embeddings: Embeddings, clicks: MadeUpClicks) -> None:
        self.embeddings, self.clicks = embeddings, clicks
        peers = embeddings.peers
        placed = [one for one in embeddings.slices if one.rank is not None]
        self._router = _KnownRouter(peers, placed, embeddings.samples)
        self._copies = _KnownCopies(peers, embeddings.exchange_dtype, AT_ONCE * embeddings.samples)
        embeddings.router, embeddings.copy_exchange = self._router, self._copies

    def draw(self, step: int) -> None:
        """Have their samples be those of this step, counted from 0."""
        every = {table: self._ids(step, table) for table in {one.table for one in self.embeddings.held}}
        self._router.came = {
            one: self._part(one, every[one.table]).split(one.ways)[one.residue] for one in self._router.mine
        }
        used = [self._rows_by_rank(one, every[one.table]) for one in self.embeddings.copies]
        self._copies.rows = list(zip(*used, strict=True))

    def _ids(self, step: int, table: int) -> Bags:
        """Of all samples, those of a rank one after another, as they arrive."""
        values, lengths = self.clicks.ids(table, step, 0, self.clicks.global_batch)
        return Bags(torch.from_numpy(values), torch.from_numpy(lengths)).to(self.embeddings.device)

    def _part(self, one: Slice, bags: Bags) -> Bags:
        return ids_of_part(one, self.embeddings.tables[one.table], bags)

    def _rows_by_rank(self, one: Slice, bags: Bags) -> list[Tensor]:
        lengths = self._part(one, bags).lengths.view(self.embeddings.peers.size, -1).sum(1).tolist()
        values = self._part(one, bags).values
        borders = [0, *accumulate(lengths)]
        return [values[start:end].unique() for start, end in pairwise(borders)]  # type: ignore[no-untyped-call]
