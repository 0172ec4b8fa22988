"""Reads `--fix`, `--forbid`, `--allow`, `--max-memory` and `--for` as the restrictions of a search."""

from __future__ import annotations

from dataclasses import replace

from cost_models.errors import InputError
from cost_models.question import Question
from cost_models.risk import confident_share
from cost_models.units import parse_bytes
from meshwright.inputs.options import Limits
from meshwright.inputs.problems import Problems
from planner.space.restrictions import Restrictions, parse_restrictions


def restrictions_of(limits: Limits, trainer: str | None = None) -> Restrictions:
    """Read the limits, with the trainer whose rules the plan obeys.

    Raises:
        InputError: a word that cannot be read; all of them at once.
    """
    problems = Problems()
    restrictions = problems.read(lambda: parse_restrictions(limits.fix, limits.forbid, allow=limits.opened))
    size = problems.read(lambda: _size(limits.max_memory))
    problems.require()
    assert restrictions is not None
    return replace(restrictions, max_memory=size, trainer=trainer)


def confident(restrictions: Restrictions, question: Question) -> Restrictions:
    """The restrictions with the memory limit that predicted peaks may reach if what was asked for is to hold with the
    question's confidence."""
    if restrictions.max_memory is None:
        return restrictions
    share = confident_share(question.confidence, question.memory_error)
    return replace(restrictions, max_memory=restrictions.max_memory * share)


def _size(max_memory: str | None) -> float | None:
    if max_memory is None:
        return None
    try:
        return parse_bytes(max_memory)
    except ValueError as error:
        raise InputError(f"--max-memory: {error}") from None
