"""Slices of embedding tables on a rank: keys of their rows, rows on the device and in host memory, and updates.

**Hashed keys** are ids of any size, each of which gets the next free row of its slice when it is first trained on.
A hash table with open addressing (linear probing) has key and row of each, 8 B each, in so many entries that half of
them stay empty: 32 B a row. Everything is done for all keys of a batch at once, in an order that follows from the keys
and what was there, so every rank and every device that sees the same keys gives them the same rows.

**Optimizers** touch only the rows that a batch uses:

sgd              w ← w − η·g
adagrad          s ← s + g²          w ← w − η·g / (√s + ε)
rowwise-adagrad  s ← s + mean(g²)    one s a row (Gupta et al. 2014)
adam             moments of the rows used only; their correction counts all steps (Kingma & Ba 2015)

**Slices** have rows and optimizer states on the device, in host memory, or on both. Rows in host memory that a batch
uses come up for the lookup, their gradients go down for the update. On a CPU device and host memory are the same; they
are kept and counted apart, as on a GPU.

Initial rows follow from seed, table, row and column alone, so every sharding starts from the same tables: uniform
within ±1/√rows, as in the reference implementation of DLRM. Each element is a hash of its place (`executor.draws`), so
a rank makes its rows without those of others, on any device alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from cost_models.errors import InputError
from cost_models.specs.recommender.training import TableOptimizer
from executor.draws import bits_of, key_of, shifted
from executor.embeddings.bags import Bags, Counts, RowGradients, pooled
from executor.embeddings.exchanges import Slice
from executor.pinned import pinned_zeros

LOAD = 0.5
"""Share of a hash table's entries that are taken when all rows are (`hash_load` of the stack)."""
KEYS = "keys"
"""Name of the tensor that has the keys of a hashed table's rows."""
EMPTY = -(1 << 63)
"""Key of entries without a key; smaller than any id."""
_FACTOR = -7046029254386353131
_SHIFT = 32


class KeyTable:
    """Hash table from keys to row numbers, which are assigned from 0 up to `rows`."""

    def __init__(self, rows: int, device: torch.device, *, name: str) -> None:
        """Allocate the table; `name` is the embedding table's, for errors."""
        self.rows, self.name = rows, name
        entries = max(1, math.ceil(rows / LOAD))
        self.keys = torch.full((entries,), EMPTY, dtype=torch.int64, device=device)
        self.places = torch.zeros(entries, dtype=torch.int64, device=device)
        self.used = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the hash table: keys and row numbers."""
        return self.keys.nbytes + self.places.nbytes

    def find(self, keys: Tensor) -> Tensor:
        """Row of each key, (n,); −1 for keys without a row."""
        rows = torch.full_like(keys, -1)
        at, pending = self._first(keys), torch.arange(len(keys), device=keys.device)
        while len(pending):
            entries = self.keys[at[pending]]
            matches = entries == keys[pending]
            rows[pending[matches]] = self.places[at[pending[matches]]]
            pending = pending[~matches & (entries != EMPTY)]
            at[pending] = (at[pending] + 1) % len(self.keys)
        return rows

    def add(self, keys: Tensor) -> Tensor:
        """Assign the next free rows, (n,), to distinct keys without a row, and return these.

        Raises:
            InputError: there are not as many left.
        """
        if self.used + len(keys) > self.rows:
            raise InputError(
                f"table `{self.name}` has no row left for {self.used + len(keys) - self.rows} new keys: all"
                f" {self.rows} that lie here are taken",
                hint="more `rows` of the table; a rank that holds a part of them needs some to spare",
            )
        rows = torch.arange(self.used, self.used + len(keys), device=keys.device)
        at, pending = self._first(keys), torch.arange(len(keys), device=keys.device)
        while len(pending):
            candidates = pending[self.keys[at[pending]] == EMPTY]
            candidates = candidates[at[candidates].argsort(stable=True)]
            target = at[candidates]
            first = torch.ones(len(candidates), dtype=torch.bool, device=keys.device)
            first[1:] = target[1:] != target[:-1]
            placed_keys = candidates[first]
            self.keys[at[placed_keys]], self.places[at[placed_keys]] = keys[placed_keys], rows[placed_keys]
            pending = pending[self.keys[at[pending]] != keys[pending]]
            at[pending] = (at[pending] + 1) % len(self.keys)
        self.used += len(keys)
        return rows

    def by_row(self) -> Tensor:
        """Key of each row, (rows,); EMPTY for rows without a key."""
        keys = torch.full((self.rows,), EMPTY, dtype=torch.int64, device=self.keys.device)
        is_used = self.keys != EMPTY
        keys[self.places[is_used]] = self.keys[is_used]
        return keys

    def clear(self) -> None:
        """Forget all keys."""
        self.keys.fill_(EMPTY)
        self.used = 0

    def _first(self, keys: Tensor) -> Tensor:
        """Entry at which the search for each key begins, (n,)."""
        mixed = keys * _FACTOR
        mixed = (mixed ^ ((mixed >> _SHIFT) & ((1 << _SHIFT) - 1))) * _FACTOR
        return (mixed >> 1 & ((1 << 62) - 1)) % len(self.keys)


_EPSILON = 1e-8
_BETAS = (0.9, 0.999)
_STATES: dict[TableOptimizer, tuple[str, ...]] = {
    "sgd": (),
    "rowwise-adagrad": ("momentum",),
    "adagrad": ("momentum",),
    "adam": ("exp_avg", "exp_avg_sq"),
}


@dataclass(frozen=True, slots=True)
class RowOptimizer:
    """Update rule of embedding rows, the same for all tables."""

    kind: TableOptimizer

    @property
    def by_row(self) -> bool:
        """Whether the optimizer keeps one number for each row, whatever the row's width."""
        return self.kind == "rowwise-adagrad"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of a row's tensors: `weights` and the optimizer's states."""
        return "weights", *_STATES[self.kind]

    def tier(self, weights: Tensor) -> Tier:
        """Tier of these rows, (n, width), with states of zeros, (n, width) or (n,)."""
        shape = weights.shape[:1] if self.by_row else weights.shape
        return Tier(weights, {name: torch.zeros(shape, device=weights.device) for name in _STATES[self.kind]})

    def apply(self, tier: Tier, used: RowGradients, squares: Tensor | None, rate: float, step: int) -> None:
        """Update the rows of a tier that have gradients; `squares` are means over whole rows, `step` counts from 1."""
        weights, rows = tier.weights, used.rows
        change = self._change(tier.states, rows, used.values.float(), squares, step)
        weights[rows] = weights[rows].float().sub_(change, alpha=rate).to(weights.dtype)

    def _change(
        self, states: dict[str, Tensor], rows: Tensor, gradients: Tensor, squares: Tensor | None, step: int
    ) -> Tensor:
        """Change of each row in units of the learning rate; updates the states."""
        if self.kind == "sgd":
            return gradients
        if self.kind == "adam":
            first, second = _BETAS
            mean = states["exp_avg"][rows].mul_(first).add_(gradients, alpha=1 - first)
            square = states["exp_avg_sq"][rows].mul_(second).addcmul_(gradients, gradients, value=1 - second)
            states["exp_avg"][rows], states["exp_avg_sq"][rows] = mean, square
            scale = (square / (1 - second**step)).sqrt_().add_(_EPSILON)
            return mean / (1 - first**step) / scale
        squares_sum = gradients.square() if squares is None else squares
        momentum = states["momentum"]
        total = momentum[rows] + squares_sum
        momentum[rows] = total
        scale = total.sqrt() + _EPSILON
        return gradients / (scale if squares is None else scale[:, None])


@dataclass(frozen=True, slots=True)
class Tier:
    """Rows of a slice in one memory (device or host), with their optimizer states."""

    weights: Tensor
    """Rows, (rows, width)."""
    states: dict[str, Tensor]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Weights and states by name."""
        return {"weights": self.weights, **self.states}

    @property
    def nbytes(self) -> int:
        """Bytes of the tier's rows and states."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class Holding:
    """All rows of one slice on this rank: the first `device_rows` on the device, the rest in host memory."""

    def __init__(
        self, part: Slice, initial: InitialRows, dtype: torch.dtype, optimizer: RowOptimizer, link: HostLink
    ) -> None:
        self.part, self.initial, self.optimizer, self.link = part, initial, optimizer, link
        self.cut, device = part.device_rows, link.device
        make = torch.zeros if part.hashed else torch.empty
        self.device = optimizer.tier(make(self.cut, part.width, dtype=dtype, device=device))
        host_rows = part.held_rows - self.cut
        self.host: Tier | None = None
        if host_rows:
            self.host = optimizer.tier(on_host(host_rows, part.width, dtype, device))
        self.keys = KeyTable(part.held_rows, device, name=initial.name) if part.hashed else None

    def fill(self) -> None:
        """Initialise the rows; rows of hashed keys are initialised when a key first comes."""
        for tier, start in [] if self.part.hashed else self.tiers():
            self.initial.fill(tier.weights, self.part, start)

    def tiers(self) -> list[tuple[Tier, int]]:
        """Each tier, with the number of its first row in the slice."""
        return [(self.device, 0)] + ([(self.host, self.cut)] if self.host is not None else [])

    def lookup(self, bags: Bags, *, learn: bool = True) -> Tensor:
        """Sum of the rows of each bag, (bags, width); `bags` has row numbers of the slice, or keys.

        New keys get a row where something is to be learned; else they add nothing.
        """
        if self.keys is not None:
            keys, place = bags.values.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            rows = self._rows_of(keys) if learn else self.keys.find(keys)
            bags = Bags(rows[place], bags.lengths)
            bags = bags if learn else bags.masked(bags.values >= 0)
        if self.host is None:
            return pooled(self.device.weights, bags)
        rows, place = bags.values.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        hits = int((bags.values < self.cut).sum())
        self.link.counts.update(lookups=len(bags.values), hits=hits)
        device_count = int(torch.searchsorted(rows, self.cut))
        fetched = self.host.weights[self.link.down(rows[device_count:]) - self.cut]
        vectors = torch.cat([self.device.weights[rows[:device_count]], self.link.up(fetched)])
        return pooled(vectors, Bags(place, bags.lengths))

    def take(self, rows: Mapping[str, Tensor]) -> None:
        """Replace all rows by these: `weights` and states by name, and of a hashed slice their `KEYS`."""
        if self.keys is not None:
            self.keys.clear()
            self.keys.add(rows[KEYS])
        for tier, start in self.tiers():
            for kind, target in tier.tensors.items():
                values = rows[kind][start : start + len(target)]
                target.zero_()
                target[: len(values)] = values

    def _rows_of(self, keys: Tensor) -> Tensor:
        """Row of each of these distinct keys, (n,); a new key gets the next free row, with initial values."""
        assert self.keys is not None
        rows = self.keys.find(keys)
        if len(new := (rows < 0).nonzero()[:, 0]):
            rows[new] = self.keys.add(keys[new])
            values = self.initial.of_keys(keys[new], self.part).to(self.device.weights.dtype)
            for tier, start in self.tiers():
                in_tier = (rows[new] >= start) & (rows[new] < start + len(tier.weights))
                at, tier_values = rows[new][in_tier] - start, values[in_tier]
                tier.weights[at.to(tier.weights.device)] = tier_values.to(tier.weights.device)
        return rows

    def update(self, gradients: RowGradients, squares: Tensor | None, rate: float, step: int) -> None:
        """Update the rows that a batch used, on the device or in host memory; `squares` are means over whole rows."""
        rows, values = gradients.rows, gradients.values
        if self.keys is not None:
            rows, order = self._rows_of(rows).sort()
            values, squares = values[order], None if squares is None else squares[order]
        split = len(rows) if self.host is None else int(torch.searchsorted(rows, self.cut))
        on_device, on_host = (None, None) if squares is None else (squares[:split], squares[split:])
        apply, down = self.optimizer.apply, self.link.down
        if split:
            apply(self.device, RowGradients(rows[:split], values[:split]), on_device, rate, step)
        if self.host is not None and split < len(rows):
            used = RowGradients(down(rows[split:]) - self.cut, down(values[split:]))
            mean = None if on_host is None else down(on_host)
            apply(self.host, used, mean, rate, step)


class HostLink:
    """Copies between a device and host memory.

    Counts `up_bytes`, `down_bytes`, and of slices that have rows in host memory `lookups` and `hits`: lookups whose
    rows are on the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.counts = device, Counts()

    def up(self, values: Tensor) -> Tensor:
        """Copy values from host memory to the device, and count their bytes."""
        self.counts["up_bytes"] += values.nbytes
        return values.to(self.device)

    def down(self, values: Tensor) -> Tensor:
        """Copy values from the device to host memory, and count their bytes."""
        self.counts["down_bytes"] += values.nbytes
        return values.to("cpu")


def on_host(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, (rows, width), in host memory, pinned if the device is a GPU."""
    if device.type == "cuda":
        return pinned_zeros(rows * width, dtype).view(rows, width)
    return torch.zeros(rows, width, dtype=dtype, device=device if device.type == "meta" else "cpu")


_AT_ONCE = 1 << 22
"""Elements of initial rows that are made at a time."""
_MANTISSA = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialRows:
    """Initial values of a table's rows, (`rows`, `width`), which follow from seed, name, row and column."""

    name: str
    rows: int
    width: int
    seed: int

    def fill(self, weights: Tensor, part: Slice, from_row: int) -> None:
        """Fill weights (n, part.width) with initial values of the slice's rows from its row `from_row` on."""
        chunk = max(1, _AT_ONCE // max(1, part.width))
        for begin in range(0, 0 if weights.is_meta else len(weights), chunk):
            end = min(len(weights), begin + chunk)
            numbers = torch.arange(from_row + begin, from_row + end, device=weights.device)
            weights[begin:end] = self._of(part.first + part.residue + part.ways * numbers, part)

    def of_keys(self, keys: Tensor, part: Slice) -> Tensor:
        """Initial rows, (n, part.width), of keys of a hashed slice: those that the table's rows would have if
        ids were row numbers."""
        return self._of(part.residue + part.ways * keys, part)

    def _of(self, numbers: Tensor, part: Slice) -> Tensor:
        """Initial values of a slice's columns in the table's rows with these numbers."""
        columns = torch.arange(part.begin, part.end, device=numbers.device)
        bits = bits_of(numbers[:, None] * self.width + columns, key_of(self.seed, self.name))
        uniform = shifted(bits, 64 - _MANTISSA).float() / (1 << _MANTISSA)  # in [0, 1)
        return (2.0 * uniform - 1.0) / sqrt(self.rows)
