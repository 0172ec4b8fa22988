"""Hashed keys: ids of any size, each of which gets the next free row of its slice when it is first trained on.

A hash table with open addressing (linear probing) has key and row of each, 8 B each, in so many entries that half of
them stay empty: 32 B a row. Everything is done for all keys of a batch at once, in an order that follows from the keys
and what was there, so every rank and every device that sees the same keys gives them the same rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cost_models.errors import InputError

LOAD = 0.5
"""Share of the entries that are taken when all rows are (`hash_load` of the stack)."""
EMPTY = -(1 << 63)
"""What stands where no key is; no id is so small."""
_FACTOR = -7046029254386353131
_SHIFT = 32


class KeyTable:
    """A hash table from keys to rows, which are assigned from 0 up to `rows`."""

    def __init__(self, rows: int, device: torch.device, *, name: str) -> None:
        """`name` of the table, for errors."""
        self.rows, self.name = rows, name
        entries = max(1, math.ceil(rows / LOAD))
        self.keys = torch.full((entries,), EMPTY, dtype=torch.int64, device=device)
        self.places = torch.zeros(entries, dtype=torch.int64, device=device)
        self.used = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its entries."""
        return self.keys.nbytes + self.places.nbytes

    def find(self, keys: Tensor) -> Tensor:
        """(n,) rows of keys; −1 of those that have none."""
        found = torch.full_like(keys, -1)
        at, pending = self._first(keys), torch.arange(len(keys), device=keys.device)
        while len(pending):
            there = self.keys[at[pending]]
            same = there == keys[pending]
            found[pending[same]] = self.places[at[pending[same]]]
            pending = pending[~same & (there != EMPTY)]
            at[pending] = (at[pending] + 1) % len(self.keys)
        return found

    def add(self, keys: Tensor) -> Tensor:
        """(n,) keys that have no row, each once → the rows that they get, one after another.

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
            mine = pending[self.keys[at[pending]] == EMPTY]
            mine = mine[at[mine].argsort(stable=True)]
            wanted = at[mine]
            first = torch.ones(len(mine), dtype=torch.bool, device=keys.device)
            first[1:] = wanted[1:] != wanted[:-1]
            put = mine[first]
            self.keys[at[put]], self.places[at[put]] = keys[put], rows[put]
            pending = pending[self.keys[at[pending]] != keys[pending]]
            at[pending] = (at[pending] + 1) % len(self.keys)
        self.used += len(keys)
        return rows

    def by_row(self) -> Tensor:
        """(rows,) the key of each row; EMPTY where it has none."""
        keys = torch.full((self.rows,), EMPTY, dtype=torch.int64, device=self.keys.device)
        taken = self.keys != EMPTY
        keys[self.places[taken]] = self.keys[taken]
        return keys

    def clear(self) -> None:
        """Forget all keys."""
        self.keys.fill_(EMPTY)
        self.used = 0

    def _first(self, keys: Tensor) -> Tensor:
        """(n,) entry at which the search for each key begins."""
        mixed = keys * _FACTOR
        mixed = (mixed ^ ((mixed >> _SHIFT) & ((1 << _SHIFT) - 1))) * _FACTOR
        return (mixed >> 1 & ((1 << 62) - 1)) % len(self.keys)
