"""What the ranks not filled yet add to a sum over all ranks, at least and at most.

Shape legend: R ranks, B numbers of blocks, C sums, L blocks in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.schedules import CriticalPath
from planner.exact.labels.choices import Choices
from planner.placement.leaf import Bools, Floats


def all_ways(choices: Choices) -> Bools:
    """(R, L + 1, B): whether a rank with so many blocks before it may hold so many, by its own choices alone."""
    shape = (choices.leaf.pp, choices.leaf.num_layers + 1, len(choices.sizes))
    return np.broadcast_to(choices.useful[:, None, :], shape)


def least_remaining(choices: Choices, ways: Bools, added_CRB: Floats) -> Floats:
    """(R + 1, C, L + 1): least that ranks r and later add where so many blocks lie before them; infinite where
    impossible.

    `ways` (R, L + 1, B) are those that are left of `all_ways`.
    """
    layers, pp = choices.leaf.num_layers, choices.leaf.pp
    least = np.full((pp + 1, len(added_CRB), layers + 1), np.inf)
    least[pp, :, layers] = 0.0
    for rank in range(pp - 1, -1, -1):
        for index in np.flatnonzero(choices.useful[rank]).tolist():
            size = choices.fewest + index
            begun = least[rank, :, : layers + 1 - size]
            after = least[rank + 1, :, size:] + added_CRB[:, rank, index, None]
            np.minimum(begun, after, out=begun, where=ways[rank, : layers + 1 - size, index])
    return least


def most_remaining(choices: Choices, ways: Bools, added_CRB: Floats) -> Floats:
    """(R + 1, C, L + 1): most that ranks r and later add; minus infinity where impossible."""
    return -least_remaining(choices, ways, -added_CRB)


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Paths through the timeline, each a sum over ranks that no step undercuts."""

    added: Floats
    """(C, R, B): seconds that a rank with so many blocks adds to each path."""
    fixed: Floats
    """(C,): seconds of the path's transfers."""
    least: Floats
    """(R + 1, C, L + 1): `least_remaining`."""
    most: Floats
    """(R + 1, C, L + 1): `most_remaining`."""
    whole: bool
    """Whether they are of a whole step; else optimizer and overhead are left out."""

    def __len__(self) -> int:
        return len(self.fixed)


def cuts_of(choices: Choices, ways: Bools, paths: Sequence[CriticalPath]) -> Cuts:
    """The cuts of some paths, each with the synchronisation of the rank it ends on."""
    shape = (len(paths), choices.leaf.pp, 1)
    forward = np.array([path.forward_counts for path in paths], dtype=np.float64).reshape(shape)
    backward = np.array([path.backward_counts for path in paths], dtype=np.float64).reshape(shape)
    ends = np.array([path.rank for path in paths], dtype=np.int64)
    added = forward * choices.forward + backward * choices.backward
    added[np.arange(len(paths)), ends] += choices.sync[ends]
    fixed = np.array([path.p2p_count for path in paths]) * choices.leaf.cost("p2p")
    return cuts_that_add(choices, ways, added, fixed, whole=False)


def cuts_that_add(choices: Choices, ways: Bools, added: Floats, fixed: Floats, *, whole: bool) -> Cuts:
    """The cuts that add (C, R, B) seconds on the ranks and (C,) besides."""
    return Cuts(
        added=added,
        fixed=fixed,
        least=least_remaining(choices, ways, added),
        most=most_remaining(choices, ways, added),
        whole=whole,
    )
