"""What choosing by predictions costs within sweeps: the layout predicted fastest, against the one recommended.

The recommended row of a sweep is the simplest of those that the model cannot tell from the one predicted fastest
(`cost_models.uncertainty`). Simple is what `plan` recommends: no optional axes, no recomputation, room in memory. The
regret of a choice is how much slower it ran than the fastest row; runs of one layout with the same prediction count as
one choice, with their median time. For every two rows that differ, the score says whether the measured ratio of their
times lies in the model's 90 % interval.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from cost_models.axes.layout import Layout, axes_that_differ
from cost_models.measured.validation.predicting import Prediction
from cost_models.measured.validation.scores import MIN_RANKED, measured_seconds, sweep_of
from cost_models.uncertainty import CLEAR, chance_of_gain, deviation, half_width, pair_error_of

STATED = 0.9
"""Share of the cases that an interval should hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceScore:
    """Choices in one source's sweeps of at least three rows, and its pairs of rows that differ."""

    source: str
    point: tuple[float, ...]
    """Regret of the row predicted fastest, by sweep."""
    recommended: tuple[float, ...]
    """Regret of the recommended row, by sweep."""
    pairs: int
    covered: float | None
    """Share of the pairs whose measured ratio lies in the stated interval; every sweep weighs as its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    layout: Layout
    predicted: float
    measured: float
    fits: bool
    roomy: bool
    pair_error: float


def choice_scores(predictions: Iterable[Prediction]) -> tuple[ChoiceScore, ...]:
    """The choices in every source with pairs, in order of first appearance."""
    sweeps: dict[str, dict[tuple[str, ...], list[_Row]]] = defaultdict(lambda: defaultdict(list))
    for one in predictions:
        if (row := _row(one)) is not None:
            sweeps[one.row.source][sweep_of(one.row)].append(row)
    scores = (_score(source, list(found.values())) for source, found in sweeps.items())
    return tuple(score for score in scores if score.pairs or score.point)


def _row(one: Prediction) -> _Row | None:
    measured = measured_seconds(one.row)
    if one.case is None or not one.step_seconds or not measured:
        return None
    return _Row(
        layout=one.case.layout,
        predicted=one.step_seconds,
        measured=measured,
        fits=one.fits is not False,
        roomy=one.verdict == "fits",
        pair_error=pair_error_of(one.case.question),
    )


def _score(source: str, sweeps: Sequence[Sequence[_Row]]) -> ChoiceScore:
    ranked = [_choices(rows) for rows in sweeps if len(rows) >= MIN_RANKED]
    held, weights = [], []
    for rows in sweeps:
        for one, other in combinations(rows, 2):
            if axes_that_differ(one.layout, other.layout):
                held.append(_holds(one, other))
                weights.append(1 / (len(rows) - 1))
    return ChoiceScore(
        source=source,
        point=tuple(_regret(rows, _fastest(rows)) for rows in ranked),
        recommended=tuple(_regret(rows, _recommended(rows)) for rows in ranked),
        pairs=len(held),
        covered=statistics.fmean(held, weights) if held else None,
    )


def _choices(rows: Sequence[_Row]) -> list[_Row]:
    """The rows, with rows of one layout and one prediction merged into one."""
    alike: dict[tuple[str, float], list[_Row]] = defaultdict(list)
    for row in rows:
        alike[str(row.layout), row.predicted].append(row)
    return [
        replace(own[0], measured=statistics.median(row.measured for row in own)) for own in alike.values()
    ]


def _holds(one: _Row, other: _Row) -> bool:
    """Whether the measured ratio of two rows lies in the interval stated around the predicted one."""
    error = math.log(one.predicted / other.predicted) - math.log(one.measured / other.measured)
    return abs(error) <= half_width(STATED) * deviation(one.layout, other.layout, one.pair_error)


def _fastest(rows: Sequence[_Row]) -> _Row:
    return min([row for row in rows if row.fits] or rows, key=lambda row: row.predicted)


def _recommended(rows: Sequence[_Row]) -> _Row:
    """The simplest row whose prediction is within uncertainty of the fastest."""
    fastest = _fastest(rows)
    close = [row for row in rows if (row.fits or not fastest.fits) and not _is_slower(row, fastest)]
    return min(close, key=lambda row: (_step(row), row.predicted))


def _is_slower(row: _Row, fastest: _Row) -> bool:
    gain = math.log(row.predicted / fastest.predicted)
    return gain > 0 and chance_of_gain(gain, row.layout, fastest.layout, row.pair_error) >= CLEAR


def _step(row: _Row) -> tuple[bool, bool, bool]:
    """Distance from the simplest layout: context parallelism, a full device, recompute."""
    recomputes = any(policy != "none" for policy in row.layout.recompute)
    return row.layout.cp > 1, not row.roomy, recomputes


def _regret(rows: Sequence[_Row], chosen: _Row) -> float:
    return chosen.measured / min(row.measured for row in rows) - 1
