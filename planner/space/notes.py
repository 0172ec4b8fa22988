"""What a question says that its answer passes over in silence: lengths that divide badly or that the model cannot read,
windows and a memory limit that limit nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.defaults import OWN_STACKS
from cost_models.errors import either
from cost_models.memory.device import memory_limit
from cost_models.pipeline.under_scenarios import scenarios_of
from cost_models.question import Question
from cost_models.risk import confident_share
from cost_models.units import format_bytes, format_count, grouped
from planner.space.axes import CLOSED, divisors
from planner.space.restrictions import Restrictions

_FP8_ROWS = 16
"""Tokens of which a gradient in fp8 takes whole multiples: 16 bytes at one an element."""


def notes_of(question: Question, restrictions: Restrictions | None = None) -> tuple[str, ...]:
    """Notes on the question, a sentence each, without a full stop."""
    limit = None if restrictions is None else restrictions.max_memory
    found = [
        _learned_positions(question),
        _sequence(question),
        _windows(question),
        _memory(question, limit),
        _risk(question),
        *_unopened(question, restrictions),
    ]
    return tuple(note for note in found if note)


def _learned_positions(question: Question) -> str:
    model, length = question.model, question.training.sequence_length
    if model.positions != "learned" or length <= model.longest_sequence or question.stack.name in OWN_STACKS:
        return ""  # our own executor refuses it
    extra = format_count(float((length - model.longest_sequence) * model.hidden_size))
    return (
        f"{model.name} has {grouped(model.longest_sequence)} learned positions; sequences of {grouped(length)} tokens"
        f" need a longer table, whose {extra} more parameters are not priced"
    )


def _sequence(question: Question) -> str:
    """Note on the sequence length: tensor ranks share it under `sp`, context ranks always; fp8 sums whole sixteens."""
    model, length = question.model, question.training.sequence_length
    degrees = [
        degree
        for degree in divisors(question.cluster.gpus_per_node)[1:]
        if model.num_heads % degree == 0 and model.num_kv_heads % degree == 0
    ]
    unshared = [str(degree) for degree in degrees if length % degree]
    fp8 = question.training.precision == "fp8" and length % _FP8_ROWS != 0
    if not unshared and not fp8:
        return ""
    unit = math.lcm(*degrees, 2) * 2 if not fp8 else math.lcm(*degrees, _FP8_ROWS)
    better = max(unit, round(length / unit) * unit)
    note = f"sequences of {grouped(length)} tokens"
    if unshared:
        note += f" cannot be shared by {either(unshared)} ranks, so layouts in which they are (`sp`, `cp`) are left out"
    if fp8:
        note += " and" * bool(unshared) + " make gradients in fp8 slow, which sum whole sixteens"
    return f"{note}; {grouped(better)} tokens do better"


def _windows(question: Question) -> str:
    window, length = question.model.attention_window, question.training.sequence_length
    if window is None or window < length:
        return ""
    return f"windows of {grouped(window)} tokens hide nothing of sequences of {grouped(length)}"


def _risk(question: Question) -> str:
    """Note on risk without scenarios."""
    if question.risk == "none" or scenarios_of(question):
        return ""
    owner = "several pools have" if len(question.by_pool) > 1 else f"profile {question.hardware.name} has"
    return f"{owner} no scenarios, so `--risk {question.risk}` minimises the step on paper"


def _unopened(question: Question, restrictions: Restrictions | None) -> Iterator[str]:
    """Notes on axes that `--allow` names without anything to try, each with its reason."""
    if restrictions is None:
        return
    for name in CLOSED:
        if name in restrictions.allowed and (words := CLOSED[name](question, restrictions.trainer)):
            yield f"--allow {name} opens nothing: {words}"


def _memory(question: Question, limit: float | None) -> str:
    """Note on a memory limit above what a plan may fill: a single GPU, without communicators, has most."""
    if limit is None:
        return ""
    pools = question.by_pool
    single_gpu = LayoutColumns.of([Layout()])
    share = confident_share(
        question.confidence, question.memory_error
    )  # of what was asked for, as of what there is
    limits = {pool.cluster.gpu.name: float(memory_limit(pool, single_gpu)[0]) / share for pool in pools}
    limit /= share
    if limit <= max(limits.values()):
        return ""
    fill = " and ".join(f"{format_bytes(own)} of `{name}`" for name, own in limits.items())
    return f"--max-memory {format_bytes(limit)} limits nothing: a plan may fill {fill} at most"
