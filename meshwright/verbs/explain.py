"""`explain`: what binds a plan, what it wins by, what would change it, and why another layout lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.flags import as_keywords, flag, plan_file
from meshwright.verbs.contract.answers import Answer
from meshwright.verbs.contract.command import command
from meshwright.verbs.contract.family import read_plan

if TYPE_CHECKING:
    from meshwright.inputs.plans import HasPlan
    from meshwright.terminal.output import Output
    from planner.plan import AnyPlan


@dataclass(frozen=True)
class ExplainOptions:
    """What `explain` takes."""

    plan: AnyPlan | HasPlan | str | Path = field(metadata=plan_file())


@as_keywords(ExplainOptions)
def explain(options: ExplainOptions) -> Answer:
    """Explain a plan or a plan file: what binds it, its rivals, and what would change it.

    Raises:
        InputError: not a plan file.
    """
    loaded, verbs = read_plan(options.plan)
    return verbs.explain(loaded)


@dataclass(frozen=True)
class WhyNotOptions(ExplainOptions):
    """What `why_not` takes."""

    layout: str


@as_keywords(WhyNotOptions)
def why_not(options: WhyNotOptions) -> Answer:
    """Say why a layout is not the plan; what the layout leaves out is free.

    Raises:
        InputError: not a plan file, or not a layout.
    """
    loaded, verbs = read_plan(options.plan)
    return verbs.why_not(loaded, options.layout)


@dataclass(frozen=True, kw_only=True)
class ExplainFlags(ExplainOptions):
    """What `meshwright explain` takes."""

    why_not: str | None = flag("LAYOUT", "Why this layout lost.")


@command(ExplainFlags, name="explain")
def explain_command(options: ExplainFlags, output: Output) -> None:
    """Say what binds a plan, why it wins, and what would change it."""
    from meshwright.terminal.progress import progress

    loaded, verbs = read_plan(options.plan, "explain", () if options.why_not is None else ("why_not",))
    if drift := verbs.drift(loaded, options.plan):
        output.note(drift)
    output.remark(verbs.notes(loaded))
    if options.why_not is not None:
        output.show(verbs.why_not(loaded, options.why_not))
        return
    with progress(output) as reporter:
        reporter.say("searching for rivals")
        answer = verbs.explain(loaded)
    output.show(answer)
