"""The pipeline schedules by name, and what is asked of one: whether it can run, its table, where its stages lie."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

from cost_models.arrays import Ints
from cost_models.errors import InputError, UnknownNameError
from cost_models.schedules.actions import CACHED_TABLES, ActionTable, ranks_of_stages, stages_of_ranks
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
    """None where PyTorch's engine can run the schedule, else a sentence that says what is wrong.

    Raises:
        UnknownNameError: no such schedule.
    """
    own = schedule_named(schedule)
    if wrong := _objection(own, pp, vpp, microbatches):
        return wrong
    return None if own.engine_objection is None else own.engine_objection(pp, vpp, microbatches)


def _objection(own: PipelineSchedule, pp: int, vpp: int, microbatches: int) -> str | None:
    """The same for any engine."""
    if min(pp, vpp, microbatches) < 1:
        return f"pp, vpp and microbatches start at one: pp{pp} vpp{vpp}, {microbatches} microbatches"
    return own.objection(pp, vpp, microbatches)


@lru_cache(maxsize=CACHED_TABLES)
def build(schedule: str, pp: int, vpp: int, microbatches: int, *, any_engine: bool = False) -> ActionTable:
    """The actions of every pipeline rank, in the order `torch.distributed.pipelining` executes them.

    `any_engine` also makes the tables that this engine refuses and others run: 1F1B with fewer microbatches than ranks.

    Raises:
        InputError: the schedule cannot run with these numbers, or is unknown.
    """
    own = schedule_named(schedule)
    wrong = _objection(own, pp, vpp, microbatches) if any_engine else legal(schedule, pp, vpp, microbatches)
    if wrong:
        raise InputError(wrong)
    return own.table(pp, vpp, microbatches)


def rank_of_stage(schedule: str, pp: int, vpp: int) -> Ints:
    """(S,): the pipeline rank that holds each virtual stage."""
    return ranks_of_stages(pp, vpp, v_shaped=schedule_named(schedule).v_shaped)


def stages_of_rank(schedule: str, pp: int, vpp: int) -> Ints:
    """(R, V): the virtual stages of each pipeline rank, in model order."""
    return stages_of_ranks(pp, vpp, v_shaped=schedule_named(schedule).v_shaped)
