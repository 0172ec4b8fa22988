"""Plan files: a plan written as YAML, and read back with its layout checked.

Plans are YAML files of one schema version; reading one runs no code (safe YAML, then strict validation). The same query
gives the same bytes, so a plan file holds no date and no duration of the search.

The price of a saved plan today: under the memory limit of its question, and under that which it was held to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cost_models.axes.layout import Layout
from cost_models.documents import Document
from cost_models.errors import InputError, Problem
from cost_models.estimate import Estimate
from cost_models.families import family_of_plan_kind, part
from cost_models.files.parsing import check_kind, validate
from cost_models.files.reading import read_document
from cost_models.files.whole import write_whole
from cost_models.pipeline.estimating import estimate
from cost_models.specs.stack import DROPPED_FACTS
from planner.plan import PLAN_SCHEMA, AnyPlan, Plan, package_version

P = TypeVar("P", bound=AnyPlan)

UNWRITTEN = {
    *("top", "infeasible", "pruned", "solved", "undecided", "settled", "proved_by", "seconds"),
    *("method", "solver"),
}
"""What a certificate says of how it was come by: of no plan file, and passed over in those of earlier versions."""

_HEADER = """\
# A Meshwright plan: inputs, layout, prediction and proof.
#   meshwright explain PLAN    why this layout
#   meshwright run PLAN        train it, and compare
"""


def plan_text(plan: AnyPlan) -> str:
    """A plan as the YAML of its file."""
    fields = plan.model_dump(mode="json", exclude={"certificate": UNWRITTEN})
    predicted = fields.get("prediction", {})
    for tier in ("host", "drive"):
        if predicted.get(f"{tier}_bytes") is None:  # nothing lies there, so nothing is said of it
            for name in (f"{tier}_bytes", f"{tier}_limit"):
                predicted.pop(name, None)
    return plan_yaml(_HEADER, fields)


def save_plan(plan: AnyPlan, path: str | Path) -> None:
    """Write a plan file whole or not at all. Raises InputError: the place cannot be written to."""
    write_plan(path, plan_text(plan))


def plan_yaml(header: str, fields: Mapping[str, Any]) -> str:
    """The text of a plan file: comments, then the fields, ended by YAML's end-of-document mark."""
    return header + yaml.safe_dump(
        dict(fields), sort_keys=False, explicit_end=True, allow_unicode=True, width=120
    )


def write_plan(path: str | Path, text: str) -> None:
    """Write a plan file whole or not at all. Raises InputError where the place cannot be written to."""
    try:
        write_whole(Path(path), text)
    except OSError as error:
        raise InputError(f"cannot write `{path}`: {(error.strerror or str(error)).lower()}") from None


def require_ended(document: Document) -> None:
    """Raises InputError where the file of a plan lacks the mark of its end, as one that was cut short does."""
    if not document.ended:
        raise InputError(f"`{document.source}` is cut short: it does not end with `...`", hint="plan again")


def load_any_plan(path: str | Path) -> AnyPlan:
    """Read a plan file of whichever family; its layout is checked against its own model, cluster and training.

    Raises:
        InputError: missing, no plan, of another schema version, cut short, or inconsistent; all problems at once.
    """
    document = read_document(path)
    return _checked(document, read_plan_in(document))


def load_plan(path: str | Path) -> Plan:
    """Read a plan file of a transformer as `load_any_plan` does, and raises as that."""
    document = read_document(path)
    return _checked(document, _read_plan(document, Plan))


def _checked(document: Document, plan: P) -> P:
    """The plan, checked for problems on its own cluster. Raises InputError."""
    if problems := plan.problems():
        where, headline = document.where(("layout",)), f"the layout of `{document.source}` cannot run"
        raise InputError(headline, problems=[Problem(where, problem.what) for problem in problems])
    return plan


def read_plan_in(document: Document) -> AnyPlan:
    """The plan of whichever family in a file that was read; its layout is not checked.

    Raises:
        InputError: no plan, of another schema version or cut short; all problems at once.
    """
    kind = document.value.get("kind") if isinstance(document.value, dict) else None
    plan_type: type[AnyPlan] = part(family_of_plan_kind(kind).plan)  # of an unknown kind it reports the error
    return _read_plan(document, plan_type)


def without_dropped_facts(fields: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields of a plan's file without facts of its stack that only earlier versions have; names of those facts."""
    facts = fields.get("stack")
    if not isinstance(facts, dict):
        return fields, ()
    ignored = tuple(name for name in facts if name in DROPPED_FACTS)
    return fields | {"stack": {name: facts[name] for name in facts if name not in ignored}}, ignored


def _read_plan(document: Document, plan_type: type[P]) -> P:
    check_kind(document, plan_type)
    written = document.value.get("schema_version")
    if written != PLAN_SCHEMA:
        what = "does not say its schema_version" if written is None else f"has schema_version {written!r:.20}"
        raise InputError(
            f"`{document.source}` {what}; this Meshwright ({package_version()}) reads {PLAN_SCHEMA}",
            hint="plan again with this version, or use the one that wrote the file",
        )
    require_ended(document)
    if isinstance(proof := document.value.get("certificate"), dict):
        read = {name: value for name, value in proof.items() if name not in UNWRITTEN}
        document = replace(document, value=document.value | {"certificate": read})
    fields, ignored = without_dropped_facts(document.value)
    plan = validate(replace(document, value=fields), plan_type).without_facts(ignored)
    try:
        plan.require_readable()
    except InputError as error:
        where = document.where(("restrictions",))
        problems = [Problem(where, str(problem)) for problem in error.problems]
        raise InputError(error.headline, problems=problems) from None
    return plan


def priced_again(plan: Plan, layout: Layout | None = None) -> Estimate:
    """The estimate of the plan's layout, or of another, for its question, under the memory limit that was asked for."""
    return estimate(plan.question, layout or plan.layout).within(plan.user_restrictions.max_memory)


def priced_within_restrictions(plan: Plan) -> Estimate:
    """The same under the limit of what it was chosen from: a recommended layout must fit with a higher confidence."""
    limits = plan.restrictions.read
    return estimate(limits.apply_confidence(plan.question), plan.layout).within(limits.max_memory)
