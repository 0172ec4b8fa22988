"""Verbs that read plans: beside one another, explained, improved, proved again, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import completion
from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places
from meshwright.cli.printing import say


def _known(kind: str) -> str:
    """The kind, where there is such a plot; told before anything else is."""
    from cost_models.documents import printable
    from cost_models.errors import UnknownNameError

    if kind not in completion.PLOTS:
        raise UnknownNameError("plot", printable(kind), completion.PLOTS)
    return kind


def plot(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help=f"What to draw: {', '.join(completion.PLOTS)}.",
            show_default=False,
            callback=_known,
            autocompletion=completion.plots,
        ),
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="A plan; time: several; accuracy: run reports; topology: CLUSTER [PLAN].",
            show_default=False,
            autocompletion=completion.plans,
        ),
    ],
    gpus: Annotated[str | None, o.optional("--gpus", "N,N,...", "Also 64..1024, 64..16384x50.")] = None,
    between: Annotated[
        str | None, o.optional("--between", "A,B", "frontier: two objectives; time,memory.")
    ] = None,
    points: Annotated[str | None, o.optional("--points", "N", "frontier: how many, or all.")] = None,
    kind_of_scaling: Annotated[
        str | None, o.optional("--kind", "KIND", "scaling: strong, weak or stacked.")
    ] = None,
    tokens: o.Tokens = None,
    price: o.Price = None,
    operations: o.Operations = None,
    allow: Annotated[
        list[str] | None, o.optional("--allow", "WORD", "ladder: parallel-block, window=N, batch=N.")
    ] = None,
    time_limit: Annotated[
        float | None, o.optional("--time-limit", "SECONDS", "Of all searches; 120.", min=0.001)
    ] = None,
    out: Annotated[Path | None, o.out("Default KIND.png; .svg, .pdf.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Draw a curve or a breakdown."""
    from dataclasses import replace

    from meshwright.api.plot import CURVE_SECONDS, check_options, require_kind
    from meshwright.api.plot import plot as draw
    from meshwright.cli.progress import searching
    from meshwright.families.pictures import PlotOptions
    from meshwright.plots.parts.style import check_suffix

    output = Output(json=json, csv=csv, quiet=quiet)
    options = PlotOptions(
        gpus=gpus,
        between=between,
        points=points,
        kind=kind_of_scaling,
        tokens=tokens,
        price=price,
        operations=operations,
        time_limit=time_limit,
        allow=tuple(allow or ()),
    )
    require_kind(kind)
    check_options(kind, options)
    path = out or Path(f"{kind}.png")
    check_suffix(path)
    check_places(("-o", path), ("--csv", csv))
    with searching(output, time_limit or CURVE_SECONDS) as budget:
        answer = draw(kind, *files, options=options, budget=budget)
    output.show(replace(answer, file=path), files=[lambda: answer.drawing.save(path)])
    if not json:
        say(f"Wrote {path}")
    output.remark(answer.notes)
    if budget.interrupted:
        output.end_interrupted("not every point was searched")
    if budget.ended:
        output.note("warning: time ran out before every point was searched; allow more with --time-limit")
