"""Results of the checks of a plan file, and the comparison of its fields with recomputed values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.documents import printable
from cost_models.units import counted

TOLERANCE = 1e-9
"""Relative difference up to which a stored and a recomputed number count as equal."""
_MAX_NAMED = 3
"""Maximum number of differing fields named in a sentence."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check of a plan file."""

    name: str
    passed: bool | None
    """Whether the check passed; None: undecided, such as for lack of time."""
    what: str
    """Sentence on the result."""


def check_equal(name: str, claimed: Mapping[str, Any], right: Mapping[str, Any]) -> Check:
    """Check that the fields `claimed` of a plan file equal the recomputed fields `right`. Numbers are equal
    up to rounding, and missing ones count as 0."""
    claims, values = dict(_flat_values(claimed)), dict(_flat_values(right))
    mistakes = [
        f"`{place}` says {_value_text(claims.get(place))}, computed again it is {_value_text(values.get(place))}"
        for place in {**values, **claims}
        if not _is_equal(claims.get(place), values.get(place))
    ]
    if not mistakes:
        return Check(name, True, f"{counted(len(values), 'value')} computed again, equal to {TOLERANCE:g}")
    unnamed = f", and {len(mistakes) - _MAX_NAMED} more" if len(mistakes) > _MAX_NAMED else ""
    return Check(name, False, "; ".join(mistakes[:_MAX_NAMED]) + unnamed)


def _flat_values(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path, such as `rank_memory.0.weights`, and the value of each leaf of nested fields;
    for lists also their length."""
    if isinstance(value, (list, tuple)):
        yield f"{place}.entries", len(value)
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat_values(inner, f"{place}.{name}" if place else str(name))
    else:
        yield place, value


def _is_equal(claimed: Any, right: Any) -> bool:
    """Whether two single values are equal, numbers within the tolerance; None counts as 0."""
    numbers = [0.0 if value is None else value for value in (claimed, right)]
    if any(isinstance(number, (bool, str)) for number in numbers):
        return bool(claimed == right)
    return math.isclose(*numbers, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-3)


def _value_text(value: Any) -> str:
    """Text of a value for a sentence, floats with six digits."""
    if value is None:
        return "nothing"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value), 60)
