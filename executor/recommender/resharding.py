"""Rows of sharded tables in checkpoints, in an order that any sharding can read.

Rows that ranks hold in turn are saved as blocks of consecutive rows. Of w slices of a part of a table slice ρ holds
rows ρ, ρ + w, ρ + 2w, ...; block k is the k-th w-th of the part.

Rows of hashed tables are saved with their keys. Slices of a part lie one after another in the tensors of the whole
table, in the order of their residues, rows in the order in which their keys came; of a copy, which every rank fills in
another order, by key. Rows without a key are zero.
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

Pair = tuple[Slice, Slice]
"""The slice that rows come from or go to, and the slice in whose place the block is."""


def block_rows(one: Slice) -> tuple[int, int]:
    """The block in a slice's place: its first row in the part, and the end."""
    size = -(-one.rows // one.ways)
    return min(one.residue * size, one.rows), min((one.residue + 1) * size, one.rows)


def to_blocks(
    peers: Peers, siblings: Sequence[Slice], mine: Mapping[Slice, Tensor], none: Tensor
) -> dict[Slice, Tensor]:
    """(held rows, ...) of this rank's slices of a part → (block's rows, ...) in their places.

    `siblings` are all slices of the part; every rank calls it, with `none` of such rows where it has no slice.
    """
    sends = {(one, at): rows[slice(*_shared(one, at))] for one, rows in mine.items() for at in siblings}
    pairs = [(one, at) for one in siblings for at in mine]
    came = _exchanged(peers, sends, pairs, none, to_block=True)
    blocks = {}
    for at in mine:
        begin, end = block_rows(at)
        block = none.new_empty(end - begin, *none.shape[1:])
        for one in siblings:
            block[(one.residue - begin) % one.ways :: one.ways] = came[one, at]
        blocks[at] = block
    return blocks


def from_blocks(
    peers: Peers, siblings: Sequence[Slice], blocks: Mapping[Slice, Tensor], none: Tensor
) -> dict[Slice, Tensor]:
    """Blocks as `to_blocks` returns them → rows of this rank's slices."""
    sends = {
        (one, at): block[(one.residue - block_rows(at)[0]) % one.ways :: one.ways]
        for at, block in blocks.items()
        for one in siblings
    }
    pairs = [(one, at) for at in siblings for one in blocks]
    came = _exchanged(peers, sends, pairs, none, to_block=False)
    return {one: torch.cat([came[one, at] for at in siblings]) for one in blocks}


def _shared(one: Slice, at: Slice) -> tuple[int, int]:
    """Which of a slice's own rows lie in a block: the first, and the end."""
    begin, end = (max(0, -(-(border - one.residue) // one.ways)) for border in block_rows(at))
    return min(begin, one.held_rows), min(end, one.held_rows)


def _exchanged(
    peers: Peers, sends: Mapping[Pair, Tensor], comes: Sequence[Pair], none: Tensor, *, to_block: bool
) -> dict[Pair, Tensor]:
    """Rows to and from blocks, in the order of `sends` and `comes`, which is that of sender, then receiver."""
    source, target = (0, 1) if to_block else (1, 0)
    messages = [
        torch.cat([none, *(rows for pair, rows in sends.items() if pair[target].rank == rank)]).view(-1)
        for rank in range(peers.size)
    ]
    row = prod(none.shape[1:])
    pairs = [[pair for pair in comes if pair[source].rank == rank] for rank in range(peers.size)]
    counts = [[row * (end - begin) for begin, end in (_shared(*pair) for pair in of)] for of in pairs]
    came = peers.all_to_all(messages, [sum(of) for of in counts])
    return {
        pair: part.view(-1, *none.shape[1:])
        for of, message, sizes in zip(pairs, came, counts, strict=True)
        for pair, part in zip(of, cut(message, sizes), strict=True)
    }


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
        found = _keyed_exchanged(peers, siblings, found, none)
    for one, rows in found.items():
        held[one].take(torch.div(rows[KEYS], ways, rounding_mode="floor"), rows)


def _keyed_exchanged(
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
