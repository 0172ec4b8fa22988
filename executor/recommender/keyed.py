"""Rows of hashed tables in checkpoints: beside each row its key, so that any sharding finds it a place again.

Slices of a part lie one after another in the tensors of the whole table, in the order of their residues, rows as their
keys came; of a copy, which every rank fills in another order, by key. Rows without a key are zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from executor.embeddings.bags import cut
from executor.embeddings.exchanges import Peers
from executor.embeddings.holding import Holding
from executor.embeddings.keys import EMPTY
from executor.embeddings.places import Slice

KEYS = "keys"
"""Kind of the tensor that has the keys."""
Rows = dict[str, Tensor]
"""Kind → values of all rows of a slice: `keys`, `weights`, states."""


def rows_with_keys(one: Slice, holding: Holding, kinds: Mapping[str, Tensor]) -> Rows:
    """A slice's rows as a checkpoint has them; `kinds` has weights and states in the order in which it holds them."""
    assert holding.keys is not None
    keys = holding.keys.by_row()
    order = keys.argsort() if one.rank is None else torch.arange(len(keys), device=keys.device)
    used = keys[order] != EMPTY
    whole = torch.where(used, keys[order] * one.ways + one.residue, EMPTY)
    return {KEYS: whole} | {kind: values[order.to(values.device)] for kind, values in kinds.items()}


def put_back(
    peers: Peers,
    siblings: Sequence[Slice],
    loaded: Mapping[Slice, Rows],
    held: Mapping[Slice, Holding],
    none: Rows,
) -> None:
    """Give rows that were loaded, in whatever order, to the slices of their keys.

    `siblings` are all slices of the part; every rank calls it, with `none` of such rows by kind.
    """
    ways = siblings[0].ways
    found = {
        one: {kind: values[rows[KEYS] != EMPTY] for kind, values in rows.items()}
        for one, rows in loaded.items()
    }
    if ways > 1:
        found = _traded(peers, siblings, found, none)
    for one, rows in found.items():
        held[one].take(torch.div(rows[KEYS], ways, rounding_mode="floor"), rows)


def _traded(
    peers: Peers, siblings: Sequence[Slice], found: Mapping[Slice, Rows], none: Rows
) -> dict[Slice, Rows]:
    """Rows of each slice's block → rows whose keys lie in it, from all blocks in their order."""
    ways = len(siblings)
    order = sorted(siblings, key=lambda one: one.residue)
    owner = {one: rows[KEYS] % ways for one, rows in found.items()}
    sent = torch.zeros(ways, ways, dtype=torch.int64, device=none[KEYS].device)
    for one, to in owner.items():
        sent[one.residue] = to.bincount(minlength=ways)
    counts = peers.all_gather(sent.view(-1)).view(peers.size, ways, ways).sum(0).tolist()
    here = [one for one in order if one.rank == peers.rank]
    from_rank = [[one for one in order if one.rank == rank] for rank in range(peers.size)]
    taken: dict[Slice, Rows] = {one: {} for one in here}
    for kind, empty in none.items():
        sends = [
            torch.cat(
                [empty, *(found[one][kind][owner[one] == to.residue] for one in here for to in of)]
            ).view(-1)
            for of in from_rank
        ]
        row = prod(empty.shape[1:])
        sizes = [[row * counts[one.residue][to.residue] for one in of for to in here] for of in from_rank]
        came = peers.all_to_all(sends, [sum(of) for of in sizes])
        parts: dict[Slice, list[Tensor]] = {one: [empty] for one in here}
        for of, message, lengths in zip(from_rank, came, sizes, strict=True):
            for mine, part in zip([to for _ in of for to in here], cut(message, lengths), strict=True):
                parts[mine].append(part.view(-1, *empty.shape[1:]))
        for one in here:
            taken[one][kind] = torch.cat(parts[one])
    return taken
