"""A slice of a table as a rank holds it: rows and their optimizer states, on the device, in host memory, or on both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from executor.embeddings.bags import Bags, RowGradients, pooled
from executor.embeddings.host import HostLink, host_of, on_host
from executor.embeddings.initial import fill
from executor.embeddings.places import Slice
from executor.embeddings.updating import RowOptimizer


@dataclass(frozen=True, slots=True)
class Tier:
    """Rows in one memory."""

    weights: Tensor
    """(rows, width)"""
    states: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of rows and states."""
        return self.weights.nbytes + sum(one.nbytes for one in self.states.values())


class Holding:
    """The rows of one slice: the first `device_rows` on the device, the rest in host memory."""

    def __init__(
        self,
        part: Slice,
        *,
        name: str,
        rows: int,
        width: int,
        seed: int,
        dtype: torch.dtype,
        optimizer: RowOptimizer,
        link: HostLink,
    ) -> None:
        self.part, self.optimizer, self.link = part, optimizer, link
        self.cut = part.device_rows
        device = link.device
        weights = torch.empty(self.cut, part.width, dtype=dtype, device=device)
        self.device = Tier(weights, optimizer.states(self.cut, part.width, device))
        below = part.held_rows - self.cut
        host = host_of(device)
        self.host: Tier | None = None
        if below:
            self.host = Tier(
                on_host(below, part.width, dtype, device), optimizer.states(below, part.width, host)
            )
        for tier, start in self.tiers():
            fill(tier.weights, part, start, name=name, rows=rows, width=width, seed=seed)

    def tiers(self) -> list[tuple[Tier, int]]:
        """Each tier and the slice's row that it begins with."""
        return [(self.device, 0)] + ([(self.host, self.cut)] if self.host is not None else [])

    def lookup(self, bags: Bags) -> Tensor:
        """(bags, width) sums of rows; `bags` has the slice's own row numbers."""
        if self.host is None:
            return pooled(self.device.weights, bags)
        rows, place = bags.values.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        self.link.lookups += len(bags.values)
        self.link.hits += int((bags.values < self.cut).sum())
        above = int(torch.searchsorted(rows, self.cut))
        fetched = self.host.weights[self.link.down(rows[above:]) - self.cut]
        used = torch.cat([self.device.weights[rows[:above]], self.link.up(fetched)])
        return pooled(used, Bags(place, bags.lengths))

    def update(self, gradients: RowGradients, squares: Tensor | None, rate: float, step: int) -> None:
        """Update the rows that a batch used: each in the memory in which it is. `squares`: means over whole rows."""
        rows, values = gradients.rows, gradients.values
        above = int(torch.searchsorted(rows, self.cut)) if self.host is not None else len(rows)
        if above:
            mean = None if squares is None else squares[:above]
            self.optimizer.apply(
                self.device.weights, self.device.states, rows[:above], values[:above], mean, rate, step
            )
        if self.host is not None and above < len(rows):
            mean = None if squares is None else self.link.down(squares[above:])
            mine = self.link.down(rows[above:]) - self.cut
            gradient = self.link.down(values[above:])
            self.optimizer.apply(self.host.weights, self.host.states, mine, gradient, mean, rate, step)
