"""Accuracy of predictions: error figures of each source of published rows, and how often runs with a stated chance ran.

Errors are predicted / measured − 1. A *sweep* is what one source ran under one nominal question: rows that agree in
model, sequence length, number of GPUs, global batch, GPU and precision, and differ in layout.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predicting import Prediction

SWEEP_COLUMNS = ("model_name", "seq_len", "num_gpus", "global_batch", "gpu", "precision")
"""Columns in which the rows of one sweep agree."""
MIN_RANKED = 3
"""Fewest timed rows of a sweep in which picking the fastest is scored."""
MIN_ORDERED = 5
"""Fewest timed rows of a sweep whose order is scored, and of which three may be anchors."""
_PENALTY = 1e3
"""Factor on the time of a layout predicted not to fit: it is picked only where nothing fits."""
_GIGABYTE = 1e9
"""Bytes of the GB in which published peaks are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorScore:
    """Statistics of absolute relative errors."""

    median: float
    mean: float
    p90: float
    """90th percentile: element ⌊0.9 n⌋ of the sorted errors."""
    bias: float
    """Mean signed error; above zero where predictions are too slow or too large."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryVerdicts:
    """Counts of runs by whether they ran out of memory and whether they were predicted to."""

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
        """Share of the runs out of memory that were caught; None where there are none."""
        return _share(self.caught, self.caught + self.missed)

    @property
    def precision(self) -> float | None:
        """Share of the runs predicted not to fit that did not; None where there are none."""
        return _share(self.caught, self.caught + self.false_alarms)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepScore:
    """Figures of one sweep of at least three timed rows."""

    key: tuple[str, ...]
    """The sweep's cells of `SWEEP_COLUMNS`."""
    rows: int
    regret: float
    """How much slower the row predicted fastest ran than the fastest row, as a share."""
    tau: float | None
    """Kendall's τ of predicted and measured times, ties left out; None below five rows or where all tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceScore:
    """Every accuracy figure of one source; None where its rows do not say."""

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
        """Timed rows with a predicted step time."""
        return self.step.count if self.step is not None else 0

    @property
    def mean_regret(self) -> float | None:
        """Mean regret of the sweeps; None where there is none."""
        return statistics.mean(sweep.regret for sweep in self.sweeps) if self.sweeps else None

    @property
    def worst_regret(self) -> float | None:
        """Largest regret of the sweeps; None where there is none."""
        return max((sweep.regret for sweep in self.sweeps), default=None)

    @property
    def mean_tau(self) -> float | None:
        """Mean Kendall's τ of the sweeps that have one; None where none has."""
        taus = [sweep.tau for sweep in self.sweeps if sweep.tau is not None]
        return statistics.mean(taus) if taus else None


def score(predictions: Iterable[Prediction]) -> tuple[SourceScore, ...]:
    """The figures of every source, in order of first appearance."""
    sources: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        sources[prediction.row.source].append(prediction)
    return tuple(_score_source(name, some) for name, some in sources.items())


def sweep_of(row: Row) -> tuple[str, ...]:
    """The cells that name a row's sweep within its source."""
    return tuple(row.text(column) for column in SWEEP_COLUMNS)


def measured_seconds(row: Row) -> float | None:
    """The step time a row was published with, or None."""
    seconds = row.number("step_time_best_s")
    return seconds if seconds is not None and seconds > 0 else None


def measured_bytes(row: Row) -> float | None:
    """The peak memory a row was published with, or None."""
    gigabytes = row.number("peak_memory_gb")
    return gigabytes * _GIGABYTE if gigabytes is not None and gigabytes > 0 else None


def step_error(prediction: Prediction) -> float | None:
    """Predicted / measured − 1 of the step time; None where either is missing."""
    return _error(prediction.step_seconds, measured_seconds(prediction.row))


def memory_error(prediction: Prediction) -> float | None:
    """Predicted / measured − 1 of the peak memory; None where either is missing."""
    return _error(prediction.peak_bytes, measured_bytes(prediction.row))


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """(concordant − discordant) / (concordant + discordant) pairs; None where every pair ties."""
    concordant = discordant = 0
    for late in range(len(first)):
        for early in range(late):
            side = (first[late] - first[early]) * (second[late] - second[early])
            concordant += side > 0
            discordant += side < 0
    pairs = concordant + discordant
    return (concordant - discordant) / pairs if pairs else None


def error_score(errors: Sequence[float]) -> ErrorScore | None:
    """Statistics of signed relative errors; None where there are none."""
    if not errors:
        return None
    sizes = sorted(abs(error) for error in errors)
    return ErrorScore(
        median=statistics.median(sizes),
        mean=statistics.mean(sizes),
        p90=sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        bias=statistics.mean(errors),
        count=len(errors),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """A row with a measured and a predicted step time."""

    row_id: str
    measured: float
    predicted: float
    fits: bool


def _score_source(name: str, predictions: Sequence[Prediction]) -> SourceScore:
    answered = [one for one in predictions if one.step_seconds is not None or one.peak_bytes is not None]
    timed = [(sweep_of(one.row), found) for one in answered if (found := _timed(one)) is not None]
    sweeps: dict[tuple[str, ...], list[_Timed]] = defaultdict(list)
    for key, one in timed:
        sweeps[key].append(one)
    return SourceScore(
        source=name,
        rows=len(predictions),
        skipped=len(predictions) - len(answered),
        step=error_score([one.predicted / one.measured - 1 for _, one in timed]),
        anchored=error_score([error for rows in sweeps.values() for error in _anchored(rows)]),
        memory=error_score([error for one in answered if (error := memory_error(one)) is not None]),
        verdicts=_verdicts(answered),
        sweeps=tuple(_score_sweep(key, rows) for key, rows in sweeps.items() if len(rows) >= MIN_RANKED),
    )


def _timed(prediction: Prediction) -> _Timed | None:
    measured, predicted = measured_seconds(prediction.row), prediction.step_seconds
    if not measured or not predicted:
        return None
    fits = prediction.fits is not False
    return _Timed(row_id=prediction.row.row_id, measured=measured, predicted=predicted, fits=fits)


def _score_sweep(key: tuple[str, ...], rows: Sequence[_Timed]) -> SweepScore:
    picked = min(rows, key=lambda row: row.predicted * (1 if row.fits else _PENALTY))
    best = min(row.measured for row in rows)
    tau = None
    if len(rows) >= MIN_ORDERED:
        tau = kendall_tau([row.measured for row in rows], [row.predicted for row in rows])
    return SweepScore(key=key, rows=len(rows), regret=picked.measured / best - 1, tau=tau)


def _anchored(rows: Sequence[_Timed]) -> list[float]:
    """Errors of the other rows after the median ratio of three is divided out; empty for fewer than five rows."""
    if len(rows) < MIN_ORDERED:
        return []
    ordered = sorted(rows, key=lambda row: row.row_id)
    anchors = {0, len(ordered) // 2, len(ordered) - 1}
    factor = statistics.median(ordered[index].predicted / ordered[index].measured for index in anchors)
    return [
        row.predicted / factor / row.measured - 1 for index, row in enumerate(ordered) if index not in anchors
    ]


def _verdicts(predictions: Sequence[Prediction]) -> MemoryVerdicts:
    """Counts of verdicts over rows that ran out of memory or have a step time."""
    caught = missed = false_alarms = agreed = 0
    for one in (known for known in predictions if known.fits is not None):
        alarm = one.fits is False
        if one.row.flag("oom"):
            caught, missed = caught + alarm, missed + (not alarm)
        elif measured_seconds(one.row):
            false_alarms, agreed = false_alarms + alarm, agreed + (not alarm)
    return MemoryVerdicts(caught=caught, missed=missed, false_alarms=false_alarms, agreed=agreed)


def _error(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted and measured else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
