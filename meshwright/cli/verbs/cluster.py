"""`meshwright cluster --discover`: write a cluster file of the machine at hand."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places

if TYPE_CHECKING:
    from meshwright.answers.discovered import Discovered


def cluster(
    discover: Annotated[
        bool, typer.Option("--discover", help="Ask driver, kernel and scheduler of this node.")
    ] = False,
    nodes: Annotated[
        int | None, o.optional("--nodes", "N", "Of the cluster; default: the SLURM job's, or 1.", min=1)
    ] = None,
    name: Annotated[str | None, o.optional("--name", "NAME", "Of the cluster; default: SLURM's.")] = None,
    link: Annotated[
        list[str] | None,
        o.optional("--link", "LINK", "A link you know: inter_node=infiniband,400Gb/s,5us."),
    ] = None,
    out: Annotated[Path | None, o.out("Cluster file to write.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Write a cluster file of this machine."""
    from cost_models.discovery.network import parse_links
    from cost_models.errors import InputError

    output = Output(json=json, csv=csv, quiet=quiet)
    if not discover:
        raise InputError(
            "what of a cluster?",
            hint="meshwright cluster --discover -o here.yaml; meshwright catalog clusters",
        )
    check_places(("-o", out), ("--csv", csv))
    parse_links(link or [])
    links = dict(part.split("=", 1) for part in link or [])
    answer = _ask(
        links, nodes, name, may_ask=not (json or quiet) and sys.stdin.isatty() and sys.stderr.isatty()
    )
    output.assumed(answer.seen.assumed)
    output.remark(answer.seen.notes)
    text = answer.text if out is not None else (*answer.text, "", answer.yaml.rstrip())
    files = [] if out is None else [lambda: answer.save(out)]
    output.answer(answer.record(), answer.rows, *text, files=files)
    if out is not None:
        then = f"meshwright plan MODEL {out} ..." if answer.complete else f"fill in `unknown` in {out}"
        output.note(f"Wrote {out}. Next: {then}")
    if not answer.complete:
        raise typer.Exit(1)


def _ask(links: Mapping[str, str], nodes: int | None, name: str | None, *, may_ask: bool) -> Discovered:
    """The machine's answers, with a person's where there is a terminal and something is open."""
    from meshwright.api.discover import discover

    answer = discover(nodes=nodes, name=name, links=links)
    places = [place.removeprefix("links.") for place in answer.seen.open if place.endswith("_node")]
    if not may_ask or not places:
        return answer
    said = dict(links)
    for place in places:
        if words := _asked(place, answer.seen.open[f"links.{place}"]):
            said[place] = words
    return discover(nodes=nodes, name=name, links=said)


def _asked(place: str, why: str) -> str:
    """What a person says of a link, asked until it can be read; empty to leave it open."""
    from cost_models.discovery.network import parse_link
    from cost_models.errors import InputError

    question = (
        f"{place} ({why})\n  KIND,BANDWIDTH of one GPU, one direction, e.g. infiniband,400Gb/s (empty: open)"
    )
    while True:
        words = typer.prompt(question, default="", show_default=False, err=True).strip()
        try:
            if words:
                parse_link(words)
            return str(words)
        except InputError as error:
            typer.echo(f"  {error.problems[0].what if error.problems else error}", err=True)
