"""`meshwright compare`: plans and layouts side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output


def compare(
    choices: Annotated[
        list[str],
        typer.Argument(
            metavar="PLAN...",
            help="Plan files; after the first, layouts too.",
            show_default=False,
            autocompletion=completion.plans,
        ),
    ],
    trainer: o.For = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Set plans side by side, part by part."""
    from meshwright.api.compare import compare

    Output(json=json, csv=csv, quiet=quiet).show(compare(*choices, trainer=trainer))
