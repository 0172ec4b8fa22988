"""Links and devices that are not as their siblings are, each with its place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from cost_models.fabric.fabric import CLOSE, FabricLevel, usual
from cost_models.specs.graph import Link, natural
from cost_models.units import counted, format_bandwidth


def odd_links(links: Sequence[Link], levels: Sequence[FabricLevel], nodes: Sequence[str]) -> Iterator[str]:
    """A sentence without full stop for each cable, switch, node or level that differs from its siblings."""
    between: dict[frozenset[str], list[Link]] = defaultdict(list)
    for link in links:
        between[frozenset(link[:2])].append(link)
    for level in levels:
        yield from _odd_cables(
            level,
            [[(pair, link) for pair in some for link in between[frozenset(pair)]] for some in level.cables],
        )
        if level.network and len(level.sizes) > 1:
            counts = Counter(Counter(level.own.tolist()).values())
            per = len(level.own) // len(nodes)
            told = ", ".join(
                f"{counted(n, 'domain')} of {size // per}" for size, n in sorted(counts.items(), reverse=True)
            )
            yield f"the {level.name} level joins unequal numbers of nodes: {told}"
    if network := next((level for level in levels if level.network), None):
        ends = network.end.reshape(len(nodes), -1)
        adapters = [len(set(row)) for row in ends.tolist()]
        for name, count in zip(nodes, adapters, strict=True):
            if count != usual(adapters):
                yield f"{name} has {counted(count, 'adapter')} where others have {usual(adapters)}"


def _odd_cables(
    level: FabricLevel, bundles: Sequence[Sequence[tuple[tuple[str, str], Link]]]
) -> Iterator[str]:
    """Cables of another rate than most of the level, and bundles of more or fewer."""
    every = [link for some in bundles for _, link in some]
    if not every:
        return
    rate = usual(link.bandwidth for link in every for _ in range(link.cables))
    number = usual(sum(link.cables for _, link in some) for some in bundles)
    for some in bundles:
        count = sum(link.cables for _, link in some)
        for pair, link in some:
            if abs(link.bandwidth - rate) > CLOSE * rate:
                siblings, whose = ([one for _, one in some], "its") if count > 2 else (every, "the")
                like = sum(one.cables for one in siblings if one.bandwidth == rate)
                has = f"{pair[0]}-{pair[1]} has {_told(link.bandwidth, level)}"
                yield f"{has} where {whose} {like} siblings have {_told(rate, level)}"
        if level.network and count != number:
            lower = min((pair[0] for pair, _ in some), key=natural)
            yield f"{lower} has {counted(count, 'cable')} to the {level.name} where others have {number}"


def _told(rate: float, level: FabricLevel) -> str:
    return f"{rate * 8 / 1e9:.6g} Gb/s" if level.network else format_bandwidth(rate)
