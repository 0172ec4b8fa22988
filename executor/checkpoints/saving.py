"""What a user says about checkpoints; no torch here, as the command line reads it before it starts any rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EVERY, KEEP = 100, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Where checkpoints go, how often, and how many stay."""

    folder: Path
    every: int = EVERY
    """Optimizer steps from one to the next; there is one more at the end."""
    keep: int = KEEP
    """The newest so many stay."""
    resume: bool = False
    """Go on from the newest that is whole; start at the beginning where there is none."""
