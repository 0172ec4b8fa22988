"""Which schedules have a trait, as sets of names and as masks of layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.schedules.registry import REGISTRY
from cost_models.schedules.schedule import PipelineSchedule


class Scheduled(Protocol):
    """Layouts as columns."""

    @property
    def schedule(self) -> Ints:
        """(N,): number of the schedule in the registry."""


def _with(trait: Callable[[PipelineSchedule], bool]) -> frozenset[str]:
    return frozenset(name for name, own in REGISTRY.items() if trait(own))


PLAIN = _with(lambda own: own.is_plain)
"""Schedules with one chunk a rank and whole backward passes."""

V_SHAPED = _with(lambda own: own.v_shaped)
"""Stages go down the pipeline ranks and up again, two chunks a rank: rank 0 holds the first stage and the last."""

SPLIT_BACKWARD = _with(lambda own: own.splits != "never")
"""Schedules that run the two halves of a backward pass, towards input and weights, at different times."""

ALWAYS_SPLIT = _with(lambda own: own.splits == "always")
"""Those of them that split every backward pass; DualPipeV does so in warm-up and cool-down only."""

KEEPS_ALL_LOGITS = _with(lambda own: own.keeps_all_logits)
"""Schedules that run something else between the forward and the backward pass of the head."""


def always_split(columns: Scheduled) -> Bools:
    """(N,): layouts whose schedule splits every backward pass."""
    return is_scheduled(columns, ALWAYS_SPLIT)


def turns_at_once(columns: Scheduled) -> Bools:
    """(N,): layouts whose head runs the whole backward pass of a microbatch directly after its forward pass."""
    return ~is_scheduled(columns, ALWAYS_SPLIT | KEEPS_ALL_LOGITS)


def keeps_all_logits(columns: Scheduled) -> Bools:
    """(N,): layouts whose schedule runs something else in between."""
    return is_scheduled(columns, KEEPS_ALL_LOGITS)


def v_shaped(columns: Scheduled) -> Bools:
    """(N,): layouts whose first and last stage are on one rank of several."""
    return is_scheduled(columns, V_SHAPED)


def is_scheduled(columns: Scheduled, some: Iterable[str]) -> Bools:
    """(N,): layouts whose schedule is one of some."""
    names = list(REGISTRY)
    return np.isin(columns.schedule, [names.index(name) for name in some])
