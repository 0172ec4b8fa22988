"""The link between nodes, as far as a node shows it: adapters, NCCL's topology file, and what a person says of links.

Rates of adapters are the kernel's, or those of the file that clouds ship for their machines, which also says which GPUs
share a PCIe switch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal
from xml.etree import ElementTree

from cost_models.discovery.links import USUAL_LATENCY, Fields, Topology, link
from cost_models.discovery.machine import Machine
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.units import counted, format_bandwidth, parse_bandwidth, parse_seconds

_RDMA = "/sys/class/infiniband"
_RATE = re.compile(r"\s*([\d.]+) Gb/sec", re.ASCII)
_KINDS: dict[str, Literal["infiniband", "roce"]] = {"InfiniBand": "infiniband", "Ethernet": "roce"}
_CHOICE = "NCCL_IB_HCA"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One adapter that is up."""

    name: str
    kind: Literal["infiniband", "roce", "ethernet"]
    rate: float
    """Bytes/s, one direction."""


def read_rdma(machine: Machine) -> list[Adapter]:
    """Adapters with remote memory access whose link is up, both ports together."""
    found = []
    for name in machine.names(_RDMA):
        rate, layer = 0.0, ""
        for port in machine.names(f"{_RDMA}/{name}/ports"):
            place = f"{_RDMA}/{name}/ports/{port}"
            match = _RATE.match(machine.read(f"{place}/rate") or "")
            if match and "ACTIVE" in (machine.read(f"{place}/state") or ""):
                rate += float(match[1]) * 1e9 / 8
                layer = (machine.read(f"{place}/link_layer") or "").strip()
        if rate:
            found.append(Adapter(name=name, kind=_KINDS.get(layer, "ethernet"), rate=rate))
    return found


def read_ethernet(machine: Machine) -> list[Adapter]:
    """Interfaces of real devices that are up and say at what rate; virtual ones do not know theirs."""
    found = []
    for name in machine.names("/sys/class/net"):
        place = f"/sys/class/net/{name}"
        if (machine.read(f"{place}/operstate") or "").strip() != "up" or not machine.names(f"{place}/device"):
            continue
        speed = (machine.read(f"{place}/speed") or "").strip()
        if re.fullmatch(r"[1-9]\d{0,7}", speed, re.ASCII):
            found.append(Adapter(name=name, kind="ethernet", rate=float(speed) * 1e6 / 8))
    return found


def of_training(
    machine: Machine, adapters: Sequence[Adapter], topology: Topology, gpus: Sequence[str]
) -> tuple[list[Adapter], str]:
    """Adapters that NCCL takes, and why: those it was told to, else those under the GPUs' own PCIe switches, else
    all."""
    if chosen := machine.environment.get(_CHOICE, ""):
        return [one for one in adapters if _is_chosen(one.name, chosen)], f"those of {_CHOICE}"
    beside = {device for gpu in gpus for device in topology.near(gpu)}
    if near := [one for one in adapters if one.name in beside]:
        return near, "those beside the GPUs" if len(near) < len(adapters) else ""
    return list(adapters), ""


def _is_chosen(name: str, chosen: str) -> bool:
    """NCCL's own words: `^` leaves out, `=` means whole names, else beginnings of names; ports follow a colon."""
    out, whole = chosen[:1] == "^", "=" in chosen[:2]
    listed = [one.partition(":")[0] for one in chosen.lstrip("^=").split(",")]
    found = any(name == one if whole else name.startswith(one) for one in listed if one)
    return found != out


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


PLACES = ("intra_node", "inter_node")
EXAMPLE = "inter_node=infiniband,400Gb/s,5us"


@dataclass(kw_only=True)
class Between:
    """The link between nodes; None where no adapter says anything."""

    fields: Fields | None = None
    rails: int | None = None
    said: str = ""
    why_open: str = ""
    assumed: list[str] = field(default_factory=list)


def between_nodes(
    machine: Machine, topology: Topology, nccl: NcclTopology | None, gpus: Sequence[str]
) -> Between:
    """A GPU's share of the adapters that training uses."""
    rdma, said = read_rdma(machine), "/sys/class/infiniband"
    if not rdma and nccl is not None and nccl.adapters:
        rdma, said = list(nccl.adapters), nccl.file
    if rdma:
        return _over(*of_training(machine, rdma, topology, gpus), len(gpus), said)
    wired = read_ethernet(machine)
    if len(wired) == 1:
        return _over(wired, "", len(gpus), "/sys/class/net")
    if not wired:
        return Between(why_open="no adapter says at what rate it sends")
    told = ", ".join(f"{one.name} {format_bandwidth(one.rate)}" for one in wired)
    return Between(
        why_open=f"which of {counted(len(wired), 'interface')} carry training is not known: {told}"
    )


def _over(adapters: Sequence[Adapter], why: str, gpus: int, said: str) -> Between:
    """The link over these adapters, which all GPUs share evenly."""
    kinds = {one.kind for one in adapters}
    if len(kinds) != 1:
        return Between(why_open="its adapters are of several kinds" if kinds else "no adapter is left")
    kind, rate = kinds.pop(), sum(one.rate for one in adapters)
    each = sorted({format_bandwidth(one.rate) for one in adapters})
    told = f"{said}: {counted(len(adapters), 'adapter')} of {' and '.join(each)}" + (
        f", {why}" if why else ""
    )
    found = Between(fields=link(kind, rate / gpus), rails=len(adapters), said=told)
    found.assumed.append("switches between nodes carry all adapters at once (a node does not show them)")
    if said not in ("/sys/class/infiniband", "/sys/class/net"):
        found.assumed.append(f"adapters are of {kind} (NCCL's file has only their rates)")
    return found


def parse_link(text: str, where: str = "") -> Fields:
    """ "infiniband,400Gb/s,5us" (the latency may be left out) → fields of a link. Raises InputError."""
    words = [word.strip() for word in text.replace(",", " , ").split(",")]
    kind, rest = words[0], words[1:]
    if kind not in USUAL_LATENCY:
        what = f"`{kind}` is no kind of link{did_you_mean(kind, USUAL_LATENCY)}"
        raise _odd(where, what, f"kinds: {', '.join(USUAL_LATENCY)}")
    if not 1 <= len(rest) <= 2:
        raise _odd(where, f"`{text}` is not KIND,BANDWIDTH or KIND,BANDWIDTH,LATENCY", f"like {EXAMPLE}")
    try:
        fields = link(kind, parse_bandwidth(rest[0]))
        if len(rest) == 2:
            parse_seconds(rest[1])
            fields["latency"] = rest[1]
    except ValueError as error:
        raise _odd(where, str(error), f"like {EXAMPLE}") from None
    return fields | {"bandwidth": rest[0]}


def parse_links(texts: Sequence[str]) -> dict[str, Fields]:
    """Links that a person says: `inter_node=infiniband,400Gb/s`. Raises InputError."""
    said: dict[str, Fields] = {}
    for text in texts:
        place, equals, rest = text.partition("=")
        if place not in PLACES or not equals:
            raise _odd("--link", f"`{text}` says no place: {' or '.join(PLACES)}", f"like {EXAMPLE}")
        if place in said:
            raise _odd("--link", f"`{place}` is said twice", "say it once")
        said[place] = parse_link(rest, "--link")
    return said


def _odd(where: str, what: str, hint: str) -> InputError:
    return InputError("a link cannot be read", problems=[Problem(where, what)], hint=hint)
