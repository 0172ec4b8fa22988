"""Ids of samples as they are looked up: values in bags, of which each becomes one vector.

A table whose vectors are added up or averaged has one bag a sample. With `concat` each place of a sample is a bag of
its own, empty where the sample has fewer ids, so that a lookup is a sum over bags whatever the combiner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from executor.pinned import carried_to

_RUN = 64
"""Rows that are added one after the other to a row's gradient."""


@dataclass(frozen=True, slots=True)
class Bags:
    """Jagged ids: the first `lengths[0]` values are those of the first bag, and so on."""

    values: Tensor
    """(N,) int64 row numbers."""
    lengths: Tensor
    """(bags,) int32 values of each bag."""

    @property
    def offsets(self) -> Tensor:
        """(bags + 1,) where each bag begins, and the end."""
        return F.pad(self.lengths.cumsum(0, dtype=torch.int64), (1, 0))

    def bag_of_value(self) -> Tensor:
        """(N,) number of the bag that each value is in."""
        bags = torch.arange(len(self.lengths), device=self.values.device)
        return bags.repeat_interleave(self.lengths, output_size=len(self.values))

    def to(self, device: torch.device) -> Bags:
        """The same on a device."""
        return Bags(carried_to(device, self.values), carried_to(device, self.lengths))

    def split(self, ways: int) -> list[Bags]:
        """Value v goes to part v mod `ways` as v div `ways`; every part has all bags, in their order."""
        if ways == 1:
            return [self]
        part = self.values % ways
        order = part.argsort(stable=True)
        cell = part * len(self.lengths) + self.bag_of_value()
        lengths = cell.bincount(minlength=ways * len(self.lengths)).view(ways, -1)
        values = cut(self.values[order] // ways, lengths.sum(1).tolist())
        return [Bags(mine, of.to(torch.int32)) for mine, of in zip(values, lengths, strict=True)]

    def where(self, wanted: Tensor) -> Bags:
        """(N,) bool → the values that are wanted, in the bags they were in."""
        lengths = self.bag_of_value()[wanted].bincount(minlength=len(self.lengths))
        return Bags(self.values[wanted], lengths.to(torch.int32))

    def moved(self, by: int) -> Bags:
        """The same bags with rows that are numbered from `by` on."""
        return Bags(self.values - by, self.lengths) if by else self

    def concatenated(self, per_sample: int) -> Bags:
        """Bags of samples → `per_sample` bags of each, one value in each of them.

        Raises:
            ValueError: a sample has more values than that.
        """
        if len(self.lengths) and int(self.lengths.max()) > per_sample:
            raise ValueError(f"a sample has {int(self.lengths.max())} ids, `concat` takes {per_sample}")
        places = torch.arange(per_sample, device=self.lengths.device)
        return Bags(self.values, (places < self.lengths[:, None]).flatten().to(torch.int32))


def cut(tensor: Tensor, sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of these sizes, one after another along a dim."""
    return torch.split(tensor, list(sizes), dim)


def joined(parts: list[Bags]) -> Bags:
    """The bags of several, one after another."""
    return Bags(torch.cat([one.values for one in parts]), torch.cat([one.lengths for one in parts]))


def pooled(weights: Tensor, bags: Bags) -> Tensor:
    """(bags, D) sum of the rows of each bag, added in the order of its values."""
    return F.embedding_bag(bags.values, weights, bags.offsets, mode="sum", include_last_offset=True)


@dataclass(frozen=True, slots=True)
class RowGradients:
    """Gradients of the rows that a batch uses."""

    rows: Tensor
    """(U,) row numbers, rising."""
    values: Tensor
    """(U, D)"""

    def pieces(self, most: int) -> list[RowGradients]:
        """The same, of so many rows at most each; one piece where there are none."""
        parts = (torch.split(one, max(most, 1)) for one in (self.rows, self.values))
        return [RowGradients(rows, values) for rows, values in zip(*parts, strict=True)]


def row_gradients(bags: Bags, gradients: Tensor) -> RowGradients:
    """(bags, D) gradients of what was looked up → of each row, added in the order of bags and values.

    Sorting makes it a lookup, too: of the bags that each row is in. So the sum has one order on every device.
    """
    values, order = bags.values.sort(stable=True)
    rows, counts = values.unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
    users = Bags(bags.bag_of_value()[order], counts)
    del values, order
    if not len(counts) or int(counts.max()) <= _RUN:
        return RowGradients(rows, pooled(gradients, users))
    hot = counts > _RUN
    of_hot = hot.repeat_interleave(counts)
    sums = pooled(gradients, Bags(users.values[~of_hot], counts.masked_fill(hot, 0)))
    sums[hot] = _pooled_in_runs(gradients, Bags(users.values[of_hot], counts[hot]))
    return RowGradients(rows, sums)


def _pooled_in_runs(weights: Tensor, bags: Bags) -> Tensor:
    """(bags, D) sum of the rows of each bag, `_RUN` at a time, then of these sums, in fp32 between.

    A GPU adds the rows of a bag one after the other: a row that half of a batch uses would take longer than all others.
    """
    dtype, lengths = weights.dtype, bags.lengths
    while int(lengths.max()) > _RUN:
        runs = (lengths + _RUN - 1) // _RUN
        of_run = torch.full((int(runs.sum()),), _RUN, dtype=lengths.dtype, device=lengths.device)
        of_run[runs.cumsum(0) - 1] = lengths - (runs - 1) * _RUN
        weights = pooled(weights.float(), Bags(bags.values, of_run))
        bags, lengths = Bags(torch.arange(len(of_run), device=lengths.device), runs), runs
    return pooled(weights, bags).to(dtype)
