"""What a machine says of itself, as a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.base import MAX_GPUS
from cost_models.discovery.discover import discover as ask_machine
from cost_models.discovery.machine import Machine
from cost_models.discovery.network import parse_links
from cost_models.errors import InputError
from meshwright.answers.discovered import Discovered


def discover(
    *,
    nodes: int | None = None,
    name: str | None = None,
    links: Mapping[str, str] | None = None,
    machine: Machine | None = None,
) -> Discovered:
    """The node this runs on as a cluster: GPUs, links, host and adapters as driver, kernel and scheduler have them.

    Args:
        nodes: of the cluster; None: those of the SLURM job, else one.
        name: of the cluster; None: SLURM's, else `here`.
        links: what you know of links: `{"inter_node": "infiniband,400Gb/s,5us"}`; the latency may be left out.
        machine: what is asked; None: this machine.

    Raises:
        InputError: a link, the name or the number of nodes cannot be.
        HostError: there is no GPU here, they are split into slices, or of several kinds.
    """
    if nodes is not None and not 1 <= nodes <= MAX_GPUS:
        raise InputError(f"--nodes: a cluster of {nodes:,} nodes cannot be")
    said = parse_links([f"{place}={text}" for place, text in (links or {}).items()])
    found = Discovered(seen=ask_machine(machine, nodes=nodes, name=name, said=said))
    if found.complete:
        _ = found.cluster  # what would be refused as a file is refused here
    return found
