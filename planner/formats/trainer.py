"""The record of a trainer."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.axes.rule import Rule
from cost_models.specs.choices import RECOMPUTE_POLICIES, Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """The layouts that a training program can run, as rules and recompute policies."""

    name: str
    """The trainer's name as people write it."""
    stack: str
    """Catalogue name of the software stack it runs, unless the user names another."""
    other_stacks: tuple[str, ...] = ()
    """Catalogue names of what else is run under its rules: other releases of it, and forks that keep its arguments."""
    rules: tuple[Rule, ...]
    """Rules of the trainer, beyond the rules of all trainers (`planner.rules.legality`)."""
    policies: tuple[Recompute, ...] = RECOMPUTE_POLICIES
    """Recompute policies of the trainer."""
    counts_full: bool = False
    """Whether it can recompute a number of blocks of every stage in full (`full:N`)."""
