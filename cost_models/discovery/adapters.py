"""Network adapters of a node: their rates as the kernel or NCCL's topology file has them, and which GPUs use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cost_models.discovery.machine import Machine
from cost_models.discovery.topology import Topology

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
