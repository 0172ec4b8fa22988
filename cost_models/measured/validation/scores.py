"""Accuracy of predictions for each source of published runs: errors, choices within sweeps, and coverage of
intervals.

Errors are predicted / measured − 1. A *sweep* is what one source ran under one nominal question: rows that agree in
model, sequence length, number of GPUs, global batch, GPU and precision, and differ in layout.

**Choices**: the recommended row of a sweep is the simplest of those that the model cannot tell from the one predicted
fastest (`cost_models.estimate`). Simple is what `plan` recommends: no optional axes, no recomputation, room in
memory. The regret of a choice is how much slower it ran than the fastest row; runs of one layout with the same
prediction count as one choice, with their median time. For every two rows that differ, the score says whether the
measured ratio of their times lies in the model's 90 % interval.

**Intervals**: a step's interval is as wide as its deviation says, stretched to either side (conformal prediction) by
what the twentieth and nineteen twentieths of the runs of sources left out of every fit needed. Errors have two unlike
sides: a cluster is seldom faster than its model, and in many ways slower. It is tested on each source with the
stretches of all others, so that neither its constants nor its interval have seen it. Chances to fit are compared with
outcomes: of the runs that were said to fit with so much chance, how many ran.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from statistics import fmean, mean, median
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, group_by
from cost_models.axes.layout import Layout, axes_that_differ
from cost_models.estimate import CLEAR, chance_of_gain, deviation, half_width, pair_error_of
from cost_models.expected import INTERVAL_PROBABILITY, Reach
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Prediction

MIN_RANKED = 3
"""Minimum number of timed rows of a sweep for its regret."""
MIN_ORDERED = 5
"""Minimum number of timed rows of a sweep for Kendall's τ and for calibration by three anchors."""


@dataclass(frozen=True, slots=True)
class ErrorScore:
    """Statistics of absolute relative errors (median, mean, 90th percentile, bias)."""

    median: float
    mean: float
    p90: float
    """90th percentile: element ⌊0.9 n⌋ of the sorted errors."""
    bias: float
    """Mean signed error; above zero where predictions are too slow or too large."""
    count: int


@dataclass(frozen=True, slots=True)
class MemoryVerdicts:
    """Numbers of runs by whether they ran out of memory and whether this was predicted (a confusion matrix)."""

    caught: int
    """Runs out of memory, predicted not to fit."""
    missed: int
    """Runs out of memory, predicted to fit."""
    false_alarms: int
    """Runs that fitted, predicted not to."""
    agreed: int
    """Runs that fitted, predicted to."""

    recall: float | None
    """Share of the runs out of memory that were predicted not to fit; None where no run was."""
    precision: float | None
    """Share of the runs predicted not to fit that ran out of memory; None where none was predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepScore:
    """Regret (slowdown from choosing the row predicted fastest) and rank correlation in one sweep of three or
    more timed rows."""

    key: tuple[str, ...]
    """Name of the sweep, in parts."""
    rows: int
    regret: float
    """Relative slowdown of the row predicted fastest compared with the fastest row."""
    tau: float | None
    """Kendall's τ of predicted and measured times, ties left out; None below five rows or where all tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceScore:
    """Accuracy figures of one source of published runs; None for figures that need more rows."""

    source: str
    rows: int
    skipped: int
    predicted: int
    """Number of timed rows with a predicted step time."""
    step: ErrorScore | None
    """Errors of step time, predicted without any of the source's rows as anchors."""
    anchored: ErrorScore | None
    """Step time in sweeps of five and more, after one factor was taken from the first, middle and last row (by id),
    which are left out."""
    memory: ErrorScore | None
    """Errors of peak memory."""
    verdicts: MemoryVerdicts
    sweeps: tuple[SweepScore, ...]
    mean_regret: float | None
    """Mean regret over the source's sweeps; None where it has no sweep."""
    worst_regret: float | None
    """Largest regret over the source's sweeps; None where it has no sweep."""
    mean_tau: float | None
    """Mean of Kendall's τ over the source's sweeps that have one; None where none has."""


def score(predictions: Iterable[Prediction]) -> tuple[SourceScore, ...]:
    """Score the predictions of every source of published runs, in order of first appearance."""
    sources = group_by(predictions, lambda one: one.row.source_id)
    return tuple(_score_source(*group) for group in sources.items())


_JOB = ("sequence_length", "global_batch", "precision")
"""Columns of the training job with equal cells in all runs of a sweep."""


def sweep_of(row: Row) -> tuple[str, ...]:
    """Parts of the name of the sweep to which a row belongs within its source, as the column `sweep` states
    them. Without it, the parts are model, sequence length, GPUs, batch, cluster and precision."""
    if row.sweep:
        return tuple(row.sweep.split(" | "))
    sequence, batch, precision = (row.values.get(one, "") for one in _JOB)
    gpus = row.layout and row.layout.num_gpus
    return tuple(map(str, (row.model, sequence, gpus, batch, row.cluster, precision)))


def measured_bytes(row: Row) -> float | None:
    """Measured peak memory of a row in bytes; None if the row has none."""
    return None if row.peak_gb is None else row.peak_gb * 1e9


def step_error(prediction: Prediction) -> float | None:
    """Relative error of the step time, predicted / measured − 1; None if either is missing."""
    return relative_error(prediction.step_seconds, prediction.row.step_seconds)


def memory_error(prediction: Prediction) -> float | None:
    """Relative error of the peak memory, predicted / measured − 1; None if either is missing."""
    return relative_error(prediction.peak_bytes, measured_bytes(prediction.row))


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's τ, (concordant − discordant) / (concordant + discordant) pairs; None if every pair ties."""
    a, b, total, pairs = np.asarray(first), np.asarray(second), 0.0, 0.0
    for row in range(len(a)):  # a row at a time: tables may have many thousands
        orders = np.sign(a[row] - a[:row]) * np.sign(b[row] - b[:row])
        total, pairs = total + orders.sum(), pairs + np.abs(orders).sum()
    return float(total / pairs) if pairs else None


def error_score(errors: Sequence[float]) -> ErrorScore | None:
    """Statistics of signed relative errors; None for an empty list."""
    if not errors:
        return None
    sizes = sorted(abs(error) for error in errors)
    p90 = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return ErrorScore(median(sizes), mean(sizes), p90, bias=mean(errors), count=len(errors))


class _TimedRow(NamedTuple):
    """Published run with measured and predicted step seconds, its layout, and the error of predicted ratios
    of step times."""

    run: Prediction
    measured: float
    predicted: float
    layout: Layout
    pair_error: float


def _timed_sweeps(predictions: Iterable[Prediction]) -> dict[tuple[str, ...], list[_TimedRow]]:
    """Rows with measured and predicted step times, by sweep."""
    sweeps: dict[tuple[str, ...], list[_TimedRow]] = defaultdict(list)
    for run in predictions:
        measured, predicted, case = run.row.step_seconds, run.step_seconds, run.case
        if measured and predicted:
            layout, pair_error = (case.layout, pair_error_of(case.question)) if case else (Layout(), math.nan)
            sweeps[sweep_of(run.row)].append(_TimedRow(run, measured, predicted, layout, pair_error))
    return sweeps


def _score_source(name: str, predictions: Sequence[Prediction]) -> SourceScore:
    """Accuracy figures of one source from its predictions."""
    predicted = [row for row in predictions if row.step_seconds is not None or row.peak_bytes is not None]
    timed = _timed_sweeps(predicted)
    sweeps = tuple(_score_sweep(key, rows) for key, rows in timed.items() if len(rows) >= MIN_RANKED)
    regrets, taus = [one.regret for one in sweeps], [one.tau for one in sweeps if one.tau is not None]
    outcomes = Counter(
        (bool(one.row.out_of_memory), not one.fits)
        for one in predicted
        if one.fits is not None and (one.row.out_of_memory or one.row.step_seconds)
    )
    caught, missed, false_alarms, agreed = (outcomes[pair] for pair in product((True, False), (True, False)))
    totals = caught + missed, caught + false_alarms
    recall, precision = (caught / total if total else None for total in totals)
    step = error_score([error for one in predicted if (error := step_error(one)) is not None])
    return SourceScore(
        source=name,
        rows=len(predictions),
        skipped=len(predictions) - len(predicted),
        predicted=step.count if step else 0,
        step=step,
        anchored=error_score([error for rows in timed.values() for error in _anchored(rows)]),
        memory=error_score([error for one in predicted if (error := memory_error(one)) is not None]),
        verdicts=MemoryVerdicts(caught, missed, false_alarms, agreed, recall, precision),
        sweeps=sweeps,
        mean_regret=mean(regrets) if regrets else None,
        worst_regret=max(regrets, default=None),
        mean_tau=mean(taus) if taus else None,
    )


def _score_sweep(key: tuple[str, ...], rows: Sequence[_TimedRow]) -> SweepScore:
    """Regret and rank correlation of one sweep."""
    times = [row.measured for row in rows], [row.predicted for row in rows]
    tau = kendall_tau(*times) if len(rows) >= MIN_ORDERED else None
    return SweepScore(key=key, rows=len(rows), regret=_regret(rows, _fastest(rows)), tau=tau)


def _anchored(rows: Sequence[_TimedRow]) -> list[float]:
    """Step-time errors of a sweep after its predictions are divided by the median of predicted / measured of
    three rows. These three are left out; empty for fewer than five rows."""
    if len(rows) < MIN_ORDERED:
        return []
    ordered = sorted(rows, key=lambda row: row.run.row.row_id)
    anchors = {0, len(ordered) // 2, len(ordered) - 1}
    factor = median(ordered[index].predicted / ordered[index].measured for index in anchors)
    others = (row for index, row in enumerate(ordered) if index not in anchors)
    return [row.predicted / factor / row.measured - 1 for row in others]


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """Relative error, predicted / measured − 1; None if either is missing or zero."""
    return predicted / measured - 1 if predicted and measured else None


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """Regrets of the rows chosen in one source's sweeps, and the coverage of intervals for ratios of step
    times."""

    source: str
    point: tuple[float, ...]
    """Regret of the row predicted fastest, by sweep."""
    recommended: tuple[float, ...]
    """Regret of the recommended row, by sweep."""
    pairs: int
    covered: float | None
    """Share of the pairs whose measured ratio lies in the stated interval; every sweep weighs as its rows."""


def choice_scores(predictions: Iterable[Prediction]) -> tuple[ChoiceScore, ...]:
    """Score the choice of the fastest row in the sweeps of every source, in order of first appearance."""
    cases = (prediction for prediction in predictions if prediction.case is not None)
    sources = group_by(cases, lambda prediction: prediction.row.source_id)
    scores = (_score_choices(name, list(_timed_sweeps(some).values())) for name, some in sources.items())
    return tuple(score for score in scores if score.pairs or score.point)


def _score_choices(source: str, sweeps: Sequence[Sequence[_TimedRow]]) -> ChoiceScore:
    """Regrets and coverage of one source from the rows of its sweeps."""
    ranked = [_choices(rows) for rows in sweeps if len(rows) >= MIN_RANKED]
    covered, weights, width = [], [], half_width(INTERVAL_PROBABILITY)
    for rows in sweeps:
        for first, second in combinations(rows, 2):
            if axes_that_differ(first.layout, second.layout):
                predicted = math.log(first.predicted / second.predicted)
                error = predicted - math.log(first.measured / second.measured)
                covered.append(abs(error) <= width * deviation(first.layout, second.layout, first.pair_error))
                weights.append(1 / (len(rows) - 1))
    point = tuple(_regret(rows, _fastest(rows)) for rows in ranked)
    recommended = tuple(_regret(rows, _recommended(rows)) for rows in ranked)
    return ChoiceScore(source, point, recommended, len(covered), fmean(covered, weights) if covered else None)


def _choices(rows: Sequence[_TimedRow]) -> list[_TimedRow]:
    """Rows of a sweep, with rows of the same layout and prediction merged into one at their median measured
    time."""
    groups = group_by(rows, lambda row: (str(row.layout), row.predicted)).values()
    return [alike[0]._replace(measured=median(row.measured for row in alike)) for alike in groups]


def _usable(rows: Sequence[_TimedRow]) -> Sequence[_TimedRow]:
    """Rows that are predicted to fit; all rows if none is."""
    return [row for row in rows if row.run.fits is not False] or rows


def _fastest(rows: Sequence[_TimedRow]) -> _TimedRow:
    """Row with the shortest predicted time among those predicted to fit."""
    return min(_usable(rows), key=lambda row: row.predicted)


def _recommended(rows: Sequence[_TimedRow]) -> _TimedRow:
    """Simplest row of a sweep that the cost model cannot distinguish from the row predicted fastest."""
    fastest = _fastest(rows)

    def is_slower(row: _TimedRow) -> bool:
        """Whether a row is slower than the fastest with a probability of at least `CLEAR`, given the error of
        predicted ratios of step times."""
        gain = math.log(row.predicted / fastest.predicted)
        return gain > 0 and chance_of_gain(gain, row.layout, fastest.layout, row.pair_error) >= CLEAR

    def distance(row: _TimedRow) -> tuple[bool, bool, bool, float]:
        """Sort key of a row by four criteria in turn: no context parallelism, spare memory, no recomputation,
        and shorter predicted time."""
        recomputes = any(policy != "none" for policy in row.layout.recompute)
        return row.layout.cp > 1, row.run.verdict != "fits", recomputes, row.predicted

    return min((row for row in _usable(rows) if not is_slower(row)), key=distance)


def _regret(rows: Sequence[_TimedRow], choice: _TimedRow) -> float:
    """Relative slowdown of the chosen row compared with the fastest measured row."""
    return choice.measured / min(row.measured for row in rows) - 1


EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0)
"""Bounds of the ranges of P(fits), narrow near 0 and 1, where decisions are taken."""


@dataclass(frozen=True, slots=True)
class ChanceRange:
    """Runs whose predicted chance of fitting in memory lies in one range, with the share that ran."""

    least: float
    most: float
    runs: int
    fits_probability: float
    """Mean chance of the runs."""
    ran_share: float
    """Share of the runs that ran."""


def chance_ranges(predictions: Iterable[Prediction]) -> tuple[ChanceRange, ...]:
    """Ranges of the predicted chance of fitting with the runs in each, lowest first; runs with unknown
    outcome do not count."""
    ranges = group_by(_outcomes(predictions), lambda outcome: bisect_right(EDGES[:-1], outcome[0]))
    scored = []
    for place, outcomes in sorted(ranges.items()):
        chances, ran = zip(*outcomes, strict=True)
        scored.append(ChanceRange(EDGES[place - 1], EDGES[place], len(ran), mean(chances), mean(ran)))
    return tuple(scored)


def brier_scores(predictions: Iterable[Prediction]) -> tuple[float, float] | None:
    """Brier score of P(fits), and for comparison the score of a constant chance (the share of runs that ran);
    None if no outcome is known. A score is the mean squared difference from 1 for runs that ran and from 0
    for others (Brier 1950)."""
    outcomes = _outcomes(predictions)
    if not outcomes:
        return None
    share = mean(ran for _, ran in outcomes)
    return mean((chance - ran) ** 2 for chance, ran in outcomes), share * (1 - share)


def _outcomes(predictions: Iterable[Prediction]) -> list[tuple[float, bool]]:
    """Predicted chance of fitting, and whether the run ran, for all runs whose outcome is known."""
    return [
        (one.fits_probability, not one.row.out_of_memory)
        for one in predictions
        if one.fits_probability is not None
        and (one.row.out_of_memory or one.row.step_seconds or measured_bytes(one.row))
    ]


class LeftOutRun(NamedTuple):
    """Timed run, predicted with constants that were fitted to all other sources."""

    source: str
    error: float
    """Relative error of the step time, predicted / measured − 1."""
    deviation: float | None
    """Predicted deviation of the logarithm of the step time; None where the profile has none."""

    @property
    def needed(self) -> float:
        """Factor by which the run's 90 % interval must be stretched to include the measured step time;
        negative if the run was faster than predicted. It is log(measured / predicted) over the half width."""
        assert self.deviation is not None
        return -math.log1p(self.error) / (self.deviation * half_width(INTERVAL_PROBABILITY))


def reach_of(runs: Sequence[LeftOutRun]) -> Reach:
    """Factors by which step-time intervals must be stretched, on the fast and on the slow side, to include
    nine in ten runs. Each of n runs of a source weighs 1/√n."""
    sides = [(run.needed, run.source) for run in runs if run.deviation is not None]
    needed, weights = np.array([side for side, _ in sides]), source_weights([source for _, source in sides])
    tail = (1 - INTERVAL_PROBABILITY) / 2
    lower, upper = np.quantile(needed, (tail, 1 - tail), weights=weights, method="inverted_cdf").tolist()
    return Reach(faster=round(max(0.0, -lower), 2), slower=round(max(0.0, upper), 2))


def coverage_by_source(runs: Sequence[LeftOutRun]) -> Mapping[str, tuple[bool, ...]]:
    """For each source, whether each of its runs lies in the run's step-time interval, stretched by factors
    from the runs of all other sources."""
    covered = {}
    usable = (run for run in runs if run.deviation is not None)
    for source, of_source in group_by(usable, lambda run: run.source).items():
        reach = reach_of([run for run in runs if run.source != source])
        covered[source] = tuple(-reach.faster <= run.needed <= reach.slower for run in of_source)
    return covered


def source_weights(sources: Sequence[str]) -> Array:
    """Weight of each run in a fit, (N,): 1/√n for each of n runs of a source, as the rows of a sweep are
    alike."""
    counts = Counter(sources)
    return np.array([counts[source] ** -0.5 for source in sources])
