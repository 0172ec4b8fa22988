"""Bytes that a rank sends to others in a step, from tables and sharding alone: what counters must show to the byte.

Of W ranks, b samples of each, slices of D columns with P bags a sample, e bytes an element:

    whole, column    forward b·P·D·e to each other rank from the holder; backward as much from each other rank to it
    row              forward and backward (W − 1)·b·P·D·e from every rank
    node-row         forward (L − 1)·N·b·P·D·e in its node, b·P·D·e to each other node; backward as much
    dense network    (W − 1)·⌈parameters / W⌉·4, twice: its sums are scattered, then gathered
    ids              8 of each that goes to another rank, 4 of the length of each bag there
    copies           (W − 1)·(D·e + 8) of each row that this rank's samples use, 8 for how many of each table

Leaves out the sums of squares that row-wise Adagrad's column slices exchange in the update: 8 bytes a row used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from cost_models.recommender.priced import STAGES
from executor.embeddings.places import Places, Slice

_ID_BYTES, _LENGTH_BYTES, _FP32 = 8, 4, 4


def sent_bytes(
    slices: Sequence[Slice],
    places: Places,
    rank: int,
    *,
    samples: int,
    element_bytes: int,
    dense_parameters: int,
    ids: Sequence[Tensor],
) -> dict[str, int]:
    """Stage → bytes that this rank sends in a step with these ids of its own samples, by table."""
    ranks, total = places.ranks, Counter(dict.fromkeys(STAGES, 0))
    for one in slices:
        here = ids[one.table]
        if not one.hashed:
            here = here[(here >= one.first) & (here < one.first + one.rows)] - one.first
        if one.rank is None:
            if ranks > 1:
                rows = len(set(here.tolist()))
                row_bytes = one.width * element_bytes + _ID_BYTES
                total[STAGES.backward_exchange] += (ranks - 1) * (rows * row_bytes + _ID_BYTES)
            continue
        vectors = samples * one.bags * one.width * element_bytes
        mine = one.rank == rank
        if not mine:
            asked = int((here % one.ways == one.residue).sum())
            total[STAGES.index_exchange] += samples * one.bags * _LENGTH_BYTES + asked * _ID_BYTES
        if one.form == "row":
            total[STAGES.forward_exchange] += (ranks - 1) * vectors * mine
            total[STAGES.backward_exchange] += (ranks - 1) * vectors * mine
        elif one.form == "node-row":
            in_node = (places.per_node - 1) * places.nodes * vectors
            total[STAGES.forward_exchange] += (in_node + (places.nodes - 1) * vectors) * mine
            total[STAGES.backward_exchange] += in_node * mine
            same_place = one.rank % places.per_node == rank % places.per_node
            total[STAGES.backward_exchange] += vectors * (same_place and not mine)
        else:
            total[STAGES.forward_exchange] += (ranks - 1) * vectors * mine
            total[STAGES.backward_exchange] += vectors * (not mine)
    if ranks > 1:
        total[STAGES.update] += 2 * (ranks - 1) * -(-dense_parameters // ranks) * _FP32
    return dict(total)
