"""Which pass of which microbatch this rank ran when: kept while somebody wants to know, else nothing is done."""

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
    """What engine and pipeline stages tell of their passes."""

    device: torch.device
    kept: list[Pass] | None = None
    """None: nobody wants to know."""

    @contextmanager
    def run(self, kind: str, stage: int, microbatch: int) -> Iterator[None]:
        """Around one pass."""
        if self.kept is None:
            yield
            return
        start = mark_on(self.device)
        yield
        self.kept.append(Pass(kind, stage, microbatch, start, mark_on(self.device)))
