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
    from meshwright.api import explain as api
    from meshwright.cli.progress import progress
    from planner.plan_files import load_plan
    from planner.space.notes import notes_of

    output = Output(json=json, csv=csv, quiet=quiet)
    loaded = load_plan(plan)
    if drift := api.drift_of(loaded, plan):
        output.note(drift)
    output.remark(notes_of(loaded.question, loaded.restrictions.read))
    if why_not is not None:
        output.show(api.why_not(loaded, why_not))
        return
    with progress(output) as reporter:
        reporter.say("searching for rivals")
        answer = api.explain(loaded)
    output.show(answer)
