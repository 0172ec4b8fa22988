"""`reshard`: what moves where a model's weights go from one layout to another on the same GPUs."""

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
class ReshardOptions:
    """What `reshard` takes."""

    plan: AnyPlan | HasPlan | str | Path = field(metadata=plan_file("Where weights are."))
    to: AnyPlan | str | Path = field(metadata=plan_file("Where they go: a plan file, or a layout."))
    states: bool = flag("", "Optimizer states move, too.", kind=bool, default=False)


@as_keywords(ReshardOptions)
def reshard(options: ReshardOptions) -> Answer:
    """Say what every rank sends and receives where weights go from one layout to another, and how long it takes.

    `to` is a plan of the same model on as good a cluster, or a layout of the first plan's question. With `states`
    master weights and moments move, too.

    Raises:
        InputError: not plans of one model on one kind of node, or a layout that cannot run.
    """
    first, verbs = read_plan(options.plan, "reshard")
    return verbs.reshard(first, options.to, states=options.states)


@command(ReshardOptions, name="reshard")
def reshard_command(options: ReshardOptions, output: Output) -> None:
    """Say what moves between two layouts of one model."""
    output.show(reshard(output.load(options.plan), options.to, states=options.states))
