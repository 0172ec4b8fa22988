"""Comparing plans side by side: every part of the step and of the memory, and what one saves or pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cost_models.estimate import Breakdown, Estimate
from cost_models.operators.flops import model_flops
from cost_models.question import Question
from planner.explaining.differing import one_model, same_work

Group = Literal["step", "time", "memory"]
Unit = Literal["seconds", "bytes", "share", "tokens/s", "FLOP/s"]
_ROUNDING = 1e-12
"""Share of a total below which a part is what adding up has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity with its value for each compared estimate."""

    group: Group
    name: str
    unit: Unit
    values: tuple[float, ...]
    comparable: bool = True
    """False where the estimates do different work, so that a difference of the values says nothing."""


def compare(estimates: Sequence[Estimate], questions: Sequence[Question] = ()) -> tuple[Line, ...]:
    """Lines of a comparison: headline quantities, the parts of the step, then the memory of each one's fullest rank.

    A part that is zero everywhere is left out; the others of a group still sum to its total. Where the `questions` are
    different work, the parts of each step are shares of it, and rates are those of one GPU, too.
    """
    same = not questions or same_work(questions)
    alike = not questions or one_model(questions)
    lines = [
        _line("step", "step", "seconds", [e.step_seconds for e in estimates], comparable=same),
        _line("step", "MFU", "share", [e.mfu for e in estimates]),
        _line("step", "HFU", "share", [e.hfu for e in estimates]),
        _line("step", "throughput", "tokens/s", [e.tokens_per_second for e in estimates], comparable=alike),
    ]
    if len({e.layout.num_gpus for e in estimates}) > 1:
        each = [e.tokens_per_second / e.layout.num_gpus for e in estimates]
        lines.append(_line("step", "per GPU", "tokens/s", each, comparable=alike))
    if not alike:
        lines.append(
            _line("step", "model FLOP/s per GPU", "FLOP/s", list(map(_useful, estimates, questions)))
        )
    times = [e.time if same else _shares(e.time) for e in estimates]
    lines += [_line("time", part, "seconds" if same else "share", values) for part, values in _parts(times)]
    lines.append(_line("memory", "peak memory", "bytes", [e.peak_bytes for e in estimates]))
    memory = _parts([e.rank_memory[e.fullest_rank] for e in estimates])
    lines += [_line("memory", part, "bytes", values) for part, values in memory]
    return tuple(lines)


def _line(group: Group, name: str, unit: Unit, values: Sequence[float], *, comparable: bool = True) -> Line:
    return Line(group=group, name=name, unit=unit, values=tuple(values), comparable=comparable)


def _useful(estimate: Estimate, question: Question) -> float:
    """Model FLOP/s of one GPU."""
    work = model_flops(question.model, question.training, estimate.layout.tp)
    return work / estimate.step_seconds / estimate.layout.num_gpus


def _shares(parts: Breakdown) -> Breakdown:
    return Breakdown(tuple((part, seconds / parts.total) for part, seconds in parts))


def difference(before: Breakdown, after: Breakdown) -> Breakdown:
    """after − before by part, over the parts of either, largest change first; its total is the change of the totals."""
    mine, other = before.as_dict(), after.as_dict()
    changes = {part: other.get(part, 0.0) - mine.get(part, 0.0) for part in mine | other}
    return Breakdown(tuple(sorted(changes.items(), key=lambda change: -abs(change[1]))))


def _parts(breakdowns: Sequence[Breakdown]) -> list[tuple[str, tuple[float, ...]]]:
    dicts = [_beyond_rounding(breakdown) for breakdown in breakdowns]
    names = dict.fromkeys(name for parts in dicts for name in parts)
    rows = [(name, tuple(parts.get(name, 0.0) for parts in dicts)) for name in names]
    return [(name, values) for name, values in rows if any(values)]


def _beyond_rounding(breakdown: Breakdown) -> dict[str, float]:
    """Part → value; what a total less its other parts leaves behind its last digit is nothing."""
    least = _ROUNDING * abs(breakdown.total)
    return {part: value if abs(value) > least else 0.0 for part, value in breakdown}
