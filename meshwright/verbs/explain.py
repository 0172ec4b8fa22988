"""`explain` and `advise`: a plan's bottleneck, its rivals, why another layout is not chosen, and what to change."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.flags import Options, as_keywords, flag, plan_file
from meshwright.inputs.options import Searching
from meshwright.verbs.contract import command, read_plan

if TYPE_CHECKING:
    from meshwright.inputs.plans import HasPlan
    from meshwright.terminal.answers import Answer
    from meshwright.terminal.output import Output
    from meshwright.verbs.contract import PlanAnswer
    from planner.plan import AnyPlan


def explain(plan: AnyPlan | HasPlan | str | Path) -> Answer:
    """Explain a plan or plan file: its bottleneck, its rivals, and changes that would make it faster.

    Raises:
        InputError: not a plan file.
    """
    loaded, verbs = read_plan(plan)
    return verbs.explain(loaded)


def why_not(plan: AnyPlan | HasPlan | str | Path, layout: str) -> Answer:
    """Explain why a layout is not the plan; if the layout names only some axes, a search sets the others.

    Raises:
        InputError: not a plan file, or not a layout.
    """
    loaded, verbs = read_plan(plan)
    return verbs.why_not(loaded, layout)


class ExplainFlags(Options, kw_only=True):
    """Options of `meshwright explain`: the plan, and a layout to explain instead (`--why-not`)."""

    plan: Path = field(metadata=plan_file())
    """Plan file written by `meshwright plan -o`."""
    why_not: str | None = flag("LAYOUT")
    """Explain why this layout is not the answer."""


@command(ExplainFlags)
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


class AdviseOptions(Searching):
    """Options of `advise`: the plan or layout that is run today, and the limits of the search."""

    plan: AnyPlan | HasPlan | str | Path = field(metadata=plan_file())
    """What is run today: a plan file of `estimate -o`."""
    layout: str | None = flag("LAYOUT", panel="subject")
    """Layout to use in place of the plan's."""


@as_keywords(AdviseOptions)
def advise(options: AdviseOptions) -> PlanAnswer:
    """Advise how to change the layout run today, given as a plan or as a plan file of `estimate -o`.

    `layout` replaces the plan's layout as the one run today. The best plan obeys the plan's restrictions;
    `time_limit` is in seconds. A transformer's answer is an `Advised`, a recommender's a `ShardingAdvised`.

    Raises:
        InputError: not a plan file, not a layout that can run, or a cluster of several pools.
        InfeasibleError: no layout fits at all.
        RunError: time ran out before anything was found.
    """
    loaded, verbs = read_plan(options.plan, "advise")
    return verbs.advise(loaded, options.layout, options.spending)


@command(AdviseOptions, out="Write the best plan.")
def advise_command(options: AdviseOptions, output: Output) -> None:
    """Say what to change of what is run today, step by step."""
    from meshwright.terminal.progress import searching

    loaded = output.read(lambda: output.load(options.plan))
    with searching(output, options.time_limit) as budget:
        answer = advise(loaded, options.layout, budget=budget)
    cut_short = "these are the best so far, and not proved" * budget.interrupted
    output.finish(answer, interrupted=cut_short)
