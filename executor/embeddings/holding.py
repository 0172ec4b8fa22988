"""A slice of a table as a rank holds it: rows and their optimizer states, on the device, in host memory, or on both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from executor.embeddings.bags import Bags, RowGradients, pooled
from executor.embeddings.host import HostLink, host_of, on_host
from executor.embeddings.initial import fill, rows_of_keys
from executor.embeddings.keys import KeyTable
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
        make = torch.zeros if part.hashed else torch.empty
        weights = make(self.cut, part.width, dtype=dtype, device=device)
        self.device = Tier(weights, optimizer.states(self.cut, part.width, device))
        below = part.held_rows - self.cut
        host = host_of(device)
        self.host: Tier | None = None
        if below:
            self.host = Tier(
                on_host(below, part.width, dtype, device), optimizer.states(below, part.width, host)
            )
        self.keys = KeyTable(part.held_rows, device, name=name) if part.hashed else None
        self._made = partial(rows_of_keys, part=part, name=name, rows=rows, width=width, seed=seed)
        for tier, start in [] if part.hashed else self.tiers():
            fill(tier.weights, part, start, name=name, rows=rows, width=width, seed=seed)

    def tiers(self) -> list[tuple[Tier, int]]:
        """Each tier and the slice's row that it begins with."""
        return [(self.device, 0)] + ([(self.host, self.cut)] if self.host is not None else [])

    def lookup(self, bags: Bags, *, learn: bool = True) -> Tensor:
        """(bags, width) sums of rows; `bags` has the slice's own row numbers, or keys.

        New keys get a row where something is to be learned; else they add nothing.
        """
        if self.keys is not None:
            keys, place = bags.values.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            rows = self._rows_of(keys) if learn else self.keys.find(keys)
            bags = Bags(rows[place], bags.lengths)
            bags = bags if learn else bags.where(bags.values >= 0)
        if self.host is None:
            return pooled(self.device.weights, bags)
        rows, place = bags.values.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        self.link.lookups += len(bags.values)
        self.link.hits += int((bags.values < self.cut).sum())
        above = int(torch.searchsorted(rows, self.cut))
        fetched = self.host.weights[self.link.down(rows[above:]) - self.cut]
        used = torch.cat([self.device.weights[rows[:above]], self.link.up(fetched)])
        return pooled(used, Bags(place, bags.lengths))

    def take(self, keys: Tensor, rows: Mapping[str, Tensor]) -> None:
        """Hold these keys and no others, with their rows: `weights` and states by name."""
        assert self.keys is not None
        self.keys.clear()
        self.keys.add(keys)
        for tier, start in self.tiers():
            here = slice(start, start + len(tier.weights))
            for kind, target in {"weights": tier.weights, **tier.states}.items():
                mine = rows[kind][here]
                target.zero_()
                target[: len(mine)] = mine

    def _rows_of(self, keys: Tensor) -> Tensor:
        """(n,) rows of keys, each once; new ones get the next, and its initial values."""
        assert self.keys is not None
        rows = self.keys.find(keys)
        if len(new := (rows < 0).nonzero()[:, 0]):
            rows[new] = self.keys.add(keys[new])
            values = self._made(keys[new]).to(self.device.weights.dtype)
            for tier, start in self.tiers():
                here = (rows[new] >= start) & (rows[new] < start + len(tier.weights))
                at, mine = rows[new][here] - start, values[here]
                tier.weights[at.to(tier.weights.device)] = mine.to(tier.weights.device)
        return rows

    def update(self, gradients: RowGradients, squares: Tensor | None, rate: float, step: int) -> None:
        """Update the rows that a batch used: each in the memory in which it is. `squares`: means over whole rows."""
        rows, values = gradients.rows, gradients.values
        if self.keys is not None:
            rows, order = self._rows_of(rows).sort()
            values, squares = values[order], None if squares is None else squares[order]
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
