"""Chapters of a page about a recommender's plan: the answer with its proof, and pictures of the sharding."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.families.recommender.pictures import PICTURES
from meshwright.pages.chapters import Chapter
from meshwright.render.tables import Table
from meshwright.verbs.report.requests import PageRequest, pictures
from planner.recommender.plan import RecommenderPlan

_PICTURES = (("Stages of a step", "time"), ("Memory", "memory"), ("Where tables lie", "sharding"))


def chapters(plan: RecommenderPlan, request: PageRequest, told: tuple[str | Table, ...]) -> Iterator[Chapter]:
    """The chapters in their order; `told` is what `explain` says."""
    yield Chapter(title="The answer, and what binds it", blocks=told)
    yield from pictures(plan, request, _PICTURES, PICTURES)
