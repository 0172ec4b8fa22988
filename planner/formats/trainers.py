"""Trainers that a plan can be made for (`--for`): the rules of their argument checks, and the stack they run."""

from __future__ import annotations

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.rule import Words, objections, unbroken
from cost_models.axes.stages import number_in_full, policies_in
from cost_models.errors import InputError, UnknownNameError
from cost_models.files import catalog
from cost_models.question import Question
from cost_models.specs.stack import StackSpec
from planner.formats.rules import ACCELERATE, AXOLOTL, DEEPSPEED, MEGATRON, NEMO, TORCHTITAN, Trainer

TRAINERS: dict[str, Trainer] = {"megatron": MEGATRON, "torchtitan": TORCHTITAN, "deepspeed": DEEPSPEED}
TRAINERS |= {"nemo": NEMO, "accelerate": ACCELERATE, "axolotl": AXOLOTL}


def trainer_named(name: str) -> Trainer:
    """The trainer with this name. Raises UnknownNameError: there is none."""
    if name not in TRAINERS:
        raise UnknownNameError("trainer", name, TRAINERS, hint=f"trainers: {', '.join(TRAINERS)}")
    return TRAINERS[name]


def trainers_of(stack: StackSpec) -> tuple[str, ...]:
    """Names of the trainers that can run a stack; first the stack's own, then compatible ones."""
    first = [name for name, one in TRAINERS.items() if one.stack == stack.name]
    return (*first, *(name for name, one in TRAINERS.items() if stack.name in one.other_stacks))


def require_own_stack(name: str, stack: StackSpec) -> None:
    """Raise InputError if a trainer cannot run this stack; a stack outside the catalogue is accepted as the
    user's.

    Raises:
        InputError: the stack is another trainer's.
    """
    trainer = trainer_named(name)
    stacks = (trainer.stack, *trainer.other_stacks)
    if stack.name not in stacks and stack.name in catalog.names("stacks"):
        other = f"`--stack {stack.name}`, whose prices are of another trainer"
        hint = f"stacks that go with `--for {name}`: {', '.join(stacks)}"
        raise InputError(f"`--for {name}` does not go with {other}", hint=hint)


def rows_for(name: str, question: Question, columns: LayoutColumns) -> Bools:
    """(N,) whether the trainer accepts each layout."""
    return unbroken(trainer_named(name).rules, question, columns)


def refusals(name: str, question: Question, layout: Layout) -> list[Words]:
    """Reasons why the trainer refuses a layout, one for every broken rule, and one for recompute that the
    trainer cannot express."""
    trainer, mix = trainer_named(name), layout.recompute[0]
    refused, policies = objections(trainer.rules, question, layout), set(policies_in(mix))
    if layout.replicas:
        message = f"{trainer.name} gives every replica as many microbatches, and `replicas=` does not"
        refused.append(Words(message, "leave out `replicas`"))
    # recompute is no `Rule`, since those do not see single stages
    counts = trainer.counts_full and layout.layers
    if counts and number_in_full(layout.layers, layout.stage_recompute) is not None:
        return refused
    if len(layout.recompute) > 1:
        message = f"{trainer.name} recomputes the same on every stage, not {', '.join(dict.fromkeys(layout.recompute))}"
        refused.append(Words(message, "write one policy, like `recompute=selective`"))
    elif absent := sorted(policies - set(trainer.policies)):
        hint = f"it has {' and '.join(trainer.policies)}"
        refused.append(Words(f"{trainer.name} has no `recompute={absent[0]}`", hint))
    elif len(policies) > 1 and not (trainer.counts_full and policies == {"full", "none"}):
        hint = "write `recompute=full:N` or one policy" if trainer.counts_full else "write one policy"
        message = f"{trainer.name} has one policy for the blocks of a stage, not `recompute={mix}`"
        refused.append(Words(message, hint))
    return refused
