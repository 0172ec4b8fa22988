"""Whether stated intervals hold on sources that no fit has seen, and how far they have to reach so that they do.

A step's interval is as wide as its deviation says, stretched to either side (conformal prediction): by what the
twentieth and nineteen twentieths of the runs of sources left out of every fit needed. Errors have two unlike sides: a
cluster is seldom faster than its model, and in many ways slower. It is tested on each source with the
stretches of all others, so that neither its constants nor its interval have seen it.

Chances to fit against what happened: of the runs that were said to fit with so much chance, how many ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

import numpy as np

from cost_models.arrays import Array
from cost_models.measured.validation.predicting import Prediction
from cost_models.measured.validation.scores import measured_bytes, measured_seconds
from cost_models.specs.hardware import HardwareProfile
from cost_models.uncertainty import half_width

EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0)
"""Bounds of the ranges of P(fits), narrow where a decision is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChanceRange:
    """The runs whose chance of fitting lay in one range."""

    least: float
    most: float
    runs: int
    fits_probability: float
    """Mean of their chances."""
    ran_share: float
    """Share of them that ran."""


def chance_ranges(predictions: Iterable[Prediction]) -> tuple[ChanceRange, ...]:
    """Ranges of P(fits) that have runs, the least likely first; runs with unknown outcome do not count."""
    known = _outcomes(predictions)
    found = []
    for least, most in pairwise(EDGES):
        own = [
            (chance, ran) for chance, ran in known if least <= chance and (chance < most or most == EDGES[-1])
        ]
        if own:
            said, ran = (mean(column) for column in zip(*own, strict=True))
            found.append(
                ChanceRange(least=least, most=most, runs=len(own), fits_probability=said, ran_share=ran)
            )
    return tuple(found)


def brier_scores(predictions: Iterable[Prediction]) -> tuple[float, float] | None:
    """Mean squared difference of P(fits) from what happened, 1 or 0, and the same of one chance for all: the share that
    ran (Brier 1950). None: no outcome is known."""
    known = _outcomes(predictions)
    if not known:
        return None
    share = mean(ran for _, ran in known)
    return mean((chance - ran) ** 2 for chance, ran in known), share * (1 - share)


def _outcomes(predictions: Iterable[Prediction]) -> list[tuple[float, bool]]:
    """P(fits) of the runs whose outcome is known, and whether they ran."""
    return [
        (one.fits_probability, not one.row.flag("oom"))
        for one in predictions
        if one.fits_probability is not None
        and (one.row.flag("oom") or measured_seconds(one.row) or measured_bytes(one.row))
    ]


STATED = 0.9
"""Share of the runs that an interval should hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRun:
    """A timed run, predicted by constants fitted to all sources but its own."""

    source: str
    error: float
    """Predicted / measured − 1."""
    deviation: float | None
    """That of the logarithm of its step time, as predicted; None where its profile does not say."""

    @property
    def needed(self) -> float:
        """Distance of the measured from the predicted step in deviations; negative where it was faster."""
        assert self.deviation is not None
        return -float(np.log1p(self.error)) / self.deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Stretch of an interval to each side, relative to that of a normal error."""

    faster: float
    slower: float

    def holds(self, run: LeftOutRun) -> bool:
        """Whether the interval of a run holds what was measured."""
        wide = half_width(STATED)
        return -self.faster * wide <= run.needed <= self.slower * wide


def reach_in(profile: HardwareProfile) -> Reach | None:
    """The reach that a profile states; None without scenarios."""
    told = profile.scenarios
    return None if told is None else Reach(faster=told.faster, slower=told.slower)


def reach_of(runs: Sequence[LeftOutRun]) -> Reach:
    """The reach that holds nine in ten of the runs; each of n runs of a source weighs 1/√n, as in fits."""
    known = [run for run in runs if run.deviation is not None]
    counts = Counter(run.source for run in known)
    needed = np.array([run.needed for run in known])
    weights = np.array([counts[run.source] ** -0.5 for run in known])
    below, above = (_quantile(needed, weights, share) for share in ((1 - STATED) / 2, (1 + STATED) / 2))
    wide = half_width(STATED)
    return Reach(faster=round(max(0.0, -below) / wide, 2), slower=round(max(0.0, above) / wide, 2))


def held_by_source(runs: Sequence[LeftOutRun]) -> Mapping[str, tuple[bool, ...]]:
    """Source → for each of its runs, whether the interval with the reach of all other sources holds it."""
    held = {}
    for source in dict.fromkeys(run.source for run in runs if run.deviation is not None):
        reach = reach_of([run for run in runs if run.source != source])
        own = [run for run in runs if run.source == source and run.deviation is not None]
        held[source] = tuple(reach.holds(run) for run in own)
    return held


def _quantile(values: Array, weights: Array, share: float) -> float:
    """The weighted quantile of the values."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][min(len(values) - 1, int(np.searchsorted(below, share * below[-1])))])
