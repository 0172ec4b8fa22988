"""Registry of pipeline schedules: whether one can run, its table, where its stages lie; and
which schedules have a trait, as sets of names and as masks of layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Protocol

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.errors import InputError, UnknownNameError
from cost_models.schedules.actions import (
    CACHED_TABLES,
    ActionTable,
    ranks_of_stages,
    round_sizes,
    stages_of_ranks,
)
from cost_models.schedules.schedule import PipelineSchedule

_FILES = {
    "gpipe": "gpipe",
    "1f1b": "one_f_one_b",
    "interleaved": "interleaved",
    "zero-bubble": "zero_bubble",
    "zbv": "zbv",
    "dualpipev": "dualpipev",
}
"""Every schedule and the file of this folder that holds it as `SCHEDULE`: a line here registers one."""

REGISTRY: dict[str, PipelineSchedule] = {
    name: import_module(f"cost_models.schedules.{file}").SCHEDULE for name, file in _FILES.items()
}
"""The schedules, in the order in which columns of layouts number them."""


def schedule_named(name: str) -> PipelineSchedule:
    """The schedule that layouts call so. Raises UnknownNameError: no such schedule."""
    if name not in REGISTRY:
        raise UnknownNameError("schedule", name, REGISTRY)
    return REGISTRY[name]


def legal(schedule: str, pp: int, vpp: int, microbatches: int) -> str | None:
    """Sentence that says why PyTorch's engine cannot run the schedule; None if it can.

    Raises:
        UnknownNameError: no such schedule.
    """
    own = schedule_named(schedule)
    if wrong := own.refused(pp, vpp, microbatches):
        return wrong
    return own.engine_objection and own.engine_objection(pp, vpp, microbatches)


@lru_cache(maxsize=CACHED_TABLES)
def build(schedule: str, pp: int, vpp: int, microbatches: int, *, any_engine: bool = False) -> ActionTable:
    """The actions of every pipeline rank, in the order `torch.distributed.pipelining` executes them.

    `any_engine` also makes the tables that this engine refuses and others run: 1F1B with fewer microbatches than ranks.

    Raises:
        InputError: the schedule cannot run with these numbers, or is unknown.
    """
    own = schedule_named(schedule)
    wrong = own.refused(pp, vpp, microbatches) if any_engine else legal(schedule, pp, vpp, microbatches)
    if wrong:
        raise InputError(wrong)
    return own.table(pp, vpp, microbatches)


LEAST_STEADY, LEAST_STEADY_ROUNDS = 128, 16
"""Microbatches, and rounds of them, that a shortened table has at least: twice what warm-up and cool-down of any
schedule take, so that its middle half is steady."""


@lru_cache(maxsize=CACHED_TABLES)
def shortened(
    schedule: str, pp: int, vpp: int, microbatches: int, *, any_engine: bool = False, least: int = 0
) -> ActionTable:
    """The table of a step with so many microbatches; where they are many, one of fewer, `least` or more, that leaves
    out whole rounds of the steady state (`ActionTable.left_out`). Raises as `build` does.
    """
    few = max(least, LEAST_STEADY, LEAST_STEADY_ROUNDS * pp)
    if microbatches < 4 * few:
        return build(schedule, pp, vpp, microbatches, any_engine=any_engine)
    if wrong := legal(schedule, pp, vpp, microbatches):
        raise InputError(wrong)
    fewer = few + (microbatches - few) % int(round_sizes(np.asarray(pp), np.asarray(microbatches)))
    return replace(build(schedule, pp, vpp, fewer), left_out=microbatches - fewer)


def rank_of_stage(schedule: str, pp: int, vpp: int) -> Ints:
    """(S,): the pipeline rank that holds each virtual stage."""
    return ranks_of_stages(pp, vpp, v_shaped=schedule_named(schedule).v_shaped)


def stages_of_rank(schedule: str, pp: int, vpp: int) -> Ints:
    """(R, V): the virtual stages of each pipeline rank, in model order."""
    return stages_of_ranks(pp, vpp, v_shaped=schedule_named(schedule).v_shaped)


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
"""Schedules that split every backward pass; DualPipeV does so in warm-up and cool-down only."""

KEEPS_ALL_LOGITS = _with(lambda own: own.keeps_all_logits)
"""Schedules that run something else between the forward and the backward pass of the head."""


def is_scheduled(columns: Scheduled, some: Container[str]) -> Bools:
    """(N,): layouts whose schedule is one of some."""
    wanted: Bools = np.array([name in some for name in REGISTRY])[columns.schedule]
    return wanted
