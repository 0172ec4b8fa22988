"""A profile moved by a few runs of one cluster: no further than they agree, and never far from where it was.

With one to eight runs a fit that follows them closely takes their oddities for constants. So constants move to what
`offset` makes of the runs: as the profile's scenarios vary, and with room for a factor of the cluster's own and for odd
rows, neither of which is any constant of a profile, so they stay out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cost_models.measured.calibration.offset import Offset, covariance_of, offset_of
from cost_models.measured.calibration.step_time_fit import (
    Interval,
    StepTimeFit,
    TimedCases,
    fit_step_times,
    moved_by_factors,
)
from cost_models.measured.runs.cases import Case
from cost_models.specs.hardware import HardwareProfile

FEW = 8
"""Most runs that count as few: of sources left out of every fit a close fit to fifteen predicted the rest better."""
_WARY = 0.8
"""Share of the variance that anchors count: a profile is kept, and must not be worse than the one it was."""
_Z90 = 1.645
_HARDLY = 1e-6
"""Weight of a run that moves nothing."""


def fit_few_runs(
    start: HardwareProfile, cases: Sequence[Case], *, on_round: Callable[[int, float], None] | None = None
) -> StepTimeFit:
    """Move the constants of `start` by what a few runs of one cluster say of them."""
    timed = TimedCases(start, cases)
    errors, slopes = timed.logarithms
    known_runs = sum(one.runs for one in start.timed if one.source == cases[0].row.source)
    covariance = _WARY * covariance_of(start, timed.constants)
    found = offset_of(errors, slopes, covariance, known_runs=known_runs)
    factors = dict(zip(timed.constants, np.exp(found.constants).tolist(), strict=True))
    moved = moved_by_factors(start, factors)
    fit = fit_step_times(moved, cases, weight_of_a_run=_HARDLY, on_round=on_round)
    return replace(
        fit,
        profile=moved,
        constants=_intervals(moved, timed, found, slopes),
        # what sources differ by, and what was ever timed, a few runs add to
        pair_error=start.pair_error or fit.pair_error,
        scenarios=start.scenarios or fit.scenarios,
        timed=(*start.timed, *fit.timed),
    )


def _intervals(
    moved: HardwareProfile, timed: TimedCases, found: Offset, slopes: np.ndarray
) -> dict[str, Interval]:
    """90 % interval of each constant, with the runs that depend on it most."""
    intervals = {}
    for place, name in enumerate(timed.constants):
        value, wide = getattr(moved, name), float(np.exp(_Z90 * found.deviations[place]))
        strongest = np.argsort(-np.abs(slopes[:, place]), kind="stable")[:3]
        movers = tuple(timed.cases[run].row.row_id for run in strongest if slopes[run, place] != 0)
        intervals[name] = Interval(
            value=value, low=value / wide, high=value * wide, moved_by=movers, told=float(found.told[place])
        )
    return intervals
