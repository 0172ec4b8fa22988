"""Verbs that read plans: beside one another, explained, improved, proved again, drawn."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output

VERIFY_SECONDS = 600.0
"""A proof is done again from its beginning, so it may take as long as the user lets a search take, and more."""


class PlotKind(StrEnum):
    """What can be drawn."""

    FRONTIER = "frontier"
    SCALING = "scaling"
    TIME = "time"
    MEMORY = "memory"
    TIMELINE = "timeline"
    ACCURACY = "accuracy"


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
    from meshwright.cli.verbs.comparing import compare

    compare(choices, trainer=trainer, output=Output(json=json, csv=csv, quiet=quiet))


def explain(
    plan: o.PlanFile,
    why_not: Annotated[str | None, o.optional("--why-not", "LAYOUT", "Why this layout lost.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Say what binds a plan, why it wins, and what would change it."""
    from meshwright.cli.verbs.explaining import explain

    explain(plan, why_not, output=Output(json=json, csv=csv, quiet=quiet))


def advise(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN",
            help="What is run today: a plan file of `estimate -o`.",
            autocompletion=completion.plans,
        ),
    ],
    layout: Annotated[str | None, o.optional("--layout", "LAYOUT", "Run instead of the plan's own.")] = None,
    time_limit: o.TimeLimit = o.TIME_LIMIT,
    out: Annotated[Path | None, o.out("Write the best plan.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Say what to change of what is run today, step by step to the best plan."""
    from meshwright.cli.verbs.advising import advise

    advise(plan, layout, time_limit=time_limit, out=out, output=Output(json=json, csv=csv, quiet=quiet))


def verify(
    plan: o.PlanFile,
    time_limit: o.TimeLimit = VERIFY_SECONDS,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Price a plan again and prove it again; say what is not true."""
    from meshwright.cli.verbs.verifying import verify

    if not verify(plan, time_limit=time_limit, output=Output(json=json, csv=csv, quiet=quiet)):
        raise typer.Exit(1)


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
