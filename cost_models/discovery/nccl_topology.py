"""NCCL's topology file, which clouds ship for their machines: which GPUs share a PCIe switch, and rates of adapters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from cost_models.discovery.adapters import Adapter
from cost_models.discovery.machine import Machine

_FILE = "NCCL_TOPO_FILE"
_GPU, _GRAPHICS, _SWITCH = "0x0302", "0x0300", "0x0604"
"""First digits of PCI classes: 3D controllers, displays, bridges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTopology:
    """What the file says of GPUs and adapters."""

    file: str
    switches: tuple[int, ...]
    """GPUs under each PCIe switch that is next to the host."""
    adapters: tuple[Adapter, ...]


def read_nccl_topology(machine: Machine) -> NcclTopology | None:
    """The file that the environment names; None where it names none, or what it names says nothing."""
    file = machine.environment.get(_FILE, "")
    if not file:
        return None
    text = machine.read(file)
    if text is None:
        machine.unsaid.append(f"{_FILE}: `{file}` cannot be read")
        return None
    if "<!" in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL):  # no entities, which may grow without end
        machine.unsaid.append(f"{_FILE}: `{file}` is not plain XML")
        return None
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        machine.unsaid.append(f"{_FILE}: `{file}` is not XML: {error}")
        return None
    return NcclTopology(file=file, switches=tuple(_switches(root)), adapters=tuple(_adapters(root)))


def _switches(root: ElementTree.Element) -> Iterator[int]:
    for cpu in root.iter("cpu"):
        for device in cpu.findall("pci"):
            count = sum(_is_gpu(inner) for inner in device.iter("pci"))
            if device.get("class", "").startswith(_SWITCH) and count:
                yield count


def _is_gpu(device: ElementTree.Element) -> bool:
    return device.find("gpu") is not None or device.get("class", "").startswith((_GPU, _GRAPHICS))


def _adapters(root: ElementTree.Element) -> Iterator[Adapter]:
    """Those whose rate it says (files that NCCL dumped do), in Mb/s."""
    for net in root.iter("net"):
        speed = net.get("speed", "")
        if re.fullmatch(r"[1-9]\d{0,7}", speed, re.ASCII):
            name = net.get("name", "net")
            rate = float(speed) * 1e6 / 8
            yield Adapter(
                name=name, kind="infiniband" if name.startswith(("mlx", "ib")) else "ethernet", rate=rate
            )
