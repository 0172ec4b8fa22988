"""`cluster`: write a cluster file from a template, from this machine's own description, or from a file of links."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError
from cost_models.flags import Options, flag, part_of, switch
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from cost_models.files.local import Machine
    from meshwright.terminal.output import Output
    from meshwright.verbs.cluster.answers import ClusterFile, Discovered


class ClusterOptions(Options, kw_only=True):
    """Options with facts stated about a cluster: number of nodes, name, and links."""

    nodes: int | None = flag("N", minimum=1)
    """Nodes; default: the SLURM job's, or 1.

    Nodes of the cluster, where neither scheduler nor file says.
    """
    name: str | None = flag("NAME")
    """Name of the cluster; default: SLURM's."""
    links: Mapping[str, str] | None = None
    """Known links: `{"inter_node": "infiniband,400Gb/s,5us"}`; the latency may be left out."""


class DiscoverOptions(ClusterOptions, kw_only=True):
    """Options of `discover`: the machine to examine, and facts stated about its cluster."""

    machine: Machine | None = None
    """Machine to examine; None: this machine."""


class GraphOptions(ClusterOptions, kw_only=True):
    """Options for a file of links: its GPU, GPU nodes, and GPUs per node."""

    gpu: str | None = flag("NAME")
    """GPU, if the file of links names none.

    A name of the catalogue; None: the file has it (`# gpu: h100-sxm`).
    """
    hosts: str | None = flag("PATTERN")
    """GPU nodes among the hosts of `ibnetdiscover`: 'gpu*'.

    Pattern of the GPU nodes' names; None: what they are usually called.
    """
    gpus_per_node: int | None = flag("N", minimum=1)
    """GPUs per node; default: its adapters.

    GPUs in a node for `ibnetdiscover`, which shows adapters alone; None: as many as adapters.
    """


class LinksOptions(GraphOptions):
    """Options of `cluster_from_links`: the file of links, and facts stated about its cluster."""

    file: str | Path
    """A table (CSV) or JSON of links, or what `nvidia-smi topo -m` or `ibnetdiscover` printed."""


class ClusterFlags(GraphOptions, kw_only=True):
    """Options of `meshwright cluster`: the source (template, this machine, file of links), and facts stated about the
    cluster."""

    template: bool = switch(panel="subject")
    """Write a commented file to fill in."""
    discover: bool = switch(panel="subject")
    """Describe this node from its driver, kernel and scheduler."""
    from_links: Path | None = flag("FILE", panel="subject")
    """List of links: CSV, JSON, output of `topo -m` or `ibnetdiscover`."""
    link: tuple[str, ...] = flag("LINK", kind=list[str], default=())
    """State a link: inter_node=infiniband,400Gb/s,5us."""


@command(ClusterFlags, out="Cluster file to write.")
def cluster_command(options: ClusterFlags, output: Output) -> None:
    """Write a cluster file: a template, or of this machine."""
    from importlib.resources import files

    from cost_models.discovery import parse_links
    from cost_models.files.loading import TEMPLATE
    from meshwright.records import JSON_SCHEMA
    from meshwright.verbs.cluster.answers import cluster_from_links

    ways = options.template + options.discover + (options.from_links is not None)
    if ways != 1:
        several = "`--template`, `--discover` and `--from-links` are three ways; say one"
        hint = f"{TEMPLATE}; --discover -o here.yaml; --from-links links.csv; meshwright catalog clusters"
        raise InputError(several if ways else "what of a cluster?", hint=hint)
    output.check_places()
    file = output.out
    if options.template:
        text = (files("meshwright.verbs.cluster") / "template.yaml").read_text(encoding="utf-8")
        then = f"meshwright plan MODEL {file} ..., once it says what you have"
        output.show_text({"schema": JSON_SCHEMA, "template": text}, [], text, file, then)
        return
    parse_links(options.link)
    links = dict(part.split("=", 1) for part in options.link)
    answer: ClusterFile
    if options.from_links is not None:
        answer = cluster_from_links(
            **vars(part_of(options, LinksOptions, file=options.from_links, links=links))
        )
    else:
        may_ask = not (output.json or output.quiet) and sys.stdin.isatty() and sys.stderr.isatty()
        answer = _ask(options, links, may_ask=may_ask)
    output.assumed(answer.draft.assumed)
    output.remark(answer.draft.notes)
    listing = () if file is not None else ("", answer.yaml.rstrip())
    write = [] if file is None else [lambda: answer.save(file)]
    output.answer(answer.record(), answer.rows, *answer.text, *listing, files=write)
    output.wrote(file, answer.next_commands)
    if not answer.fits:
        output.end_with_no()


def _ask(options: ClusterFlags, links: Mapping[str, str], *, may_ask: bool) -> Discovered:
    """Describe this machine; on a terminal, ask the user for links that remain open."""
    from meshwright.verbs.cluster.answers import discover

    answer = discover(nodes=options.nodes, name=options.name, links=links)
    places = [place.removeprefix("links.") for place in answer.draft.open if place.endswith("_node")]
    if not may_ask or not places:
        return answer
    stated = dict(links)
    for place in places:
        if words := _ask_link(place, answer.draft.open[f"links.{place}"]):
            stated[place] = words
    return discover(nodes=options.nodes, name=options.name, links=stated)


def _ask_link(place: str, reason: str) -> str:
    """Ask the user for a link until the reply can be parsed; an empty reply leaves the link open."""
    import typer

    from cost_models.discovery import parse_link

    example = "KIND,BANDWIDTH of one GPU, one direction, e.g. infiniband,400Gb/s (empty: open)"
    question = f"{place} ({reason})\n  {example}"
    while True:
        words = typer.prompt(question, default="", show_default=False, err=True).strip()
        try:
            if words:
                parse_link(words)
            return str(words)
        except InputError as error:
            typer.echo(f"  {error.problems[0].what if error.problems else error}", err=True)
