"""How the questions of several plans differ, and whether their steps do the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.base import Spec
from cost_models.operators.flops import model_flops
from cost_models.question import Question, parts_of
from cost_models.units import grouped

_LABELS = {"global_batch": "global batch", "sequence_length": "sequence"}
_UNPRICED = {"kind", "name", "source", "nodes", "gpus_per_node", "tokens", "recompute"}
"""Fields that change no price of a layout, or that are shown as the number of GPUs."""
_WHICH = ("one", "another", "a third", "a fourth", "a fifth", "a sixth", "yet another")
"""Names of distinct values that are too long to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field in which questions differ."""

    what: str
    """Name of the field: `model`, `GPUs`, `global batch`, ..."""
    values: tuple[str, ...]
    """The field's value in each question, in their order."""


def differences(questions: Sequence[Question]) -> tuple[Difference, ...]:
    """All differences by name; specs of one name are compared field by field."""
    clusters = [parts_of(question)[0] for question in questions]
    return (
        *_named("model", [question.model for question in questions]),
        *_of("GPUs", [grouped(cluster.num_gpus) for cluster in clusters]),
        *_named("cluster", clusters),
        *_fields("", [question.training for question in questions]),
        *_named("stack", [question.stack for question in questions]),
        *_named("profile", [question.hardware for question in questions]),
    )


def same_work(questions: Sequence[Question]) -> bool:
    """Whether all questions train one model on as many tokens a step, so that step times can be compared."""
    return one_model(questions) and len({question.training.tokens_per_step for question in questions}) == 1


def one_model(questions: Sequence[Question]) -> bool:
    """Whether the models compute as many FLOPs for the same tokens, whatever else their files say."""
    training = questions[0].training
    return len({model_flops(question.model, training) for question in questions}) == 1


def _named(what: str, specs: Sequence[Spec]) -> tuple[Difference, ...]:
    names = [str(getattr(spec, "name", "")) for spec in specs]
    return _of(what, names) if len(set(names)) > 1 else _fields(f"{what} ", specs)


def _fields(prefix: str, specs: Sequence[Spec]) -> tuple[Difference, ...]:
    names = dict.fromkeys(name for spec in specs for name in type(spec).model_fields)
    return tuple(
        difference
        for name in names
        if name not in _UNPRICED
        for difference in _of(
            prefix + _LABELS.get(name, name.replace("_", " ")),
            _texts([getattr(spec, name, None) for spec in specs]),
        )
    )


def _texts(values: Sequence[object]) -> list[str]:
    """Values in words: numbers and names as they are; longer values are only told apart."""
    if all(isinstance(value, (int, float, str, type(None))) for value in values):
        return [grouped(value) if type(value) is int else str(value) for value in values]
    distinct: list[object] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return [_WHICH[min(distinct.index(value), len(_WHICH) - 1)] for value in values]


def _of(what: str, values: Sequence[str]) -> tuple[Difference, ...]:
    return (Difference(what=what, values=tuple(values)),) if len(set(values)) > 1 else ()
