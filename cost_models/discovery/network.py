"""The link between nodes, as far as a node shows it: adapters, NCCL's topology file, and what a person says of links.

Rates of adapters are the kernel's, or those of the file that clouds ship for their machines, which also says which GPUs
share a PCIe switch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree import ElementTree

from cost_models.discovery.links import USUAL_LATENCY, Fields, LinkReading, Topology, link
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.files.local import Machine
from cost_models.units import counted, format_bandwidth, parse_bandwidth, parse_seconds

_RDMA = "/sys/class/infiniband"
_RATE = re.compile(r"\s*([\d.]+) Gb/sec", re.ASCII)
_KINDS = {"InfiniBand": "infiniband", "Ethernet": "roce"}
_CHOICE = "NCCL_IB_HCA"


class Adapter(NamedTuple):
    """A network adapter with an active link."""

    name: str
    kind: str
    """`infiniband`, `roce` or `ethernet`."""
    rate: float
    """Bytes/s, one direction."""


def read_rdma(machine: Machine) -> list[Adapter]:
    """Read the RDMA adapters with an active port, each with the summed rate of its active ports."""
    adapters = []
    for name in machine.names(_RDMA):
        rate, layer = 0.0, ""
        for port in machine.names(f"{_RDMA}/{name}/ports"):
            place = f"{_RDMA}/{name}/ports/{port}"
            match = _RATE.match(machine.read(f"{place}/rate") or "")
            if match and "ACTIVE" in (machine.read(f"{place}/state") or ""):
                rate += float(match[1]) * 1e9 / 8
                layer = (machine.read(f"{place}/link_layer") or "").strip()
        if rate:
            adapters.append(Adapter(name, _KINDS.get(layer, "ethernet"), rate))
    return adapters


def read_ethernet(machine: Machine) -> list[Adapter]:
    """Read the network interfaces of physical devices that are up and report a rate."""
    adapters = []
    for name in machine.names("/sys/class/net"):
        place = f"/sys/class/net/{name}"
        if (machine.read(f"{place}/operstate") or "").strip() != "up" or not machine.names(f"{place}/device"):
            continue
        if rate := _megabits((machine.read(f"{place}/speed") or "").strip()):
            adapters.append(Adapter(name, "ethernet", rate))
    return adapters


def training_adapters(
    machine: Machine, adapters: Sequence[Adapter], topology: Topology, gpus: Sequence[str]
) -> tuple[list[Adapter], str]:
    """Choose the adapters that NCCL will use for training, with the reason in words. Those in `NCCL_IB_HCA`, else
    those under the GPUs' own PCIe switches, else all."""
    if selection := machine.environment.get(_CHOICE, ""):
        return [one for one in adapters if _is_selected(one.name, selection)], f"those of {_CHOICE}"
    near_devices = {device for gpu in gpus for device in topology.near(gpu)}
    if near := [one for one in adapters if one.name in near_devices]:
        return near, "those beside the GPUs" if len(near) < len(adapters) else ""
    return list(adapters), ""


def _is_selected(name: str, selection: str) -> bool:
    """Whether an adapter's name matches a value of `NCCL_IB_HCA`. `^` excludes, `=` means full names, else
    prefixes; ports follow a colon."""
    excludes, exact = selection[:1] == "^", "=" in selection[:2]
    listed = [one.partition(":")[0] for one in selection.lstrip("^=").split(",")]
    matches = any(name == one if exact else name.startswith(one) for one in listed if one)
    return matches != excludes


_FILE = "NCCL_TOPO_FILE"
_GPU, _GRAPHICS, _SWITCH = "0x0302", "0x0300", "0x0604"
"""First digits of PCI classes: 3D controllers, displays, bridges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTopology:
    """GPUs per PCIe switch and network adapters from an NCCL topology file; empty where there is none."""

    file: str = ""
    switches: tuple[int, ...] = ()
    """GPUs under each PCIe switch that is next to the host."""
    adapters: tuple[Adapter, ...] = ()


def read_nccl_topology(machine: Machine) -> NcclTopology:
    """Read the NCCL topology file named by `NCCL_TOPO_FILE`; empty if it is unset or unreadable."""
    file = machine.environment.get(_FILE, "")
    if not file:
        return NcclTopology()
    text = machine.read(file)
    if text is None:
        reason = "cannot be read"
    elif "<!" in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL):  # no entities, which may grow without end
        reason = "is not plain XML"
    else:
        try:
            root = ElementTree.fromstring(text)
            return NcclTopology(file=file, switches=tuple(_switches(root)), adapters=tuple(_adapters(root)))
        except ElementTree.ParseError as error:
            reason = f"is not XML: {error}"
    machine.unsaid.append(f"{_FILE}: `{file}` {reason}")
    return NcclTopology()


def _switches(root: ElementTree.Element) -> Iterator[int]:
    for cpu in root.iter("cpu"):
        for device in cpu.findall("pci"):
            count = sum(_is_gpu(inner) for inner in device.iter("pci"))
            if device.get("class", "").startswith(_SWITCH) and count:
                yield count


def _is_gpu(device: ElementTree.Element) -> bool:
    return device.find("gpu") is not None or device.get("class", "").startswith((_GPU, _GRAPHICS))


def _adapters(root: ElementTree.Element) -> Iterator[Adapter]:
    """Yield the network adapters in an NCCL topology file that state a rate. Files dumped by NCCL have it, in
    Mb/s."""
    for net in root.iter("net"):
        name = net.get("name", "net")
        if rate := _megabits(net.get("speed", "")):
            yield Adapter(name, "infiniband" if name.startswith(("mlx", "ib")) else "ethernet", rate)


def _megabits(text: str) -> float:
    """Rate in bytes/s from a whole number of Mb/s; 0 for any other text."""
    return float(text) * 1e6 / 8 if re.fullmatch(r"[1-9]\d{0,7}", text, re.ASCII) else 0.0


PLACES = ("intra_node", "inter_node")
EXAMPLE = "inter_node=infiniband,400Gb/s,5us"


def between_nodes(machine: Machine, topology: Topology, nccl: NcclTopology, gpus: list[str]) -> LinkReading:
    """Detect the network link of a node, with each GPU's share of the rate of the training adapters."""
    rdma, witness = read_rdma(machine), "/sys/class/infiniband"
    if not rdma:
        rdma, witness = list(nccl.adapters), nccl.file
    if rdma:
        return _over(*training_adapters(machine, rdma, topology, gpus), len(gpus), witness)
    wired = read_ethernet(machine)
    if len(wired) == 1:
        return _over(wired, "", len(gpus), "/sys/class/net")
    if not wired:
        return LinkReading(why_open="no adapter says at what rate it sends")
    rates = ", ".join(f"{one.name} {format_bandwidth(one.rate)}" for one in wired)
    which = f"which of {counted(len(wired), 'interface')} carry training is not known"
    return LinkReading(why_open=f"{which}: {rates}")


def _over(adapters: Sequence[Adapter], selection: str, gpus: int, witness: str) -> LinkReading:
    """Network link with the total rate of the given adapters divided evenly among the GPUs."""
    kinds = {one.kind for one in adapters}
    if len(kinds) != 1:
        return LinkReading(why_open="its adapters are of several kinds" if kinds else "no adapter is left")
    kind, rate = kinds.pop(), sum(one.rate for one in adapters)
    rates = sorted({format_bandwidth(one.rate) for one in adapters})
    source = f"{witness}: {counted(len(adapters), 'adapter')} of {' and '.join(rates)}"
    source += f", {selection}" if selection else ""
    network = LinkReading(fields=link(kind, rate / gpus), rails=len(adapters), source=source)
    network.assumed.append("switches between nodes carry all adapters at once (a node does not show them)")
    if witness not in ("/sys/class/infiniband", "/sys/class/net"):
        network.assumed.append(f"adapters are of {kind} (NCCL's file has only their rates)")
    return network


def parse_link(text: str, place: str = "") -> Fields:
    """Parse a link such as `infiniband,400Gb/s,5us` (latency optional) into cluster file fields. Raises
    InputError."""
    words = [word.strip() for word in text.replace(",", " , ").split(",")]
    kind, amounts = words[0], words[1:]
    if kind not in USUAL_LATENCY:
        message = f"`{kind}` is no kind of link{did_you_mean(kind, USUAL_LATENCY)}"
        raise _link_error(place, message, f"kinds: {', '.join(USUAL_LATENCY)}")
    if not 1 <= len(amounts) <= 2:
        message = f"`{text}` is not KIND,BANDWIDTH or KIND,BANDWIDTH,LATENCY"
        raise _link_error(place, message, f"like {EXAMPLE}")
    try:
        fields = link(kind, parse_bandwidth(amounts[0]))
        if len(amounts) == 2:
            parse_seconds(amounts[1])
            fields["latency"] = amounts[1]
    except ValueError as error:
        raise _link_error(place, str(error), f"like {EXAMPLE}") from None
    return fields | {"bandwidth": amounts[0]}


def parse_links(texts: Sequence[str]) -> dict[str, Fields]:
    """Parse user-stated links such as `inter_node=infiniband,400Gb/s` into cluster file fields by place. Raises
    InputError."""
    links: dict[str, Fields] = {}
    for text in texts:
        place, equals, words = text.partition("=")
        if place not in PLACES or not equals:
            raise _link_error("--link", f"`{text}` says no place: {' or '.join(PLACES)}", f"like {EXAMPLE}")
        if place in links:
            raise _link_error("--link", f"`{place}` is said twice", "say it once")
        links[place] = parse_link(words, "--link")
    return links


def _link_error(place: str, message: str, hint: str) -> InputError:
    return InputError("a link cannot be read", problems=[Problem(place, message)], hint=hint)
