"""How GPUs and adapters of a node reach one another, from the matrix of `nvidia-smi topo -m`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cost_models.discovery.machine import Machine

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NVLINKS = re.compile(r"NV(\d{1,3})", re.ASCII)
_CELL = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|NV\d{1,3}", re.ASCII)
_DEVICE = re.compile(r"(GPU|NIC|mlx|bnxt|rdmap|ibp|roce|hfi|irdma)\S*", re.ASCII)
_LEGEND = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$", re.ASCII)
NEAR = ("PIX", "PXB")
"""Ways that stay under one host bridge, through PCIe switches only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The matrix, by names of devices: `GPU0`, `mlx5_0`."""

    ways: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Two devices → what lies between: NV12, PIX, PXB, PHB, NODE or SYS."""

    def between(self, one: str, other: str) -> str:
        """What lies between two devices; empty where nothing is said."""
        return self.ways.get((one, other)) or self.ways.get((other, one)) or ""

    def nvlinks(self, one: str, other: str) -> int:
        """NVLinks from one GPU to another, or to the switches between them."""
        match = _NVLINKS.fullmatch(self.between(one, other))
        return int(match[1]) if match else 0

    def near(self, one: str) -> set[str]:
        """Devices under the same PCIe switches."""
        return {pair[1 - pair.index(one)] for pair, way in self.ways.items() if one in pair and way in NEAR}

    def groups(self, devices: Sequence[str], linked: Mapping[tuple[str, str], bool]) -> list[list[str]]:
        """Devices that reach one another over linked pairs, in order."""
        left, found = list(devices), []
        while left:
            group, border = [left.pop(0)], [0]
            while border:
                one = group[border.pop()]
                for other in [it for it in left if linked.get((one, it)) or linked.get((it, one))]:
                    left.remove(other)
                    border.append(len(group))
                    group.append(other)
            found.append(sorted(group, key=devices.index))
        return found


def read_topology(machine: Machine) -> Topology:
    """The matrix as the driver prints it; empty where it prints none."""
    return parse_topology(machine.run("nvidia-smi", "topo", "-m") or "")


def parse_topology(said: str) -> Topology:
    """The matrix in what `nvidia-smi topo -m` printed; empty where there is none."""
    lines = _COLOURS.sub("", said).splitlines()
    real = {match[1]: match[2] for line in lines if (match := _LEGEND.match(line))}
    columns: list[str] = []
    ways = {}
    for line in lines:
        words = line.split()
        if not columns:
            columns = _columns(words)
        elif words and _DEVICE.fullmatch(words[0]) and _CELL.fullmatch((words[1:] or [""])[0]):
            for other, way in zip(columns, words[1:], strict=False):
                if _CELL.fullmatch(way) and way != "X":
                    ways[real.get(words[0], words[0]), real.get(other, other)] = way
    return Topology(ways=ways)


def _columns(words: Iterable[str]) -> list[str]:
    """Devices of the heading; the columns of affinities follow them."""
    named = list(words)
    if not named or not named[0].startswith("GPU"):
        return []
    end = next((at for at, word in enumerate(named) if not _DEVICE.fullmatch(word)), len(named))
    columns = named[:end]
    return columns[:-1] if columns[-1:] == ["GPU"] else columns  # of "GPU NUMA ID"
