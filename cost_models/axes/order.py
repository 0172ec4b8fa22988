"""The order in which mesh axes fill a cluster's ranks: which groups are neighbours, and so which stay inside a node.

`tp-cp-dp-pp` reads from the inside out: tensor-parallel ranks are neighbours, context ranks lie tp apart, data ranks
tp · cp, pipeline ranks tp · cp · dp. tp is always innermost: docs/decisions/0007-tensor-ranks-are-neighbours.md.

Axes of degree one have no place: with cp1 `tp-cp-dp-pp` and `tp-dp-cp-pp` seat every rank alike, and the first of
`ORDERS` stands for all that do.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Ints
from cost_models.specs.choices import ORDERS, Order

OUTERMOST_REPLICAS: Order = "tp-cp-pp-dp"
"""Megatron's other one: each replica of the model on neighbouring ranks, as where it lies whole in one pool."""

_MESH_AXES = ("cp", "dp", "pp")
"""Outside tp."""


def same_seats(cp: int, dp: int, pp: int) -> tuple[int, ...]:
    """For each of `ORDERS` the index of the first that seats the ranks of such a mesh alike."""
    return _SAME_SEATS[(cp > 1) + 2 * (dp > 1) + 4 * (pp > 1)]


def first_same(order: Order, cp: int, dp: int, pp: int) -> Order:
    """The order that stands for all that seat the ranks of such a mesh as `order` does."""
    return ORDERS[same_seats(cp, dp, pp)[ORDERS.index(order)]]


def _seats_alike(bits: int) -> tuple[int, ...]:
    """`same_seats` of a mesh whose cp, dp, pp are above one where these bits, from the lowest, are set."""
    there = {axis for bit, axis in enumerate(_MESH_AXES) if bits >> bit & 1}
    seats = [tuple(axis for axis in order.split("-") if axis in there) for order in ORDERS]
    return tuple(seats.index(seat) for seat in seats)


_SAME_SEATS = tuple(_seats_alike(bits) for bits in range(8))
_SEATS_OF = np.array(_SAME_SEATS, dtype=np.int64)


def same_seats_of(cp: Ints, dp: Ints, pp: Ints) -> Ints:
    """(N, orders): `same_seats` of N meshes."""
    table: Ints = _SEATS_OF[(cp > 1) + 2 * (dp > 1) + 4 * (pp > 1)]
    return table


_INSIDE: dict[str, Ints] = {
    axis: np.array(
        [[int(order.index(other) < order.index(axis)) for other in _MESH_AXES] for order in ORDERS],
        dtype=np.int64,
    )
    for axis in _MESH_AXES
}
"""Axis → (orders, 3): which of cp, dp, pp lie inside it."""


def ranks_inside(axis: str, order: Ints, tp: Ints, cp: Ints, dp: Ints, pp: Ints) -> Ints:
    """(N,) ranks between neighbours of an axis: tp and the degrees of the axes inside it, multiplied."""
    inside = _INSIDE[axis][order]
    stride: Ints = tp * cp ** inside[:, 0] * dp ** inside[:, 1] * pp ** inside[:, 2]
    return stride
