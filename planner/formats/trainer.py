"""The record of a trainer, and how its rules are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.rule import Bools, Rule, Words
from cost_models.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A training program, as far as it concerns a layout."""

    name: str
    """The trainer's name as people write it."""
    stack: str
    """Catalogue name of the software stack it runs, unless the user names another."""
    other_stacks: tuple[str, ...] = ()
    """Catalogue names of what else is run under its rules: other releases of it, and forks that keep its arguments."""
    rules: tuple[Rule, ...]
    """What the trainer refuses, beyond what no trainer can run (`planner.rules.legality`)."""
    counts_full: bool
    """Whether its one setting for all stages may be how many blocks of a stage are recomputed in full."""
    source: str
    """Code the rules were read from."""


def refuses(name: str, broken: Callable[[Question, LayoutColumns], Bools], what: str, hint: str = "") -> Rule:
    """A rule whose sentence is a template of `layout` and `model`: "not with `zero{layout.zero}`"."""
    return Rule(
        name=name,
        broken=broken,
        sentence=lambda question, layout: Words(what.format(layout=layout, model=question.model), hint),
    )
