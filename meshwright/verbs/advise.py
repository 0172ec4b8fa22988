"""`advise`: what to change of what is run today, step by step to the best plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.flags import as_keywords, flag, output_flag, plan_file
from meshwright.inputs.options import Searching
from meshwright.verbs.contract.answers import AdviceAnswer
from meshwright.verbs.contract.command import command
from meshwright.verbs.contract.family import read_plan

if TYPE_CHECKING:
    from meshwright.inputs.plans import HasPlan
    from meshwright.terminal.output import Output
    from planner.plan import AnyPlan


@dataclass(frozen=True)
class AdviseOptions(Searching):
    """What `advise` takes."""

    plan: AnyPlan | HasPlan | str | Path = field(
        metadata=plan_file("What is run today: a plan file of `estimate -o`.")
    )
    layout: str | None = flag("LAYOUT", "Run instead of the plan's own.", panel="subject")


@as_keywords(AdviseOptions)
def advise(options: AdviseOptions) -> AdviceAnswer:
    """Say what to change of a plan, or of a plan file that `estimate -o` wrote of what is run today.

    A `layout` is what is run instead of the plan's own, written in its notation. The best is within the plan's own
    restrictions; `time_limit` is in seconds. A transformer's answer is an `Advised`, a recommender's a
    `ShardingAdvised`.

    Raises:
        InputError: not a plan file, not a layout that can run, or a cluster of several pools.
        InfeasibleError: no layout fits at all.
        RunError: time ran out before anything was found.
    """
    loaded, verbs = read_plan(options.plan, "advise")
    return verbs.advise(loaded, options.layout, options.spending)


@dataclass(frozen=True, kw_only=True)
class AdviseFlags(AdviseOptions):
    """What `meshwright advise` takes."""

    out: Path | None = output_flag("Write the best plan.")


@command(AdviseFlags, name="advise")
def advise_command(options: AdviseFlags, output: Output) -> None:
    """Say what to change of what is run today, step by step."""
    from meshwright.inputs.problems import Problems
    from meshwright.terminal.progress import searching

    problems = Problems()
    loaded = problems.read(lambda: output.load(options.plan))
    problems.read(lambda: output.check_places(options.out))
    problems.require()
    assert loaded is not None
    with searching(output, options.time_limit) as budget:
        answer = advise(loaded, options.layout, budget=budget)
    if options.out is not None:
        answer.save(options.out)
    output.show(answer)
    for remark in answer.remarks(interrupted=budget.interrupted):
        output.note(remark)
    output.wrote(options.out, lambda file: f"meshwright explain {file}")
    if budget.interrupted:
        output.end_interrupted("these are the best so far, and not proved")
