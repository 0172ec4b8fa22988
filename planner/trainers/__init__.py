"""Trainers that a plan can be made for (`--for`): the rules of their own argument checks, and the stack they run."""

from __future__ import annotations

import numpy as np

from cost_models.errors import UnknownNameError
from cost_models.question import Question
from cost_models.specs.columns import LayoutColumns
from cost_models.specs.layout import Layout
from planner.rules import Bools, Words
from planner.trainers.megatron import MEGATRON
from planner.trainers.torchtitan import TORCHTITAN
from planner.trainers.trainer import Trainer as Trainer

TRAINERS: dict[str, Trainer] = {"megatron": MEGATRON, "torchtitan": TORCHTITAN}


def trainer_named(name: str) -> Trainer:
    """The trainer of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in TRAINERS:
        raise UnknownNameError("trainer", name, TRAINERS, hint=f"trainers: {', '.join(TRAINERS)}")
    return TRAINERS[name]


def rows_for(name: str, question: Question, columns: LayoutColumns) -> Bools:
    """(N,): which layouts the trainer would start with."""
    allowed = np.ones(len(columns), dtype=np.bool_)
    for rule in trainer_named(name).rules:
        allowed &= ~rule.broken(question, columns)
    return allowed


def refusals(name: str, question: Question, layout: Layout) -> list[Words]:
    """Every rule of the trainer that the layout breaks, in words; of a placed layout also how its stages recompute."""
    trainer, columns = trainer_named(name), LayoutColumns.of([layout])
    broken = [rule for rule in trainer.rules if rule.broken(question, columns)[0]]
    found = [rule.sentence(question, layout) for rule in broken]
    if trainer.same_recompute and len(layout.recompute) > 1:
        policies = ", ".join(dict.fromkeys(layout.recompute))
        what = f"{trainer.name} recomputes the same on every stage, not {policies}"
        found.append(Words(what, "write one policy, like `recompute=selective`"))
    return found
