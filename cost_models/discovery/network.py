"""The link between nodes, as far as a node shows it: its adapters; what a person said of links; what is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cost_models.discovery.adapters import Adapter, of_training, read_ethernet, read_rdma
from cost_models.discovery.links import UNKNOWN, USUAL_LATENCY, Fields, link
from cost_models.discovery.machine import Machine
from cost_models.discovery.nccl_topology import NcclTopology
from cost_models.discovery.topology import Topology
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.units import counted, format_bandwidth, parse_bandwidth, parse_seconds

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


def open_link() -> Fields:
    """A link of which nothing is known."""
    return {"kind": UNKNOWN, "bandwidth": UNKNOWN, "latency": UNKNOWN}


def _odd(where: str, what: str, hint: str) -> InputError:
    return InputError("a link cannot be read", problems=[Problem(where, what)], hint=hint)
