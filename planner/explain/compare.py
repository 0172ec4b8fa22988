"""Side-by-side comparison of plans: parts of their steps and memory, and differences of their questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from cost_models.axes.layout import Layout
from cost_models.base import Spec
from cost_models.estimate import Breakdown, Estimate
from cost_models.operators.flops import model_flops
from cost_models.question import Question, parts_of
from cost_models.units import grouped

_LABELS = {"global_batch": "global batch", "sequence_length": "sequence"}
_UNPRICED = {"kind", "name", "source", "nodes", "gpus_per_node", "tokens", "recompute"}
"""Spec fields that change no price of a layout, or that a comparison shows as the number of GPUs."""
_ORDINALS = ("one", "another", "a third", "a fourth", "a fifth", "a sixth", "yet another")
"""Words for the first, second, ... distinct value of a field whose values are too long to be shown."""


class Difference(NamedTuple):
    """Field in which the compared questions differ, with its value in each question."""

    what: str
    """Name of the field: `model`, `GPUs`, `global batch`, ..."""
    values: tuple[str, ...]
    """Value of the field in each question, as text, in the questions' order."""


def differences(questions: Sequence[Question]) -> tuple[Difference, ...]:
    """Fields in which the questions differ, with their values; specs with equal names are compared field by
    field."""
    clusters = [parts_of(question)[0] for question in questions]
    fields = [
        *_names_or_fields("model", [question.model for question in questions]),
        ("GPUs", [grouped(cluster.num_gpus) for cluster in clusters]),
        *_names_or_fields("cluster", clusters),
        *_field_values("", [question.training for question in questions]),
        *_names_or_fields("stack", [question.stack for question in questions]),
        *_names_or_fields("profile", [question.hardware for question in questions]),
    ]
    return tuple(Difference(what=name, values=tuple(values)) for name, values in fields if len({*values}) > 1)


def same_work(questions: Sequence[Question]) -> bool:
    """Whether all questions train the same model on equally many tokens per step, so that step times can be
    compared."""
    return same_model(questions) and len({question.training.tokens_per_step for question in questions}) == 1


def same_model(questions: Sequence[Question]) -> bool:
    """Whether all models compute equally many FLOPs for the same tokens, which counts as the same model."""
    return len({model_flops(question.model, questions[0].training) for question in questions}) == 1


def _names_or_fields(label: str, specs: Sequence[Spec]) -> list[tuple[str, list[str]]]:
    """Names of the specs under the label `label` or, if all names are equal, the values of each field."""
    names = [str(getattr(spec, "name", "")) for spec in specs]
    return [(label, names)] if len({*names}) > 1 else _field_values(f"{label} ", specs)


def _field_values(prefix: str, specs: Sequence[Spec]) -> list[tuple[str, list[str]]]:
    """Values of each field of the specs as texts, each field under a label that starts with `prefix`."""
    names = dict.fromkeys(name for spec in specs for name in type(spec).model_fields if name not in _UNPRICED)
    labels = {name: prefix + _LABELS.get(name, name.replace("_", " ")) for name in names}
    return [(labels[name], _value_texts([getattr(spec, name, None) for spec in specs])) for name in names]


def _value_texts(values: Sequence[object]) -> list[str]:
    """Convert the values of a field to texts; values too long to show become "one", "another", ..."""
    if all(isinstance(value, (int, float, str, type(None))) for value in values):
        return [grouped(value) if type(value) is int else str(value) for value in values]
    distinct = [value for at, value in enumerate(values) if value not in values[:at]]
    return [_ORDINALS[min(distinct.index(value), len(_ORDINALS) - 1)] for value in values]


Group = Literal["step", "time", "memory"]
Unit = Literal["seconds", "bytes", "share", "tokens/s", "FLOP/s"]
_EPSILON = 1e-12
"""Share of a total below which one of its parts counts as a rounding error, not shown."""


class Line(NamedTuple):
    """One line of a comparison: a quantity and its value for each compared estimate."""

    group: Group
    name: str
    unit: Unit
    values: Sequence[float]
    comparable: bool = True
    """Whether the estimates do equal work, so that their values can be compared."""


def compare(estimates: Sequence[Estimate], questions: Sequence[Question]) -> list[Line]:
    """Lines of a side-by-side comparison of several estimates: headline quantities, parts of the step, and
    parts of memory on each estimate's fullest rank.

    A part that is zero everywhere is left out; the others of a group still sum to its total. If the
    `questions` differ in their work, the parts of each step are shares of it, and rates are also given per
    GPU.
    """
    does_same_work, same_models = same_work(questions), same_model(questions)
    rates = [estimate.tokens_per_second for estimate in estimates]
    gpus = [estimate.layout.num_gpus for estimate in estimates]
    lines = [
        Line("step", "step", "seconds", [e.step_seconds for e in estimates], does_same_work),
        Line("step", "MFU", "share", [e.mfu for e in estimates]),
        Line("step", "HFU", "share", [e.hfu for e in estimates]),
        Line("step", "throughput", "tokens/s", rates, same_models),
    ]
    if len({*gpus}) > 1:
        rates_per_gpu = [rate / number for rate, number in zip(rates, gpus, strict=True)]
        lines.append(Line("step", "per GPU", "tokens/s", rates_per_gpu, same_models))
    if not same_models:
        flops = [
            model_flops(question.model, question.training, e.layout.tp) / e.step_seconds / e.layout.num_gpus
            for e, question in zip(estimates, questions, strict=True)
        ]
        lines.append(Line("step", "model FLOP/s per GPU", "FLOP/s", flops))
    times = [e.time for e in estimates]
    if not does_same_work:
        times = [Breakdown({part: size / time.total for part, size in time.items()}) for time in times]
    lines += _part_lines("time", "seconds" if does_same_work else "share", times)
    lines.append(Line("memory", "peak memory", "bytes", [e.peak_bytes for e in estimates]))
    return lines + _part_lines("memory", "bytes", [e.rank_memory[e.fullest_rank] for e in estimates])


def _part_lines(group: Group, unit: Unit, totals: Sequence[Breakdown]) -> list[Line]:
    """Lines of a comparison for the parts of several totals, one for each part that is not zero everywhere."""
    rows = [{part: size for part, size in one.items() if abs(size) > _EPSILON * one.total} for one in totals]
    names = dict.fromkeys(part for one in totals for part in one)
    values = {part: [parts.get(part, 0.0) for parts in rows] for part in names}
    return [Line(group, part, unit, values[part]) for part in names if any(values[part])]


def difference(first: Breakdown, second: Breakdown) -> Breakdown:
    """Change of each part from the breakdown `first` to `second`, the largest first; all changes add up to
    the change of the totals."""
    changes = {part: second.get(part, 0.0) - first.get(part, 0.0) for part in first | second}
    return Breakdown(sorted(changes.items(), key=lambda change: -abs(change[1])))


def gain(estimate: Estimate, rival: Estimate) -> float:
    """Relative saving in step time of `rival` over `estimate`, as a share of the estimate's step; negative if
    `rival` is slower."""
    return 1 - rival.step_seconds / estimate.step_seconds


def same_degrees(first: Layout, second: Layout) -> bool:
    """Whether two layouts are equal except for the placement of blocks on stages and recompute."""
    unplaced = {"layers": (), "recompute": ("none",)}
    return first.model_copy(update=unplaced) == second.model_copy(update=unplaced)
