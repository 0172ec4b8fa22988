"""Whether stated intervals hold on sources that no fit has seen, and how far they have to reach so that they do.

A step's interval is as wide as its deviation says, stretched to either side (conformal prediction): by what the
twentieth and nineteen twentieths of the runs of sources left out of every fit needed. Errors have two unlike sides: a
cluster is seldom faster than its model, and in many ways slower. It is tested on each source with the
stretches of all others, so that neither its constants nor its interval have seen it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array
from cost_models.specs.hardware import HardwareProfile
from cost_models.uncertainty import half_width

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
