"""`meshwright explain`: what binds a plan, what it wins by, and what would change it."""

from __future__ import annotations

from typing import Annotated

from meshwright.cli import options as o
from meshwright.cli.output import Output


def explain(
    plan: o.PlanFile,
    why_not: Annotated[str | None, o.optional("--why-not", "LAYOUT", "Why this layout lost.")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Say what binds a plan, why it wins, and what would change it."""
    from meshwright.cli.progress import progress
    from meshwright.families import verbs_of_plan
    from meshwright.families.options import require_options
    from planner.plan_files import load_any_plan

    output = Output(json=json, csv=csv, quiet=quiet)
    loaded = load_any_plan(plan)
    verbs = verbs_of_plan(loaded)
    require_options(verbs, "explain", () if why_not is None else ("why_not",))
    if drift := verbs.drift(loaded, plan):
        output.note(drift)
    output.remark(verbs.notes(loaded))
    if why_not is not None:
        output.show(verbs.why_not(loaded, why_not))
        return
    with progress(output) as reporter:
        reporter.say("searching for rivals")
        answer = verbs.explain(loaded)
    output.show(answer)
