"""Links of a cluster as lines of text: two devices, bandwidth, latency, number of parallel cables, kind.

    node[0-3].gpu[0-7] -- node[0-3].nvswitch 450 GB/s 1.5 us
    node[0-3].nic0 -- leaf0 400 Gb/s 2.5 us infiniband
    leaf[0-7] -- *spine[0-3] 400 Gb/s x2

`[0-3,6]` stands for several names. Two lists of equal length are linked pair by pair; if one list is longer,
each name of the shorter is linked with an equal share of the longer; `*` links every name on the left with
every name on the right. `x2` are parallel cables. The last part of a name says what a device is (`gpu`,
`nic`, else a word for a switch); the parts before the last dot are its node.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, product
from math import prod
from typing import Literal, NamedTuple, TypeVar, get_args

from cost_models.documents import printable
from cost_models.errors import Problem, did_you_mean
from cost_models.specs.choices import LinkKind
from cost_models.units import parse_bandwidth, parse_seconds

T = TypeVar("T")
DeviceKind = Literal["gpu", "nic", "switch"]
MOST_DEVICES = 50_000
"""Maximum devices that one line may name, and maximum GPUs of a graph; the largest known clusters have a few
times more."""
MOST_LINKS, MOST_LINES = 400_000, 100_000
"""Maximum links of a graph, and maximum lines of its file."""
_LONGEST = 10.0
"""Greatest accepted latency of a link, seconds."""
_SPAN = r"\d{1,9}(?:-\d{1,9})?"
_NAME = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9._:/+-]|\[{_SPAN}(?:,{_SPAN})*\]){{0,99}}", re.A)
_RANGE = re.compile(r"\[([\d,-]+)\]", re.A)
_DIGITS = re.compile(r"(\d+)", re.A)
COLUMNS = ("from", "to", "bandwidth", "latency", "count", "kind")
"""Columns of a file of links; the first three are required."""
_LINE = re.compile(
    r"(?P<from>\S+)\s+--\s+(?P<to>\S+)\s+(?P<bandwidth>\S+?\s*[A-Za-z]+/s)"
    r"(?:\s+(?P<latency>[\d.]\S*?\s*[a-zµ]+))?(?:\s+x(?P<count>\d+))?(?:\s+(?P<kind>[a-z]\S*))?",
    re.A,
)
_SWITCHES = "switch|nvsw|^sw|pcie|pxb|plx|cpu|socket|numa|host|bridge|leaf|spine|core|tor|agg|rail|network|router|xbar"
_DEVICES: dict[DeviceKind, re.Pattern[str]] = {
    "switch": re.compile(_SWITCHES),
    "gpu": re.compile("^(gpu|gcd|accelerator)"),
    "nic": re.compile("^(nic|hca|mlx|ib|roce|bnxt|rdmap|irdma|hfi|cxi|eth|hsn)"),
}


class Link(NamedTuple):
    """Parallel cables between two devices: bandwidth of one cable, latency and kind."""

    one: str
    other: str
    bandwidth: float
    """Bytes/s of one cable, one direction."""
    latency: float | None
    """Seconds; None: the usual latency of the kind."""
    cables: int
    kind: LinkKind
    where: str = ""
    """Source of the link, `file:line`, for messages."""


@lru_cache(maxsize=2**17)
def device_kind(name: str) -> DeviceKind | None:
    """Kind of a device (GPU, network adapter or switch) by the last part of its name; None if the name does
    not show it."""
    last = name.rpartition(".")[2].lower()
    return next((kind for kind, words in _DEVICES.items() if words.search(last)), None)


def node_of(name: str) -> str:
    """Name of the node that holds a device; empty for a switch of the network."""
    return name.rpartition(".")[0]


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key of a name by which `node2` comes before `node10`."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in _DIGITS.split(name) if part)


def expand(text: str) -> list[str]:
    """Expand a text with number ranges into device names, the first range slowest: "n[0-1].gpu[0-3]" gives
    eight names. Raises ValueError for a text that is no name, or stands for too many."""
    name = printable(text, 60)
    if not _NAME.fullmatch(text):
        raise ValueError(f"`{name}` is not a name; write it like `node0.gpu3` or `node[0-31].gpu[0-7]`")
    parts = _RANGE.split(text)
    runs = [[_span(one) for one in part.split(",")] for part in parts[1::2]]
    if (size := prod(sum(last - first + 1 for first, last, _ in run) for run in runs)) > MOST_DEVICES:
        raise ValueError(f"`{name}` stands for {size:,} devices; {MOST_DEVICES:,} are the most")
    lists = [[f"{at:0{wide}}" for first, last, wide in run for at in range(first, last + 1)] for run in runs]
    return [_filled(parts[::2], numbers) for numbers in product(*lists)]


def _filled(words: Sequence[str], numbers: Iterable[str]) -> str:
    """Join the words of a name with the numbers between them."""
    return "".join(part for pair in zip(words, (*numbers, ""), strict=True) for part in pair)


def _span(text: str) -> tuple[int, int, int]:
    """Parse a number range such as `08-31` into first number, last number and zero-padded width (1 without
    padding)."""
    first, _, last = text.partition("-")
    if int(last or first) < int(first):
        raise ValueError(f"`[{text}]` ends before it begins")
    return int(first), int(last or first), len(first) if first.startswith("0") else 1


def read_link(values: Mapping[str, str | None], place: str, problems: list[Problem]) -> list[Link]:
    """Parse one line of a file of links, given by column name (`COLUMNS`), into links. A line with problems,
    which are added to `problems`, has no links."""
    first, second, bandwidth, latency, count, kind = (values.get(name) or "" for name in COLUMNS)
    messages: list[str] = []
    refuse = messages.append

    def parsed(parse: Callable[[str], T], text: str) -> T | None:
        """Parse a quantity; if its text is invalid, add the error to the messages and return None."""
        try:
            return parse(text)
        except ValueError as error:
            refuse(str(error))
            return None

    first_names, second_names = (parsed(expand, name) or [] for name in (first, second.removeprefix("*")))
    if not bandwidth:
        ends = f"`{printable(first, 60)}` -- `{printable(second, 60)}`"
        refuse(f"{ends} has no bandwidth; write it like `400 Gb/s`")
    rate = parsed(parse_bandwidth, bandwidth) if bandwidth else None
    seconds = parsed(parse_seconds, latency) if latency else None
    if seconds is not None and seconds > _LONGEST:
        refuse(f"a latency of `{printable(latency, 30)}` is no link's")
    if count and not re.fullmatch(r"[1-9]\d{0,4}", count, re.A):
        refuse(f"`{printable(count, 30)}` is no number of parallel cables")
    kinds = get_args(LinkKind)
    if kind and kind not in kinds:
        hint = f"{did_you_mean(kind, kinds)}; kinds: {', '.join(kinds)}"
        refuse(f"`{printable(kind, 30)}` is no kind of link{hint}")
    for name in (*first_names[:1], *second_names[:1]):
        if device_kind(name) is None:
            hint = "`gpu0`, `nic0`, `nvswitch`, `pcie0`, `leaf0`, `spine0`, `switch0`"
            refuse(f"unknown device `{name}`: the last part of its name says what it is, like {hint}")
        elif device_kind(name) != "switch" and not node_of(name):
            hint = "the node stands before the last dot of its name, like `node0.gpu0`"
            refuse(f"`{name}` is in no node; {hint}")
    star = second.startswith("*")
    if first_names and len(first_names) * (len(second_names) if star else 1) > MOST_LINKS:
        refuse(f"these are more than {MOST_LINKS:,} links")
    pairs: list[tuple[str, str]] = []
    if not messages:
        pairs = list(product(first_names, second_names)) if star else _pairs(first_names, second_names)
        if not pairs:
            refuse(f"{len(first_names):,} devices cannot be shared out evenly among {len(second_names):,}")
    if itself := next((a for a, b in pairs if a == b), ""):
        refuse(f"`{itself}` is linked with itself")
    problems += [Problem(place, message) for message in messages]
    if messages or rate is None:
        return []
    return [Link(a, b, rate, seconds, int(count or 1), kind or _usual_kind(a, b), place) for a, b in pairs]  # type: ignore[arg-type]


def _usual_kind(device: str, neighbour: str) -> LinkKind:
    """Default kind of a link (such as `nvlink`) between two devices, from their names."""
    kinds = {device_kind(device), device_kind(neighbour)}
    (node, _, first), (other_node, _, second) = device.rpartition("."), neighbour.rpartition(".")
    if node != other_node or not node:
        return "infiniband"
    if kinds == {"gpu"}:
        return "nvlink"
    return "pcie" if "nic" in kinds or not {first[:2], second[:2]} & {"nv", "xb"} else "nvswitch"


def read_lines(lines: Sequence[str], where: str = "graph") -> tuple[list[Link], list[Problem]]:
    """Parse the lines of a cluster file's `graph` into links, with a list of problems."""
    links: list[Link] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines):
        place = f"{where}[{number}]"
        if match := _LINE.fullmatch(line.strip()):
            links += read_link(match.groupdict(), place, problems)
        else:
            example = "`node0.nic0 -- leaf0 400 Gb/s 2.5 us`"
            problems.append(Problem(place, f"`{printable(line, 80)}` is no link; write it like {example}"))
        if len(links) > MOST_LINKS:
            return [], [*problems, Problem(place, f"these are more than {MOST_LINKS:,} links")]
    return links, problems


def write_lines(links: Iterable[Link]) -> list[str]:
    """Write links as few lines from which `read_lines` parses the same links."""
    groups: dict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)
    for link in links:
        cable = exact_rate(link.bandwidth, link.kind)
        cable += "" if link.latency is None else f" {link.latency * 1e6:.12g} us"
        cable += f" x{link.cables}" if link.cables > 1 else ""
        cable += f" {link.kind}" if link.kind != _usual_kind(link.one, link.other) else ""
        groups[_DIGITS.sub("#", link.one), _DIGITS.sub("#", link.other), cable].append((link.one, link.other))
    return [line for (_, _, cable), pairs in groups.items() for line in _folded_pairs(pairs, cable)]


_NETWORKS = ("infiniband", "roce", "ethernet")


def exact_rate(bandwidth: float, kind: str) -> str:
    """Format a bandwidth in bytes/s as text that parses to exactly the same number; in bits for networks."""
    text = f"{bandwidth * 8 / 1e9:.12g} Gb/s" if kind in _NETWORKS else f"{bandwidth / 1e9:.12g} GB/s"
    return text if parse_bandwidth(text) == bandwidth else f"{bandwidth!r} B/s"


def _folded_pairs(pairs: list[tuple[str, str]], cable: str) -> Iterator[str]:
    """Yield lines for links whose device names have the same shape: a single line if possible, else a line
    for all names with the same neighbours."""
    pairs = sorted(pairs, key=lambda pair: (natural(pair[1]), natural(pair[0])))
    ones, ends = [one for one, _ in pairs], list(dict.fromkeys(other for _, other in pairs))
    left, right = fold(ones), fold(ends)
    if left and right and _pairs(ones, ends) == pairs:
        yield f"{left} -- {right} {cable}"
        return
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for other, some in groupby(pairs, key=lambda pair: pair[1]):
        groups[tuple(one for one, _ in some)].append(other)
    for neighbours, others in groups.items():
        left, right = fold(neighbours), fold(others)
        star = "*" * (len(neighbours) > 1 and len(others) > 1)
        if left and right and (star or len(others) == 1 or len(neighbours) == 1):
            yield f"{left} -- {star}{right} {cable}"
        else:
            yield from (f"{one} -- {other} {cable}" for one in neighbours for other in others)


def _pairs(ones: Sequence[str], others: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of devices that a line without `*` links; empty if one list cannot be divided evenly among the
    other."""
    size = max(len(ones), len(others))
    if size % len(ones) or size % len(others):
        return []
    spread = ([name for name in end for _ in range(size // len(end))] for end in (ones, others))
    return list(zip(*spread, strict=True))


def fold(names: Iterable[str]) -> str:
    """Compress device names into one text with number ranges, the inverse of `expand`; empty if there is no
    such text."""
    listed = list(names)
    parts = [_DIGITS.split(name) for name in listed]
    if len({tuple(part[::2]) for part in parts}) != 1:
        return ""
    columns = [list(dict.fromkeys(column)) for column in zip(*(part[1::2] for part in parts), strict=True)]
    texts = [column[0] if len(column) == 1 else f"[{_runs(column)}]" for column in columns]
    text = _filled(parts[0][::2], texts)
    return text if prod(map(len, columns)) == len(listed) and expand(text) == listed else ""


def _runs(numbers: list[str]) -> str:
    """Format numbers as ranges, such as "0-2,5" for "0", "1", "2", "5"."""
    runs: list[list[str]] = []
    for number in numbers:
        if runs and int(number) == int(runs[-1][-1]) + 1 and len(number) >= len(runs[-1][0]):
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(run) for run in runs)
