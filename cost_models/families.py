"""Families of models: everything that depends on the kind of a model, as one value for each kind.

The kind of a model file decides how its questions are posed, priced and searched, what its plan files hold,
how a plan is trained, and how all that is shown. Every verb, every reader of a file and the executor take the family
from here and call it. Its parts are named like entry points, `module:name`, and imported by the floor that they lie on
when they are first used.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The parts of one family."""

    kind: str
    """`kind` of its model files."""
    plan_kind: str
    """`kind` of its plan files."""
    plan: str
    """Class of its plan files: `planner.plan.AnyPlan`."""
    verbs: str
    """Class of its verbs, `plan` and the others: `meshwright.families.verbs.Verbs`."""
    training: str | None = None
    """How plans are trained, and on what: `executor.families.Training`; None: they are not."""
    report: str | None = None
    """Class of the report of a run: `executor.measure.any_report.AnyReport`."""


TRANSFORMER, RECOMMENDER = "transformer", "recommender"
"""Kinds of models; files that state none, as those of Hugging Face, are transformers."""

FAMILIES = {
    TRANSFORMER: Family(
        kind=TRANSFORMER,
        plan_kind="plan",
        plan="planner.plan:Plan",
        verbs="meshwright.families.transformer.verbs:TransformerVerbs",
        training="executor.transformer.training:TransformerTraining",
        report="executor.measure.report:RunReport",
    ),
    RECOMMENDER: Family(
        kind=RECOMMENDER,
        plan_kind="recommender-plan",
        plan="planner.recommender.plan:RecommenderPlan",
        verbs="meshwright.families.recommender.verbs:RecommenderVerbs",
        training="executor.recommender.training:RecommenderTraining",
        report="executor.recommender.report:RecommenderReport",
    ),
}
"""Kind of a model → its family."""


def part(name: str | None) -> Any:
    """The object that a family's `module:name` names; the family must have it."""
    assert name is not None, "verbs refuse what a family does not do"
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def family_of_plan_kind(kind: object) -> Family:
    """The family with plan files of this kind; the transformers' where there is none, so that their reader reports the
    error."""
    return next((one for one in FAMILIES.values() if one.plan_kind == kind), FAMILIES[TRANSFORMER])
