"""Chapters of a page about a recommender's plan."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.families.recommender.explained import explain
from meshwright.pages.chapters import Chapter
from meshwright.plots.pictures import pictures_of
from meshwright.verbs.report.writing import PageRequest, pictures
from planner.recommender.plan import RecommenderPlan

_PICTURES = (("Stages of a step", "time"), ("Memory", "memory"), ("Where tables lie", "sharding"))


def chapters(plan: RecommenderPlan, request: PageRequest) -> Iterator[Chapter]:
    """The chapters in their order."""
    yield Chapter(title="The answer, and what binds it", blocks=explain(plan).text)
    yield from pictures(plan, request, _PICTURES, pictures_of(RecommenderPlan))
