"""From a question and some layouts to `StageCosts`: the one place where parts are added up."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from cost_models import memory_terms as memory
from cost_models import time_terms as time
from cost_models.memory_terms import MemoryTerms, memory_terms
from cost_models.question import Question
from cost_models.specs.columns import LayoutColumns
from cost_models.stage_costs import StageCosts
from cost_models.time_terms import TimeTerms, time_terms


def stage_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """Price N layouts at once.

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    return add_up(question, time_terms(question, columns), memory_terms(question, columns))


def time_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """The seconds alone, for who asks nothing else; every byte is zero.

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    terms = time_terms(question, columns)
    seconds = {field.name: time.total(getattr(terms, field.name)) for field in fields(TimeTerms)}
    none = np.zeros(len(columns))
    space = {field.name: none for field in fields(MemoryTerms)}
    return StageCosts(**seconds, **space, memory_limit=none)


def add_up(question: Question, times: TimeTerms, memories: MemoryTerms) -> StageCosts:
    """Sum each coefficient over its parts."""
    seconds = {field.name: time.total(getattr(times, field.name)) for field in fields(TimeTerms)}
    space = {field.name: memory.total(getattr(memories, field.name)) for field in fields(MemoryTerms)}
    limit = np.full(len(seconds["layer_forward"]), memory_limit(question))
    return StageCosts(**seconds, **space, memory_limit=limit)


def memory_limit(question: Question) -> float:
    """Bytes of one device that a plan may fill: the device's memory less what the stack holds back."""
    reserve = question.cluster.memory_reserve
    share = question.stack.memory_reserve if reserve is None else reserve
    return question.cluster.gpu.memory * (1.0 - share)
