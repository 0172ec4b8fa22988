"""What a page about a plan is made with, and chapters that are a picture each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cost_models.errors import MeshwrightError
from meshwright.pages.chapters import Chapter, Picture
from meshwright.plots.drawn import Drawing
from meshwright.render.words import Fact
from meshwright.verbs.plot import PlotOptions
from meshwright.verbs.plot.requests import PictureRequest
from planner.plan import AnyPlan
from planner.search.search import Budget

USUAL_NAME = "plan.yaml"
_POINTS = "8"
"""Of a frontier: each is a search."""


@dataclass(slots=True, kw_only=True)
class PageRequest:
    """How the plan is called, the time for searches, and the notes met on the way."""

    name: str = USUAL_NAME
    """The plan's file, as commands on the page name it."""
    budget: Budget = field(default_factory=Budget)
    """For the searches of the page."""
    ends: tuple[Fact, ...] = ()
    """When training ends and what it costs; empty where the tokens are not known."""
    forecast: Mapping[str, Any] = field(default_factory=dict)
    """The same as the document of `forecast`, under that name."""
    notes: list[str] = field(default_factory=list)
    """What the page passes over."""

    def tell(self, doing: str) -> None:
        """Say what is being made now."""
        if self.budget.on_status is not None:
            self.budget.on_status(doing)


def pictures(
    plan: AnyPlan,
    request: PageRequest,
    wanted: Sequence[tuple[str, str]],
    drawers: Mapping[str, Callable[[PictureRequest], Drawing]],
) -> Iterator[Chapter]:
    """A chapter for each (title, kind of plot); one that cannot be drawn says why."""
    for title, kind in wanted:
        request.tell(f"drawing {kind}")
        options = PlotOptions(points=_POINTS) if kind == "frontier" else PlotOptions()
        asked = PictureRequest(
            plans=[plan], options=options, budget=replace(request.budget), notes=request.notes, named=False
        )
        try:
            drawing = drawers[kind](asked)
        except MeshwrightError as error:  # what is asked of it is the page's, not the user's
            yield Chapter(title=title, blocks=[f"Not drawn: {error}"])
        else:
            command = f"meshwright plot {kind} {request.name}"
            table = [drawing.table] if drawing.table else []
            yield Chapter(title=title, blocks=[*table, Picture(drawing=drawing, command=command)])
