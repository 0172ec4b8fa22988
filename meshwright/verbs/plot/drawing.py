"""Draws plans, the layouts they were chosen from, and run reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_models.errors import InputError
from meshwright.plots import pictures  # registers them
from meshwright.plots.drawing import PICTURES, Drawing, PictureRequest, PlotOptions, picture
from meshwright.render.words import sentence_list, wrapped
from meshwright.terminal.answers import Answer
from meshwright.verbs.contract import verbs_of_plan
from meshwright.verbs.forecast import forecast
from meshwright.verbs.plot import CURVE_SECONDS
from planner.plan import load_any_plan
from planner.search.search import Budget


def draw_kind(kind: str, files: Sequence[str | Path], options: PlotOptions, budget: Budget | None) -> Plotted:
    """Draw one kind of plot of files, each of which is read once, as it may be a pipe. Raises InputError."""
    spending = budget or Budget(time_limit=options.time_limit or CURVE_SECONDS, keep_on_interrupt=True)
    spending.proof = "bounds"
    request = PictureRequest(files=tuple(map(Path, files)), options=options, budget=spending)
    draw_files = PICTURES[Path].get(kind)
    if draw_files is None or (kind == "timeline" and len(files) != 2):
        drawing = _draw_plans(kind, request)
    else:
        drawing = draw_files(request)
    return Plotted(kind=kind, drawing=drawing, notes=tuple(request.notes))


def _draw_plans(kind: str, request: PictureRequest) -> Drawing:
    """A kind that families draw of their plans."""
    plans = [load_any_plan(path) for path in request.files]
    for plan in plans:
        request.note(verbs_of_plan(plan).notes(plan))
    verbs = verbs_of_plan(plans[0])
    if kind not in verbs.pictures:
        hint = f"{sentence_list(sorted(verbs.pictures))} are"
        raise InputError(f"`{kind}` is not drawn of {verbs.noun}", hint=hint)
    return verbs.pictures[kind](replace(request, plans=plans))


@picture("forecast", Path)
def _forecast(request: PictureRequest) -> Drawing:
    """The end of a plan's job against the interval between checkpoints."""
    plan, options = pictures.plan_in(request, request.file("forecast", "plan")), request.options
    return forecast(plan, options.tokens, operations=options.operations).plot()


class Plotted(Answer):
    """One kind of plot, drawn."""

    kind: str
    drawing: Drawing
    notes: tuple[str, ...] = ()
    """Notes on effects that the picture leaves out."""
    file: Path | None = None
    """File to which the picture is written."""

    def csv_rows(self) -> list[dict[str, Any]]:
        """Rows of the data drawn, in base units."""
        return self.drawing.points

    def document(self) -> dict[str, Any]:
        plot = {"plot": self.kind, "file": self.file and str(self.file), "title": self.drawing.title}
        return plot | {"notes": list(self.notes), "points": self.rows}

    def view(self) -> tuple[str, ...]:
        """Text that `meshwright plot` prints."""
        table = self.drawing.table
        return (wrapped(self.drawing.title), *(("", table) if table else ()))

    def __repr__(self) -> str:
        return self.drawing.title
