"""Families of models: for each kind of model file, the classes that pose, price, search, save, train and show
its plans.

Every verb, every reader of a file and the executor take the family from here. Its parts are named like entry
points, `module:name`, and imported on first use, so that this package does not import those above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Import names of the classes that implement one family of models."""

    plan_kind: str
    """Value of `kind` in the family's plan files."""
    plan: str
    """Class of the family's plans: a `planner.plan.AnyPlan`."""
    verbs: str
    """Class of the family's verbs, such as `meshwright plan`: a `meshwright.verbs.contract.family.Verbs`."""
    training: str | None = None
    """Class that trains the family's plans: an `executor.families.Training`; None: plans are not trained."""
    report: str | None = None
    """Class of the report of a run: `executor.measure.any_report.AnyReport`."""


TRANSFORMER, RECOMMENDER = "transformer", "recommender"
"""Kinds of models; files without a kind, such as those of Hugging Face, are transformers."""

FAMILIES = {
    TRANSFORMER: Family(
        plan_kind="plan",
        plan="planner.plan:Plan",
        verbs="meshwright.families.transformer.verbs:TransformerVerbs",
        training="executor.transformer.training:TransformerTraining",
        report="executor.measure.report:RunReport",
    ),
    RECOMMENDER: Family(
        plan_kind="recommender-plan",
        plan="planner.recommender.plan:RecommenderPlan",
        verbs="meshwright.families.recommender.verbs:RecommenderVerbs",
        training="executor.recommender.training:RecommenderTraining",
        report="executor.recommender.report:RecommenderReport",
    ),
}
"""Kind of a model → its family."""


def part(name: str | None) -> Any:
    """Import and return the object named by `module:name`, an implementation that the model family must have."""
    assert name is not None, "verbs refuse what a family does not do"
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def family_of_plan_kind(kind: object) -> Family:
    """Model family whose plan files have this `kind`; for an unknown kind the transformers, whose reader then
    reports the error."""
    return next((one for one in FAMILIES.values() if one.plan_kind == kind), FAMILIES[TRANSFORMER])
