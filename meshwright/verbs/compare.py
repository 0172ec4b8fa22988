"""`compare` and `reshard`: plans and layouts side by side, and bytes that move between two layouts."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError
from cost_models.flags import Options, argument, as_keywords, flag, plan_file
from meshwright.verbs.contract import command, read_plan

if TYPE_CHECKING:
    from meshwright.families.transformer.compare import Resharded
    from meshwright.inputs.plans import HasPlan
    from meshwright.terminal.answers import Answer
    from meshwright.terminal.output import Output
    from planner.plan import AnyPlan

MAX_COMPARED = 6
"""Largest number of plans whose columns fit a line of 80 characters."""


def compare(*choices: str | Path | AnyPlan, trainer: str | None = None) -> Answer:
    """Compare two to six plans, every quantity in one table, relative to the first plan.

    After the first plan, a choice may also be a layout, priced for the first plan's question; axes that it leaves out
    are chosen by a search. Layouts obey the rules of `trainer`.

    Raises:
        InputError: fewer than two or too many, a broken plan, or a layout that cannot run (for the trainer).
    """
    from meshwright.inputs.plans import is_plan

    if not 2 <= len(choices) <= MAX_COMPARED:
        raise InputError(
            f"compare takes two to {MAX_COMPARED} plans, not {len(choices)}",
            hint='after the first, a layout will do: meshwright compare plan.yaml "tp8 pp4 dp2"',
        )
    if not is_plan(choices[0]):
        raise InputError(f"`{choices[0]}` is no plan file", hint="the first of what is compared must be one")
    first, verbs = read_plan(choices[0], "compare", () if trainer is None else ("trainer",))
    return verbs.compare(first, choices[1:], trainer)


class CompareFlags(Options, kw_only=True):
    """Options of `meshwright compare`: plans and layouts, and the trainer whose rules they obey."""

    choices: tuple[str, ...] = field(metadata=argument("PLAN...", kind=list[str], completion="plans"))
    """Plan files; after the first, layouts too."""
    trainer: str | None = flag("TRAINER", names=("--for",))
    """Keep to what this trainer can run: megatron, torchtitan, deepspeed or nemo."""


@command(CompareFlags)
def compare_command(options: CompareFlags, output: Output) -> None:
    """Set plans side by side, part by part."""
    output.show(compare(*options.choices, trainer=options.trainer))


class ReshardOptions(Options):
    """Options of `reshard`: the present plan, the plan or layout to move to, and whether optimizer states move."""

    plan: AnyPlan | HasPlan | str | Path = field(metadata=plan_file())
    """Where weights are."""
    to: AnyPlan | str | Path = field(metadata=plan_file())
    """Where they go: a plan file, or a layout."""
    states: bool = flag("", default=False)
    """Move optimizer states too."""


@as_keywords(ReshardOptions)
def reshard(options: ReshardOptions) -> Resharded:
    """Count the bytes that each rank sends and receives when weights move from one layout to another, and the least
    time.

    `to` is a plan of the same model on nodes of the same kind, or a layout for the first plan's question. With
    `states`, master weights and moments move as well.

    Raises:
        InputError: not plans of one model on one kind of node, or a layout that cannot run.
    """
    from meshwright.families.transformer.compare import reshard
    from meshwright.inputs.plans import plan_of

    first, _ = read_plan(options.plan, "reshard")
    return reshard(plan_of(first), options.to, states=options.states)


@command(ReshardOptions)
def reshard_command(options: ReshardOptions, output: Output) -> None:
    """Say what moves between two layouts of one model."""
    output.show(reshard(output.load(options.plan), options.to, states=options.states))
