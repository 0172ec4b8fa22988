"""Chances that peaks fit, fitted to what shipped runs measured and to which of them ran out (`fit_errors.py`).

Left out by source: every source's chances come from a mixture fitted to all others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from judged_intervals import search

from cost_models.measured.runs.cases import shipped_rows
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import measured_bytes
from cost_models.pipeline.pricing import estimate
from cost_models.risk import PEAK_QUANTILE, PeakErrors
from meshwright.verbs.validate.accuracy import chance_table, chances_heading

_START = np.array([0.0, -2.0, math.log(0.5), -2.0, math.log(0.5)])
_PULL = 0.02
_MOST_OUTLIERS = 0.3
_SURE = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peak:
    """A run whose peak, or whose outcome, is known."""

    source: str
    error: float
    room: float
    """ln(limit / predicted peak)."""
    ran: bool | None
    """Whether it ran; None: unknown, or its peak says more."""
    off: float | None
    """ln(measured / predicted) of its peak; None: not measured."""
    prediction: Prediction


def fitted() -> tuple[PeakErrors, list[Prediction]]:
    """The mixture of all runs, and the left-out chances."""
    runs = _runs()
    chances = []
    for source in dict.fromkeys(run.source for run in runs):
        others = _mixture([run for run in runs if run.source != source])
        chances += [
            (run.prediction, others.p_below(run.room, run.error)) for run in runs if run.source == source
        ]
    judged = [_with_chance(one, chance) for one, chance in chances if one.fits_probability is not None]
    return _mixture(runs), judged


def _with_chance(one: Prediction, chance: float) -> Prediction:
    return Prediction(row=one.row, fits_probability=chance)


def _runs() -> list[_Peak]:
    found = []
    for one in predict(shipped_rows()):
        if one.case is None:
            continue
        priced, measured, oom = (
            estimate(one.case.question, one.case.layout),
            measured_bytes(one.row),
            one.row.out_of_memory,
        )
        known = one.fits_probability is not None
        off = None if oom or not measured or not one.peak_bytes else math.log(measured / one.peak_bytes)
        ran = None if not known else False if oom else True if one.row.step_seconds or measured else None
        if off is not None or ran is not None:
            found.append(
                _Peak(
                    source=one.row.source_id,
                    error=priced.trust.memory_error,
                    room=math.log(priced.memory_limit / priced.peak_bytes),
                    ran=ran,
                    off=off,
                    prediction=one,
                )
            )
    return found


def _mixture(runs: Sequence[_Peak]) -> PeakErrors:
    """The likeliest mixture; n outcomes, and n peaks, of a source weigh as √n."""
    outcomes = [run for run in runs if run.ran is not None]
    peaks = [run for run in runs if run.off is not None]
    counts = [Counter(run.source for run in some) for some in (outcomes, peaks)]
    room, off = np.array([run.room for run in outcomes]), np.array([run.off for run in peaks])
    ran = np.array([bool(run.ran) for run in outcomes])
    sigmas = [np.log1p([run.error for run in some]) / _SURE for some in (outcomes, peaks)]
    weights = [
        np.array([count[r.source] ** -0.5 for r in some])
        for count, some in zip(counts, (outcomes, peaks), strict=True)
    ]

    def loss(point: np.ndarray) -> float:
        mixture = _at(point)
        chance = np.clip(_below(mixture, room, sigmas[0]), 1e-6, 1 - 1e-6)
        likely = np.where(ran, np.log(chance), np.log1p(-chance))
        dense = np.log(_density(mixture, off, sigmas[1]) + 1e-9)
        return float(-(weights[0] @ likely) - weights[1] @ dense + _PULL * ((point - _START) ** 2).sum())

    return _at(search(loss, _START, rounds=25))


def _at(point: np.ndarray) -> PeakErrors:
    """Logarithms, of shares log-odds up to three in ten, → the mixture with the digits of its file."""
    share = [_MOST_OUTLIERS / (1 + math.exp(-point[at])) for at in (1, 3)]
    values = (math.exp(point[0]), share[0], math.exp(point[2]), share[1], math.exp(point[4]))
    names = ("core", "below_share", "below_reach", "above_share", "above_reach")
    return PeakErrors(**{name: float(f"{value:.4g}") for name, value in zip(names, values, strict=True)})


def _normal(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _below(m: PeakErrors, x: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """As `PeakErrors.below`, of many."""
    low = np.minimum(1.0, 2 * _normal(x / m.below_reach))
    high = np.maximum(0.0, 2 * _normal(x / m.above_reach) - 1)
    core = _normal(x / (m.core * sigma))
    return (1 - m.below_share - m.above_share) * core + m.below_share * low + m.above_share * high


def _density(m: PeakErrors, x: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    def normal(reach: float | np.ndarray) -> np.ndarray:
        return np.exp(-((x / reach) ** 2) / 2) / (reach * math.sqrt(2 * math.pi))

    outlier = np.where(
        x < 0, m.below_share * 2 * normal(m.below_reach), m.above_share * 2 * normal(m.above_reach)
    )
    return (1 - m.below_share - m.above_share) * normal(m.core * sigma) + outlier


def page(judged: Sequence[Prediction]) -> Iterator[str]:
    """The table of reliability."""
    yield from ("", "## Chances to fit", "")
    yield "Every source's chances are those of a mixture of errors that was fitted to all others. Most sources"
    yield "print runs that ran, so more ran than a search would find."
    yield from ("", chances_heading(judged), "")
    if (chances := chance_table(judged)).rows:
        headers = [column.header for column in chances.columns]
        yield from (f"| {' | '.join(headers)} |", f"|{' --- |' * len(headers)}")
        yield from (f"| {' | '.join(row)} |" for row in chances.rows)


def write(place: Path, peaks: PeakErrors) -> None:
    """Write the file that `cost_models/risk.py` reads."""
    values = {name: value for name, value in asdict(peaks).items() if name != "source"}
    assert PEAK_QUANTILE == 0.95
    lines = ["# Written by `python benchmarks/fit_errors.py --write`; what each is: cost_models/risk.py."]
    lines += [f"{name}: {value:.4g}" for name, value in values.items()]
    lines += [
        'source: "Fitted to the outcomes and the measured peaks of all shipped runs; n of a source weigh as sqrt(n)"'
    ]
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")
