"""`verify`: is a plan file true?"""

from __future__ import annotations

from pathlib import Path

from cost_models.units import counted
from meshwright.cli.output import JSON_SCHEMA, Output, check_places
from meshwright.cli.progress import progress
from meshwright.render.plans.pools import gpus_in_words
from meshwright.render.tables import table
from meshwright.render.words import wrapped
from planner.plan_files import read_plan
from planner.proof.checks import Check
from planner.proof.verifying import verify as checks_of
from planner.search.budget import Budget

_VERDICTS = {True: "pass", False: "FAIL", None: "open"}


def verify(path: Path, *, time_limit: float, output: Output) -> bool:
    """Check a plan file and print what was found; says whether every check passed.

    Raises:
        InputError: no plan file, or one that cannot be read.
    """
    check_places(("--csv", output.csv))
    plan = read_plan(path)
    with progress(output) as reporter:
        reporter.doing(f"verifying {path.name}")
        budget = Budget(time_limit=time_limit, on_progress=reporter.searching, on_status=reporter.doing)
        checks = list(checks_of(plan, budget))
    rows = [{"check": one.name, "verdict": _VERDICTS[one.passed], "found": one.what} for one in checks]
    passed = all(one.passed for one in checks)
    searched = plan.certificate is not None
    output.answer(
        {
            "schema": JSON_SCHEMA,
            "plan": str(path),
            "verified": passed,
            "proof": searched,
            "checks": [{"check": one.name, "passed": one.passed, "found": one.what} for one in checks],
        },
        rows,
        wrapped(f"{path.name}: {plan.model.name} on {gpus_in_words(plan.question)}"),
        "",
        table(
            ("check", "verdict", "found"),
            [(row["check"], row["verdict"], row["found"]) for row in rows],
            words=("found",),
            names=("check", "verdict"),
        ),
        "",
        wrapped(_conclusion(checks, searched=searched)),
    )
    return passed


def _conclusion(checks: list[Check], *, searched: bool) -> str:
    """What all of it amounts to."""
    failed = [one for one in checks if one.passed is False]
    still_open = [one for one in checks if one.passed is None]
    if failed:
        return f"Not verified: {len(failed)} of {counted(len(checks), 'check')} failed"
    if still_open:
        return (
            f"Not verified: {len(still_open)} of {counted(len(checks), 'check')} could not be decided in time"
        )
    if not searched:
        return "Verified as a price: the layout was asked for, not searched, so the file claims no optimum"
    return f"Verified: {counted(len(checks), 'check')}, prices and proof"
