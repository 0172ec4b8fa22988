"""Which family answers: that of the model a question is about, or of a plan file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cost_models.base import Spec
from cost_models.documents import Document
from cost_models.families import Family, family_of_plan_kind, part
from cost_models.files.models import family_of_model
from meshwright.families.verbs import Verbs
from planner.any_plan import AnyPlan


def verbs_of_model(model: str | Spec | Document) -> Verbs[Any]:
    """The verbs for a model by its name, its file, what that holds, or itself."""
    return _verbs(family_of_model(model))


def verbs_of_plan(plan: AnyPlan) -> Verbs[Any]:
    """The verbs for a plan."""
    return _verbs(family_of_plan_kind(plan.kind))


def _verbs(family: Family) -> Verbs[Any]:
    verbs: Callable[[], Verbs[Any]] = part(family.verbs)
    return verbs()
