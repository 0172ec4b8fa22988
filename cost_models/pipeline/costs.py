"""From a question and some layouts to `StageCosts`: the one place where parts are added up."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import Ints, LayoutColumns
from cost_models.axes.distinct import over_distinct
from cost_models.axes.overlap import overlaps
from cost_models.memory.device import memory_limit
from cost_models.pipeline import memory_terms as memory
from cost_models.pipeline.memory_terms import MemoryTerms, memory_terms
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.pipeline.time_parts import total as total_seconds
from cost_models.pipeline.time_terms import TimeTerms, time_terms
from cost_models.question import MixedQuestion, Question
from cost_models.schedules import REGISTRY


def stage_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """Price N layouts at once.

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    assert not isinstance(question, MixedQuestion), (
        "ranks in several pools have no one price: see `pool_terms`"
    )
    names = [field.name for field in fields(LayoutColumns)]
    return over_distinct(as_priced(question, columns), names, lambda rows: _stage_costs(question, rows))


def _stage_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    limit = memory_limit(question, columns)
    return add_up(time_terms(question, columns), memory_terms(question, columns), limit)


def as_priced(question: Question, columns: LayoutColumns) -> LayoutColumns:
    """The same with as few different rows as there are different prices of their stages.

    Chunks and schedules make the pipeline; of the coefficients of one stage few know of them: a chunk is the part that
    data parallelism cannot hide.
    """
    stack, vpp = question.stack, columns.vpp
    if not stack.retains_boundary_tensors:
        always = stack.reduces_chunks_in_turn and stack.overlap_gradient_reduce
        vpp = np.where(overlaps(columns, "dp", always=always), vpp, 1)
    return replace(columns, vpp=vpp, schedule=_PRICED_AS[columns.schedule])


def _priced_as() -> Ints:
    """The first schedule whose stages are priced by the same rules, for each schedule."""
    traits = [(own.splits == "always", own.v_shaped, own.keeps_all_logits) for own in REGISTRY.values()]
    return np.array([traits.index(own) for own in traits])


_PRICED_AS = _priced_as()


def time_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """The seconds alone, for who asks nothing else; every byte is zero.

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    terms = time_terms(question, columns)
    seconds = {field.name: total_seconds(getattr(terms, field.name)) for field in fields(TimeTerms)}
    none = np.zeros(len(columns))
    space = {field.name: none for field in fields(MemoryTerms)}
    return StageCosts(**seconds, **space, memory_limit=none)


def byte_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """The bytes alone; every second is zero."""
    names = [field.name for field in fields(LayoutColumns)]
    return over_distinct(as_priced(question, columns), names, lambda rows: _byte_costs(question, rows))


def _byte_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    terms, none = memory_terms(question, columns), np.zeros(len(columns))
    space = {field.name: memory.total(getattr(terms, field.name)) for field in fields(MemoryTerms)}
    seconds = {field.name: none for field in fields(TimeTerms)}
    return StageCosts(**seconds, **space, memory_limit=memory_limit(question, columns))


def add_up(times: TimeTerms, memories: MemoryTerms, limit: npt.NDArray[np.float64]) -> StageCosts:
    """Sum each coefficient over its parts; `limit` (N,) is what a device's peak may reach."""
    seconds = {field.name: total_seconds(getattr(times, field.name)) for field in fields(TimeTerms)}
    space = {field.name: memory.total(getattr(memories, field.name)) for field in fields(MemoryTerms)}
    return StageCosts(**seconds, **space, memory_limit=limit)
