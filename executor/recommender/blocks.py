"""Rows that ranks hold in turn, as blocks of rows side by side: what checkpoints hold, and any sharding can read.

Of w slices of a part of a table slice ρ holds rows ρ, ρ + w, ρ + 2w, ...; block k is the k-th w-th of the part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from executor.embeddings.bags import cut
from executor.embeddings.exchanges import Peers
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
    came = _traded(peers, sends, pairs, none, to_block=True)
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
    """What `to_blocks` made → rows of this rank's slices."""
    sends = {
        (one, at): block[(one.residue - block_rows(at)[0]) % one.ways :: one.ways]
        for at, block in blocks.items()
        for one in siblings
    }
    pairs = [(one, at) for at in siblings for one in blocks]
    came = _traded(peers, sends, pairs, none, to_block=False)
    return {one: torch.cat([came[one, at] for at in siblings]) for one in blocks}


def _shared(one: Slice, at: Slice) -> tuple[int, int]:
    """Which of a slice's own rows lie in a block: the first, and the end."""
    begin, end = (max(0, -(-(border - one.residue) // one.ways)) for border in block_rows(at))
    return min(begin, one.held_rows), min(end, one.held_rows)


def _traded(
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
