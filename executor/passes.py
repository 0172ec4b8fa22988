"""Tells whether this rank is in a pass, and records which ran when, while a recording is on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from executor.timing import Mark, mark_on


class Pass(NamedTuple):
    """One pass, named as in an action table (`cost_models.schedules.actions`)."""

    kind: str
    stage: int
    microbatch: int
    start: Mark
    end: Mark


@dataclass(slots=True)
class Passes:
    """The recording of passes that engine and pipeline stages write to."""

    device: torch.device
    kept: list[Pass] | None = None
    """None: no recording is on."""
    running: bool = False
    """Whether a pass is under way; a pipeline also runs its stages outside, once, to learn their shapes."""

    @contextmanager
    def run(self, kind: str, stage: int, microbatch: int) -> Iterator[None]:
        """Record the pass inside the block."""
        self.running = True
        try:
            if self.kept is None:
                yield
                return
            start = mark_on(self.device)
            yield
            self.kept.append(Pass(kind, stage, microbatch, start, mark_on(self.device)))
        finally:
            self.running = False
