"""Registry of model families (transformers, recommenders), with the classes that plan, price, show and train
models of each.

Every verb, every reader of a file and the executor take the family from here. Its parts are named like entry
points, `module:name`, and imported on first use, so that this package does not import those above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Import names (`module:name`) of the classes that plan, price, show and train one family of models."""

    plan_kind: str
    """Value of the field `kind` in the family's plan files."""
    plan: str
    """Class of the family's plans, a subclass of `planner.plan.AnyPlan`."""
    verbs: str
    """Class that answers command-line verbs such as `meshwright plan` for the family: a
    `meshwright.verbs.contract.Verbs`."""
    training: str | None = None
    """Class that trains the family's plans: an `executor.families.Training`; None: the family cannot be
    trained."""
    report: str | None = None
    """Class of the reports of the family's training runs: a subclass of
    `executor.measure.report.AnyReport`; None: it has none."""


TRANSFORMER, RECOMMENDER = "transformer", "recommender"
"""Names of the model families, as in the field `kind` of a model file. A file without that field, such as one
of Hugging Face, is a transformer's."""

FAMILIES = {
    TRANSFORMER: Family(
        plan_kind="plan",
        plan="planner.plan:Plan",
        verbs="meshwright.families.transformer:TransformerVerbs",
        training="executor.transformer.training:TransformerTraining",
        report="executor.measure.report:RunReport",
    ),
    RECOMMENDER: Family(
        plan_kind="recommender-plan",
        plan="planner.recommender.plan:RecommenderPlan",
        verbs="meshwright.families.recommender:RecommenderVerbs",
        training="executor.recommender.training:RecommenderTraining",
        report="executor.recommender.training:RecommenderReport",
    ),
}
"""Classes that implement each model family, by its name."""


def load(name: str | None) -> Any:
    """Import and return the object that `module:name` names. A `name` of None stands for a class that the
    family lacks, which is an error."""
    assert name is not None, "verbs refuse what a family does not do"
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def family_of_plan_kind(kind: object) -> Family:
    """Model family whose plan files have the given `kind`; an unknown kind counts as transformers, whose
    reader reports the error."""
    return next((one for one in FAMILIES.values() if one.plan_kind == kind), FAMILIES[TRANSFORMER])
