"""Accuracy of predictions by source of published rows: errors, choices within sweeps, and coverage of intervals.

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
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, mean, median

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.layout import Layout, axes_that_differ
from cost_models.estimate import CLEAR, chance_of_gain, deviation, half_width, pair_error_of
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Prediction
from cost_models.specs.hardware import HardwareProfile

SWEEP_COLUMNS = ("model_name", "seq_len", "num_gpus", "global_batch", "gpu", "precision")
"""Columns in which the rows of one sweep agree."""
MIN_RANKED = 3
"""Fewest timed rows of a sweep for a regret."""
MIN_ORDERED = 5
"""Fewest timed rows of a sweep for a τ, and for three anchors."""
_GIGABYTE = 1e9
"""Bytes of the GB in which published peaks are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorScore:
    """Statistics of absolute relative errors (median, mean, 90th percentile, bias)."""

    median: float
    mean: float
    p90: float
    """90th percentile: element ⌊0.9 n⌋ of the sorted errors."""
    bias: float
    """Mean signed error; above zero where predictions are too slow or too large."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryVerdicts:
    """Numbers of runs by whether they ran out of memory and whether they were predicted to (a confusion matrix)."""

    caught: int
    """Runs out of memory, predicted not to fit."""
    missed: int
    """Runs out of memory, predicted to fit."""
    false_alarms: int
    """Runs that fitted, predicted not to."""
    agreed: int
    """Runs that fitted, predicted to."""

    @property
    def recall(self) -> float | None:
        """Share of the runs out of memory that were predicted not to fit; None where no run was."""
        return _share(self.caught, self.caught + self.missed)

    @property
    def precision(self) -> float | None:
        """Share of the runs predicted not to fit that ran out of memory; None where none was predicted."""
        return _share(self.caught, self.caught + self.false_alarms)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepScore:
    """Regret (slowdown by picking the row predicted fastest) and rank correlation within one sweep of three
    or more timed rows."""

    key: tuple[str, ...]
    """The sweep's cells of `SWEEP_COLUMNS`."""
    rows: int
    regret: float
    """How much slower the row predicted fastest ran than the fastest row, as a share."""
    tau: float | None
    """Kendall's τ of predicted and measured times, ties left out; None below five rows or where all tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceScore:
    """Accuracy figures of one source of published runs; None for figures that its rows do not allow."""

    source: str
    rows: int
    skipped: int
    step: ErrorScore | None
    """Errors of step time, predicted without any of the source's rows as anchors."""
    anchored: ErrorScore | None
    """Step time in sweeps of five and more, after one factor was taken from the first, middle and last row (by id),
    which are left out."""
    memory: ErrorScore | None
    """Errors of peak memory."""
    verdicts: MemoryVerdicts
    sweeps: tuple[SweepScore, ...]

    @property
    def predicted(self) -> int:
        """Number of timed rows with a predicted step time."""
        return self.step.count if self.step is not None else 0

    @property
    def mean_regret(self) -> float | None:
        """Mean regret over the source's sweeps; None where it has no sweep."""
        return mean(sweep.regret for sweep in self.sweeps) if self.sweeps else None

    @property
    def worst_regret(self) -> float | None:
        """Largest regret over the source's sweeps; None where it has no sweep."""
        return max((sweep.regret for sweep in self.sweeps), default=None)

    @property
    def mean_tau(self) -> float | None:
        """Mean of Kendall's τ over the source's sweeps that have one; None where none has."""
        taus = [sweep.tau for sweep in self.sweeps if sweep.tau is not None]
        return mean(taus) if taus else None


def score(predictions: Iterable[Prediction]) -> tuple[SourceScore, ...]:
    """Score the predictions of every source of published runs, in order of first appearance."""
    sources: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        sources[prediction.row.source].append(prediction)
    return tuple(_score_source(name, some) for name, some in sources.items())


def sweep_of(row: Row) -> tuple[str, ...]:
    """Cells of a row that identify its sweep within its source (model, sequence length, GPUs, batch, GPU,
    precision)."""
    return tuple(row.text(column) for column in SWEEP_COLUMNS)


def measured_seconds(row: Row) -> float | None:
    """Published step seconds of a row; None where it has none."""
    seconds = row.number("step_time_best_s")
    return seconds if seconds is not None and seconds > 0 else None


def measured_bytes(row: Row) -> float | None:
    """Published peak memory of a row in bytes; None where it has none."""
    gigabytes = row.number("peak_memory_gb")
    return gigabytes * _GIGABYTE if gigabytes is not None and gigabytes > 0 else None


def step_error(prediction: Prediction) -> float | None:
    """Relative error of the step time, predicted / measured − 1; None where either is missing."""
    return relative_error(prediction.step_seconds, measured_seconds(prediction.row))


def memory_error(prediction: Prediction) -> float | None:
    """Relative error of the peak memory, predicted / measured − 1; None where either is missing."""
    return relative_error(prediction.peak_bytes, measured_bytes(prediction.row))


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's τ, (concordant − discordant) / (concordant + discordant) pairs; None where every pair ties."""
    concordant = discordant = 0
    for late in range(len(first)):
        for early in range(late):
            side = (first[late] - first[early]) * (second[late] - second[early])
            concordant += side > 0
            discordant += side < 0
    pairs = concordant + discordant
    return (concordant - discordant) / pairs if pairs else None


def error_score(errors: Sequence[float]) -> ErrorScore | None:
    """Statistics of signed relative errors; None for an empty list."""
    if not errors:
        return None
    sizes = sorted(abs(error) for error in errors)
    return ErrorScore(
        median=median(sizes),
        mean=mean(sizes),
        p90=sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        bias=mean(errors),
        count=len(errors),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedRow:
    """Measured and predicted step seconds of one published run, with its layout and whether it is predicted to fit."""

    row_id: str
    measured: float
    predicted: float
    fits: bool
    roomy: bool
    layout: Layout
    pair_error: float


def _timed_sweeps(predictions: Iterable[Prediction]) -> dict[tuple[str, ...], list[_TimedRow]]:
    """Rows with measured and predicted step times, by sweep."""
    sweeps: dict[tuple[str, ...], list[_TimedRow]] = defaultdict(list)
    for prediction in predictions:
        measured = measured_seconds(prediction.row)
        if measured and prediction.step_seconds:
            sweeps[sweep_of(prediction.row)].append(
                _TimedRow(
                    row_id=prediction.row.row_id,
                    measured=measured,
                    predicted=prediction.step_seconds,
                    fits=prediction.fits is not False,
                    roomy=prediction.verdict == "fits",
                    layout=prediction.case.layout if prediction.case else Layout(),
                    pair_error=pair_error_of(prediction.case.question) if prediction.case else math.nan,
                )
            )
    return sweeps


def _score_source(name: str, predictions: Sequence[Prediction]) -> SourceScore:
    predicted = [row for row in predictions if row.step_seconds is not None or row.peak_bytes is not None]
    sweeps = _timed_sweeps(predicted)
    outcomes = Counter(
        (bool(one.row.flag("oom")), not one.fits)
        for one in predicted
        if one.fits is not None and (one.row.flag("oom") or measured_seconds(one.row))
    )
    caught, missed = (outcomes[True, alarm] for alarm in (True, False))
    false_alarms, agreed = (outcomes[False, alarm] for alarm in (True, False))
    return SourceScore(
        source=name,
        rows=len(predictions),
        skipped=len(predictions) - len(predicted),
        step=error_score([error for one in predicted if (error := step_error(one)) is not None]),
        anchored=error_score([error for rows in sweeps.values() for error in _anchored(rows)]),
        memory=error_score([error for one in predicted if (error := memory_error(one)) is not None]),
        verdicts=MemoryVerdicts(caught=caught, missed=missed, false_alarms=false_alarms, agreed=agreed),
        sweeps=tuple(_score_sweep(key, rows) for key, rows in sweeps.items() if len(rows) >= MIN_RANKED),
    )


def _score_sweep(key: tuple[str, ...], rows: Sequence[_TimedRow]) -> SweepScore:
    tau, regret = None, _regret(rows, _fastest(rows))
    if len(rows) >= MIN_ORDERED:
        tau = kendall_tau([row.measured for row in rows], [row.predicted for row in rows])
    return SweepScore(key=key, rows=len(rows), regret=regret, tau=tau)


def _anchored(rows: Sequence[_TimedRow]) -> list[float]:
    """Step-time errors in a sweep after division by the median ratio of three rows, which are left out; empty
    for fewer than five."""
    if len(rows) < MIN_ORDERED:
        return []
    ordered = sorted(rows, key=lambda row: row.row_id)
    anchors = {0, len(ordered) // 2, len(ordered) - 1}
    factor = median(ordered[index].predicted / ordered[index].measured for index in anchors)
    others = (row for index, row in enumerate(ordered) if index not in anchors)
    return [row.predicted / factor / row.measured - 1 for row in others]


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """Predicted / measured − 1; None where either is missing or zero."""
    return predicted / measured - 1 if predicted and measured else None


def _share(part: int, total: int) -> float | None:
    return part / total if total else None


STATED = 0.9
"""Share of the cases that an interval should hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceScore:
    """Regrets of the rows chosen in one source's sweeps, and coverage of intervals for ratios of step times."""

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
    sources: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        if prediction.case is not None:
            sources[prediction.row.source].append(prediction)
    scores = (_score_choices(name, list(_timed_sweeps(some).values())) for name, some in sources.items())
    return tuple(score for score in scores if score.pairs or score.point)


def _score_choices(source: str, sweeps: Sequence[Sequence[_TimedRow]]) -> ChoiceScore:
    ranked = [_choices(rows) for rows in sweeps if len(rows) >= MIN_RANKED]
    covered, weights = [], []
    for rows in sweeps:
        for first, second in combinations(rows, 2):
            if axes_that_differ(first.layout, second.layout):
                covered.append(_covers(first, second))
                weights.append(1 / (len(rows) - 1))
    return ChoiceScore(
        source=source,
        point=tuple(_regret(rows, _fastest(rows)) for rows in ranked),
        recommended=tuple(_regret(rows, _recommended(rows)) for rows in ranked),
        pairs=len(covered),
        covered=fmean(covered, weights) if covered else None,
    )


def _choices(rows: Sequence[_TimedRow]) -> list[_TimedRow]:
    """Rows of a sweep, with rows of the same layout and prediction merged, at their median measured time."""
    groups: dict[tuple[str, float], list[_TimedRow]] = defaultdict(list)
    for row in rows:
        groups[str(row.layout), row.predicted].append(row)
    return [replace(alike[0], measured=median(row.measured for row in alike)) for alike in groups.values()]


def _covers(first: _TimedRow, second: _TimedRow) -> bool:
    """Whether the measured ratio of two rows' step times lies in the 90 % interval around the predicted ratio."""
    error = math.log(first.predicted / second.predicted) - math.log(first.measured / second.measured)
    return abs(error) <= half_width(STATED) * deviation(first.layout, second.layout, first.pair_error)


def _fastest(rows: Sequence[_TimedRow]) -> _TimedRow:
    return min([row for row in rows if row.fits] or rows, key=lambda row: row.predicted)


def _recommended(rows: Sequence[_TimedRow]) -> _TimedRow:
    """Simplest row of a sweep that the model cannot tell from the one predicted fastest."""
    fastest = _fastest(rows)

    def is_slower(row: _TimedRow) -> bool:
        gain = math.log(row.predicted / fastest.predicted)
        return gain > 0 and chance_of_gain(gain, row.layout, fastest.layout, row.pair_error) >= CLEAR

    def distance(row: _TimedRow) -> tuple[bool, bool, bool, float]:
        """Sort key: context parallelism, little spare memory, recomputation, then predicted time."""
        recomputes = any(policy != "none" for policy in row.layout.recompute)
        return row.layout.cp > 1, not row.roomy, recomputes, row.predicted

    return min((row for row in rows if (row.fits or not fastest.fits) and not is_slower(row)), key=distance)


def _regret(rows: Sequence[_TimedRow], choice: _TimedRow) -> float:
    return choice.measured / min(row.measured for row in rows) - 1


EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0)
"""Bounds of the ranges of P(fits), narrow where a decision is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChanceRange:
    """Runs whose predicted chance of fitting lies in one range, with the share that ran."""

    least: float
    most: float
    runs: int
    fits_probability: float
    """Mean chance of the runs."""
    ran_share: float
    """Share of the runs that ran."""


def chance_ranges(predictions: Iterable[Prediction]) -> tuple[ChanceRange, ...]:
    """Ranges of P(fits) with the runs in each, the least likely first; runs with unknown outcome do not count."""
    ranges: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for chance, ran in _outcomes(predictions):
        ranges[min(bisect_right(EDGES, chance), len(EDGES) - 1)].append((chance, ran))
    return tuple(
        ChanceRange(
            least=EDGES[place - 1],
            most=EDGES[place],
            runs=len(outcomes),
            fits_probability=mean(chance for chance, _ in outcomes),
            ran_share=mean(ran for _, ran in outcomes),
        )
        for place, outcomes in sorted(ranges.items())
    )


def brier_scores(predictions: Iterable[Prediction]) -> tuple[float, float] | None:
    """Brier score of P(fits) and, for comparison, that of the constant share of runs that ran; None without
    known outcomes. Both are mean squared differences from 1 for runs that ran and 0 for others (Brier 1950).
    None: no outcome is known."""
    outcomes = _outcomes(predictions)
    if not outcomes:
        return None
    share = mean(ran for _, ran in outcomes)
    return mean((chance - ran) ** 2 for chance, ran in outcomes), share * (1 - share)


def _outcomes(predictions: Iterable[Prediction]) -> list[tuple[float, bool]]:
    """(P(fits), whether the run ran) for all runs whose outcome is known."""
    return [
        (one.fits_probability, not one.row.flag("oom"))
        for one in predictions
        if one.fits_probability is not None
        and (one.row.flag("oom") or measured_seconds(one.row) or measured_bytes(one.row))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRun:
    """Timed run, predicted by constants that were fitted to all other sources."""

    source: str
    error: float
    """Predicted / measured − 1."""
    deviation: float | None
    """Predicted deviation of the logarithm of the step time; None where the profile has none."""

    @property
    def needed(self) -> float:
        """Log of measured / predicted step time in predicted standard deviations; negative where the run was
        faster."""
        assert self.deviation is not None
        return -float(np.log1p(self.error)) / self.deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Factors by which the 90 % interval of a step time is stretched to the faster and the slower side."""

    faster: float
    slower: float

    def covers(self, run: LeftOutRun) -> bool:
        """Whether the stretched 90 % interval of a run holds the measured step time."""
        normal_width = half_width(STATED)
        return -self.faster * normal_width <= run.needed <= self.slower * normal_width


def reach_in(profile: HardwareProfile) -> Reach | None:
    """Stretch factors of step-time intervals that a profile states; None without scenarios."""
    scenarios = profile.scenarios
    return None if scenarios is None else Reach(faster=scenarios.faster, slower=scenarios.slower)


def reach_of(runs: Sequence[LeftOutRun]) -> Reach:
    """Stretch factors with which step-time intervals hold nine in ten of the runs; each of n runs of a source
    weighs 1/√n."""
    usable = [run for run in runs if run.deviation is not None]
    needed = np.array([run.needed for run in usable])
    weights = source_weights([run.source for run in usable])
    lower, upper = (weighted_quantile(needed, weights, (1 + side * STATED) / 2) for side in (-1, 1))
    faster, slower = (round(max(0.0, side) / half_width(STATED), 2) for side in (-lower, upper))
    return Reach(faster=faster, slower=slower)


def coverage_by_source(runs: Sequence[LeftOutRun]) -> Mapping[str, tuple[bool, ...]]:
    """Source → whether each run lies in its step-time interval, stretched by the factors of all other sources."""
    covered = {}
    for source in dict.fromkeys(run.source for run in runs if run.deviation is not None):
        reach = reach_of([run for run in runs if run.source != source])
        source_runs = [run for run in runs if run.source == source and run.deviation is not None]
        covered[source] = tuple(reach.covers(run) for run in source_runs)
    return covered


def source_weights(sources: Sequence[str]) -> Array:
    """(N,) weight of each run in a fit, 1/√n for each of n runs of a source: rows of one sweep are alike."""
    counts = Counter(sources)
    return np.array([counts[source] ** -0.5 for source in sources])


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """Weighted quantile of `values` at `share` of the total weight."""
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    place = int(np.searchsorted(cumulative, share * cumulative[-1]))
    return float(values[order][min(len(values) - 1, place)])
