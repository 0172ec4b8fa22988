"""Verbs that read plans: beside one another, explained, improved, proved again, drawn."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output


class PlotKind(StrEnum):
    """What can be drawn."""

    FRONTIER = "frontier"
    SCALING = "scaling"
    TIME = "time"
    MEMORY = "memory"
    TIMELINE = "timeline"
    ACCURACY = "accuracy"


def plot(
    kind: Annotated[PlotKind, typer.Argument(help="What to draw.", show_default=False)],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="A plan; for time several; for accuracy run reports.",
            show_default=False,
            autocompletion=completion.plans,
        ),
    ],
    gpus: Annotated[str | None, o.optional("--gpus", "N,N,...", "Also 64..1024, 64..16384x50.")] = None,
    between: Annotated[
        str | None, o.optional("--between", "A,B", "frontier: two objectives; time,memory.")
    ] = None,
    points: Annotated[str | None, o.optional("--points", "N", "frontier: how many, or all.")] = None,
    kind_of_scaling: Annotated[str | None, o.optional("--kind", "KIND", "scaling: strong or weak.")] = None,
    tokens: o.Tokens = None,
    price: o.Price = None,
    time_limit: Annotated[
        float | None, o.optional("--time-limit", "SECONDS", "Of all searches; 120.", min=0.001)
    ] = None,
    out: Annotated[Path | None, o.out("Default KIND.png; .svg, .pdf.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Draw a curve or a breakdown."""
    from meshwright.cli.verbs.plotting import Wanted, plot

    wanted = Wanted(
        gpus=gpus,
        between=between,
        points=points,
        kind=kind_of_scaling,
        tokens=tokens,
        price=price,
        time_limit=time_limit,
    )
    plot(kind.value, files, wanted, out=out, output=Output(json=json, csv=csv, quiet=quiet))
