"""Fits the process of `cost_models/expected.py` to left-out sources, and judges its intervals (`fit_errors.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.expected import INTERVAL_PROBABILITY, LARGEST, Kernel, Reach, Rows, agree, timed_rows

Folds = Mapping[str, tuple[np.ndarray, np.ndarray]]
ASSUMED = {"same": 0.05, "noise": 0.02}
"""What no shipped runs tell: the noise floor between publishers of one configuration (docs/accuracy.md, 3 to 10 %), and
that of runs whose features are the same though their words are not."""
START = {
    "amplitude": 1.0,
    "power": 1.246,
    "experts": 0.47,
    "narrow": 0.2,
    "sharded": 0.1168,
    "sharpness": 0.5353,
    "shape": 3.894,
    "split": 2.726,
    "switches": 0.182,
    "publisher": 0.006065,
    "other_gpu": 0.8466,
    "other_die": 0.2863,
    "other_stack": 0.9369,
    "other_family": 0.7258,
    "other_kind": 0.35,
}
SHARES = ("other_gpu", "other_die", "other_stack", "other_family", "other_kind")
FREEDOM = 4
"""Degrees of freedom of the errors' tails: a run may be mistranscribed."""
_OF_EACH = 70
"""Runs of a source that the likelihood counts."""
_PULL = 0.001


def search(
    loss: Callable[[np.ndarray], float], start: np.ndarray, step: float = 0.5, rounds: int = 3
) -> np.ndarray:
    """A point of small loss: one coordinate after another, each with a step that grows and shrinks."""
    point, steps, least = start.copy(), np.full(len(start), step), loss(start)
    for _ in range(rounds):
        for place in range(len(point)):
            for side in (1, -1):
                other = point.copy()
                other[place] += side * steps[place]
                if (found := loss(other)) < least - 1e-7:
                    point, least = other, found
                    steps[place] *= 1.5
                    break
            else:
                steps[place] *= 0.5
    return point


def kernel_at(point: np.ndarray) -> Kernel:
    """Logarithms, of shares log-odds, → constants with the digits of their file."""
    values = {}
    for name, value in zip(START, point, strict=True):
        plain = 1 / (1 + math.exp(-value)) if name in SHARES else math.exp(value)
        values[name] = float(f"{plain:.4g}")
    return Kernel(**values, **ASSUMED)


def _point(values: Mapping[str, float]) -> np.ndarray:
    return np.array([math.log(v / (1 - v)) if name in SHARES else math.log(v) for name, v in values.items()])


def fitted_kernel(folds: Folds) -> Kernel:
    """The constants under which left-out sources are likeliest; n runs of a source weigh as √n."""
    rows, _ = timed_rows()
    rng, chosen = np.random.default_rng(0), []
    for source in dict.fromkeys(rows["source"].tolist()):
        own = np.flatnonzero(rows["source"] == source)
        chosen += (own if len(own) <= _OF_EACH else rng.choice(own, _OF_EACH, replace=False)).tolist()
    some, start = np.array(sorted(chosen)), _point(START)
    sources = {name: fold for name, fold in folds.items() if name.startswith("source")}

    def loss(point: np.ndarray) -> float:
        total = weights = 0.0
        for _, held, error, mean, deviation in _predicted(kernel_at(point), rows[some], sources, some):
            z, weight = (error - mean) / deviation, len(held) ** -0.5
            likely = -(FREEDOM + 1) / 2 * np.log1p(z**2 / FREEDOM) - np.log(deviation)
            total, weights = total + weight * likely.sum(), weights + weight * len(held)
        return float(-total / weights + _PULL * ((point - start) ** 2).sum())

    return kernel_at(search(loss, start))


def _predicted(
    kernel: Kernel, rows: Rows, folds: Folds, places: np.ndarray
) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Name, places among `rows`, errors, means and deviations of every fold's runs, given all other rows.

    With the precision P of all rows, held rows have covariance V = P_hh⁻¹ and mean y_h − V (P y)_h given the rest.
    """
    covariance = kernel.covariance(rows, rows)
    covariance[np.diag_indices(len(rows))] += kernel.noise**2
    precision = np.linalg.inv(covariance)
    at = {int(place): index for index, place in enumerate(places)}
    for name, (held, errors) in folds.items():
        own = np.array([at[int(place)] for place in held if int(place) in at])
        known = np.clip(errors[places], -LARGEST, LARGEST)
        inside = np.linalg.inv(precision[np.ix_(own, own)])
        mean = known[own] - inside @ (precision[own] @ known)
        yield name, own, errors[places][own], mean, np.sqrt(np.diag(inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Left-out runs, one after another."""

    source: np.ndarray
    stratum: np.ndarray
    error: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @property
    def needed(self) -> np.ndarray:
        return (self.error - self.mean) / self.deviation


def _runs(kernel: Kernel, folds: Folds, kind: str) -> _Runs:
    rows, _ = timed_rows()
    every = np.arange(len(rows))
    chosen = {name: fold for name, fold in folds.items() if name.startswith(kind)}
    found = list(_predicted(kernel, rows, chosen, every))
    alike = agree(rows, rows, "gpu") & agree(rows, rows, "family") & agree(rows, rows, "experts")
    timed = (alike & ~agree(rows, rows, "source")).any(axis=1)
    held = np.concatenate([own for _, own, *_ in found])
    stratum = np.where(timed, "timed", "untimed") if kind == "source" else np.full(len(rows), "borrowed")
    error, mean, deviation = (np.concatenate([one[at] for one in found]) for at in (2, 3, 4))
    names = np.concatenate([np.full(len(own), name.split(" ", 1)[1]) for name, own, *_ in found])
    return _Runs(source=names, stratum=stratum[held], error=error, mean=mean, deviation=deviation)


def central(needed: np.ndarray) -> Reach:
    """The span of deviations that leaves one in twenty out on either side."""
    low, high = np.quantile(needed, [(1 - INTERVAL_PROBABILITY) / 2, (1 + INTERVAL_PROBABILITY) / 2])
    return Reach(faster=float(-low), slower=float(high))


def reaches(kernel: Kernel, folds: Folds) -> dict[str, Reach]:
    """How far intervals reach, by how much was timed."""
    sources, dies = _runs(kernel, folds, "source"), _runs(kernel, folds, "die")
    found = {name: central(sources.needed[sources.stratum == name]) for name in ("timed", "untimed")}
    return {**found, "borrowed": central(dies.needed)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Every left-out run, and whether an interval that its source had no part in held it."""

    runs: _Runs
    held: np.ndarray
    width: np.ndarray
    borrowed_error: float
    borrowed_runs: int

    @property
    def sources(self) -> int:
        """Number of sources."""
        return len(set(self.runs.source.tolist()))

    def sentences(self) -> Iterator[str]:
        """The figures of all."""
        timed = self.runs.stratum == "timed"
        for name, own in (("all", np.full(len(timed), True)), ("timed", timed), ("untimed", ~timed)):
            yield (
                f"- {name}: {own.sum():,} runs, {100 * self.held[own].mean():.1f} % held, median width"
                f" {np.median(self.width[own]):.2f}"
            )
        yield (
            f"- a profile borrowed from another die is off by {100 * self.borrowed_error:.1f} % (median of"
            f" {self.borrowed_runs:,} runs, each die left out)"
        )

    def lines(self) -> Iterator[str]:
        """A line of the table for each source."""
        runs = self.runs
        for source in dict.fromkeys(runs.source.tolist()):
            own = runs.source == source
            paper, given = (np.median(np.abs(np.expm1(e[own]))) for e in (runs.error, runs.error - runs.mean))
            yield (
                f"| {source} | {own.sum()} | {100 * self.held[own].mean():.0f} % | {np.median(self.width[own]):.2f} |"
                f" {100 * (runs.stratum[own] == 'timed').mean():.0f} % | {100 * paper:.1f} % | {100 * given:.1f} % |"
            )


def judged(kernel: Kernel, folds: Folds) -> Judged:
    """Judge every source by the reach of all others."""
    runs = _runs(kernel, folds, "source")
    held, width = np.zeros(len(runs.error), dtype=bool), np.zeros(len(runs.error))
    for source in dict.fromkeys(runs.source.tolist()):
        for stratum in ("timed", "untimed"):
            own = (runs.source == source) & (runs.stratum == stratum)
            reach = central(runs.needed[(runs.source != source) & (runs.stratum == stratum)])
            held[own] = (runs.needed[own] >= -reach.faster) & (runs.needed[own] <= reach.slower)
            width[own] = np.exp((reach.faster + reach.slower) * runs.deviation[own])
    dies = _runs(kernel, folds, "die")
    off = np.abs(np.expm1(-dies.error))
    return Judged(
        runs=runs, held=held, width=width, borrowed_error=float(np.median(off)), borrowed_runs=len(off)
    )
