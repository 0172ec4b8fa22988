"""What is known of a trainer."""

from __future__ import annotations

from dataclasses import dataclass

from planner.rule import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A program that trains, as far as a layout concerns it."""

    name: str
    """As people write it."""
    stack: str
    """Catalogue name of the software stack it runs, unless the user names another."""
    rules: tuple[Rule, ...]
    """What it refuses, beyond what no trainer can run (`planner.rules.legality`)."""
    counts_full: bool
    """All stages recompute by one setting; it may name how many blocks of a stage are recomputed in full."""
    source: str
    """Code the rules were read from."""
