"""Switches of the software stack as changes of what is run: overlaps, kernels, fusions, each by itself.

A switch is a fact of the stack that its own catalogue entry has otherwise: its trainer can, and the run does not. None
re-shards anything, so they come before changes of the layout, the one that gains most first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cost_models.axes.layout import Layout
from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.pipeline.estimating import estimate
from cost_models.question import Question
from planner.explaining.change_path import LEAST_GAIN, Change, under_limit
from planner.explaining.explain import gain
from planner.rules.legality import check
from planner.space.restrictions import Restrictions

SWITCHES = (
    "overlap_gradient_reduce",
    "overlap_parameter_gather",
    "overlap_tensor_parallel",
    "overlap_pipeline_sends",
    "expert_dispatch",
    "attention",
    "transformer_engine",
    "fused_elementwise",
    "fused_norms",
    "fused_gradient_accumulation",
    "fused_loss",
    "extra_loss_copies",
    "deterministic",
    "launches_block",
)
"""Facts of a stack that a run switches and that leave its mathematics alone."""
Spelled = Callable[[Question, Question, Layout], str]
"""The words in which a trainer is told to go from one question to the other, which has another switch; empty: none."""


def switched(
    question: Question, today: Estimate, restrictions: Restrictions, spelled: Spelled
) -> tuple[Question, Estimate, list[Change]]:
    """The question with every switch that gains, today's layout priced for it, and the switches, most gain first."""
    left = {name: _with(question, name) for name in _otherwise(question)}
    alone = {name: price for name, one in left.items() if (price := _priced(one, today, restrictions))}
    here, changes = today, list[Change]()
    while alone:
        tried = {name: _with(question, name) for name in alone}
        found = {name: price for name, one in tried.items() if (price := _priced(one, today, restrictions))}
        best = max(found, key=lambda name: (gain(here, found[name]), name), default="")
        if not best or gain(here, found[best]) < LEAST_GAIN:
            break
        words = spelled(question, tried[best], today.layout) or _plainly(tried[best], best)
        changes.append(
            Change(words=words, trouble="a flag", by_itself=alone.pop(best), with_earlier=found[best])
        )
        question, here = tried[best], found[best]
    return question, here, changes


def _otherwise(question: Question) -> Iterator[str]:
    """Switches that the stack's own entry of the catalogue has otherwise; none of a stack that is the user's own."""
    if question.stack.name in catalog.names("stacks"):
        usual = catalog.load_stack(question.stack.name)
        yield from (name for name in SWITCHES if getattr(usual, name) != getattr(question.stack, name))


def _with(question: Question, name: str) -> Question:
    """The question with a switch as the catalogue has it."""
    value = getattr(catalog.load_stack(question.stack.name), name)
    return replace(question, stack=question.stack.model_copy(update={name: value}))


def _priced(question: Question, today: Estimate, restrictions: Restrictions) -> Estimate | None:
    """Today's layout under a question; None where it breaks a rule, or does not fit though today's does."""
    try:
        if check(question, today.layout, restrictions.trainer):
            return None
        found = under_limit(estimate(question, today.layout), restrictions)
    except InputError:
        return None
    return found if found.fits or not today.fits else None


def _plainly(question: Question, name: str) -> str:
    value = getattr(question.stack, name)
    return f"{name}: {str(value).lower() if isinstance(value, bool) else value} in the stack"
