"""Where the GPUs and switches of a cluster stand in a picture, and how many of them find room there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cost_models.communication.topology import Level
from cost_models.specs.cluster import ClusterSpec

TREE = 6.0
"""Inches of the tree's width."""
ROW, LOW = 0.86, 0.42
"""Inches between rows, and below the lowest."""
_MOST_GPUS, _MOST_OTHERS, _LEAVES = 8, 4, 16
"""GPUs of one domain, other members of one, and GPUs in all that are drawn one by one."""


@dataclass(slots=True)
class Places:
    """Where things are, in inches."""

    y: list[float]
    """Of the switches of each level."""
    gpus: float
    gpu_x: dict[int, float] = field(default_factory=dict)
    spans: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    """(level, domain) → left and right end."""
    more: list[tuple[int, float, int]] = field(default_factory=list)
    """Members left out: level, x, how many."""
    right: float = 0.0
    side: float = 0.2
    """Of a GPU."""


def levels_below(levels: Sequence[Level]) -> int:
    """Levels drawn below the GPUs: those of the first medium, where another follows inside the node."""
    openings = [at for at, level in enumerate(levels) if level.opens and not level.network]
    return openings[1] if len(openings) > 1 else 0


def domain_size(cluster: ClusterSpec, levels: Sequence[Level], at: int) -> int:
    """GPUs of one domain of a level; below the first, one."""
    if at < 0:
        return 1
    return min(levels[at].gpus or cluster.num_gpus, cluster.num_gpus)


def _shown(cluster: ClusterSpec, levels: Sequence[Level]) -> list[int]:
    """Members of each level's domains that are drawn: all where there is room, else the first and how many more."""
    members = [
        -(-domain_size(cluster, levels, at) // domain_size(cluster, levels, at - 1))
        for at in range(len(levels))
    ]
    shown = [1] * len(levels)
    order = [0, len(levels) - 1, *range(1, len(levels) - 1)]  # GPUs first, then the widest level
    for at in dict.fromkeys(order):
        most = _MOST_GPUS if at == 0 else _MOST_OTHERS
        drawn = 1
        for other in shown:
            drawn *= other
        room = max(1, _LEAVES // drawn)
        some = (1 if len(levels) > 3 else 2) if at else 4
        shown[at] = members[at] if members[at] <= min(most, room) else min(some, room)
    return shown


def placed(cluster: ClusterSpec, levels: Sequence[Level], below: int) -> Places:
    """GPUs from the left, a gap wider for every level between them, scaled to the width of the tree."""
    rows = [LOW + ROW * at for at in range(len(levels) + 1)]
    gpus = rows.pop(below)
    places = Places(y=rows, gpus=gpus)
    shown = _shown(cluster, levels)
    _place(cluster, levels, shown, len(levels) - 1, 0, places)
    left, wide = 0.45, max(places.right, 1.0)
    scale = min(1.0, (TREE - 0.9) / wide)
    shift = left + (TREE - 0.9 - wide * scale) / 2
    places.side = min(places.side, 0.24 * scale)
    places.gpu_x = {gpu: shift + x * scale for gpu, x in places.gpu_x.items()}
    places.spans = {key: (shift + a * scale, shift + b * scale) for key, (a, b) in places.spans.items()}
    places.more = [(at, shift + x * scale, count) for at, x, count in places.more]
    return places


def _place(
    cluster: ClusterSpec, levels: Sequence[Level], shown: list[int], at: int, first: int, places: Places
) -> None:
    """One domain of a level, whose first GPU is `first`."""
    if at < 0:
        places.gpu_x[first] = places.right
        places.right += 0.3
        return
    size, inner = domain_size(cluster, levels, at), domain_size(cluster, levels, at - 1)
    members = -(-min(size, cluster.num_gpus - first) // inner)
    begin = places.right
    for member in range(min(shown[at], members)):
        if member:
            places.right += 0.16 * at + 0.2 * levels[at].network
        _place(cluster, levels, shown, at - 1, first + member * inner, places)
    end = places.right
    if members > shown[at]:
        places.more.append((at, places.right + 0.36, members - shown[at]))
        places.right += 1.0
        end = places.right
    places.spans[at, first // size] = (begin - 0.15, end - 0.15)
