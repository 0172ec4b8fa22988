"""`meshwright verify`: is a plan file true?"""

from __future__ import annotations

import typer

from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places

VERIFY_SECONDS = 600.0
"""A proof is done again from its beginning, so it may take as long as the user lets a search take, and more."""


def verify(
    plan: o.PlanFile,
    time_limit: o.TimeLimit = VERIFY_SECONDS,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Price a plan again and prove it again; say what is not true."""
    from meshwright.answers.verified import Verified
    from meshwright.cli.progress import searching
    from meshwright.families import verbs_of_plan
    from meshwright.families.options import require_verb
    from planner.plan_files import read_any_plan

    output = Output(json=json, csv=csv, quiet=quiet)
    check_places(("--csv", csv))
    loaded = read_any_plan(plan)
    verbs = verbs_of_plan(loaded)
    require_verb(verbs, "verify")
    with searching(output, time_limit, doing=f"verifying {plan.name}", keep=False) as budget:
        checks = tuple(verbs.verify(loaded, budget))
    about = verbs.about(loaded)
    answer = Verified(path=plan, about=about, searched=loaded.searched, checks=checks)
    output.show(answer)
    if not answer.passed:
        raise typer.Exit(1)
