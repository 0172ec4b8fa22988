"""What a few timed runs of a cluster say of its others: a factor on its steps and factors of its profile's constants.

    log measured = log predicted(constants · e^δ) + γ + noise

γ is what the cluster or its software has of its own and no constant has; δ varies as the profile's scenarios do. Two
things are unsure besides: whether a row is ordinary or odd (misread, or of a mechanism that is missing), and whether
the cluster is like others or far from them all. Every combination is followed as a Gaussian, row by row, and their
mean counts, each weighted by how likely it makes the rows (a Gaussian sum filter, Alspach and Sorenson 1972): where
rows disagree, none is believed in full. Of many rows only the likeliest combinations are followed. How wide all this is
was seen where whole sources were left out of every fit, with one to five of their rows given.

With one to eight runs a fit that follows them closely takes their oddities for constants. So a profile's constants move
only by δ; the factor γ and odd rows stay out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array
from cost_models.measured.calibration.moved_profile import moved_by_factors
from cost_models.measured.calibration.step_time_fit import (
    Interval,
    StepTimeFit,
    TimedCases,
    fit_step_times,
    pulls_of,
)
from cost_models.measured.runs.cases import Case
from cost_models.specs.hardware import HardwareProfile

_VARIANCE = 0.6
"""Variance of δ as a share of the scenarios', which have stacks that were misread among them."""
_OFFSET, _FAR_OFFSET = 0.03, 0.5
"""Deviation of γ between clusters that are like others, and of one that is far."""
_FAR = 0.01
"""Share of clusters that are far."""
_NOISE, _ODD_NOISE = 0.02, 0.5
"""Deviation of an ordinary row from its neighbours, and of an odd one."""
_ODD, _FAR_ODD = 0.4, 0.05
"""Share of rows that are odd; on a cluster that is far rows agree, or it could not be recognised."""
_MOST = 128
"""Combinations that are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Offset of one cluster from its profile, inferred from runs, as logarithms."""

    step: float
    """Added to every step time."""
    constants: Array
    """(C,) added to constants."""
    determined: Array
    """(C,) share of the deviation of each constant that the runs take away."""
    deviations: Array
    """(C,) what is left of it."""


@dataclass(frozen=True, slots=True)
class _Combinations:
    """Hypotheses on the cluster and on each row so far, as weighted Gaussians."""

    means: Array
    """(H, 1 + C) of γ and δ."""
    covariances: Array
    """(H, 1 + C, 1 + C)."""
    chances: Array
    """(H,) logarithms of their weights."""
    odd: Array
    """(H,) share of rows that are odd."""

    def after(self, term: Array, value: float) -> _Combinations:
        """The hypotheses after one more row, ordinary or odd, with `term` · (γ, δ) = `value`."""
        along = self.covariances @ term
        off = value - self.means @ term
        both = []
        for share, deviation in ((1 - self.odd, _NOISE), (self.odd, _ODD_NOISE)):
            variance = along @ term + deviation**2
            gain = along / variance[:, None]
            both.append(
                (
                    self.means + gain * off[:, None],
                    self.covariances - gain[:, :, None] * along[:, None, :],
                    self.chances + np.log(share) - 0.5 * (off**2 / variance + np.log(variance)),
                    self.odd,
                )
            )
        means, covariances, chances, odd = (np.concatenate(pair) for pair in zip(*both, strict=True))
        best = np.argsort(-chances, kind="stable")[:_MOST]
        return _Combinations(means[best], covariances[best], chances[best], odd[best])

    def moments(self) -> tuple[Array, Array]:
        """(1 + C,) mean and (1 + C,) deviation over all hypotheses."""
        weights = np.exp(self.chances - self.chances.max())
        weights /= weights.sum()
        mean = weights @ self.means
        spread = np.diagonal(self.covariances, axis1=1, axis2=2) + (self.means - mean) ** 2
        return mean, np.sqrt(np.maximum(weights @ spread, 0.0))


def offset_of(errors: Array, slopes: Array, covariance: Array, *, known_runs: int = 0) -> Offset:
    """The mean offset, from (K,) logarithms of predicted / measured and their slopes (K, C) in the constants.

    `covariance` (C, C) is that of the scenarios. `known_runs` of the same cluster are in the constants already, which
    leaves less to say for these. Without errors the offset is zero.
    """
    found = _Combinations(
        means=np.zeros((2, len(covariance) + 1)),
        covariances=np.array([_joint(one**2, covariance, known_runs) for one in (_OFFSET, _FAR_OFFSET)]),
        chances=np.log([1 - _FAR, _FAR]),
        odd=np.array([_ODD, _FAR_ODD]),
    )
    _, before = found.moments()
    for error, slope in zip(errors.tolist(), slopes, strict=True):
        found = found.after(np.append(1.0, slope), -error)
    mean, after = found.moments()
    told = np.clip(1 - after / np.maximum(before, 1e-12), 0.0, 1.0)
    return Offset(step=float(mean[0]), constants=mean[1:], determined=told[1:], deviations=after[1:])


def covariance_of(profile: HardwareProfile, constants: Sequence[str]) -> Array:
    """(C, C) covariance of the constants' logarithms over a profile's scenarios; from the pulls where it has none."""
    told = profile.scenarios.by_constant if profile.scenarios is not None else {}
    covariance = np.diag(pulls_of(constants) ** 2)
    known = [place for place, name in enumerate(constants) if name in told]
    if known:
        logs = np.log([told[constants[place]] for place in known])
        covariance[np.ix_(known, known)] = np.cov(logs, bias=True)
    return covariance


def _joint(offset: float, covariance: Array, known_runs: int) -> Array:
    """(1 + C, 1 + C) prior covariance of γ and δ, reduced by `known_runs` runs that the profile was fitted to."""
    joint = np.zeros((len(covariance) + 1,) * 2)
    joint[0, 0], joint[1:, 1:] = offset, _VARIANCE * covariance
    left = (1.0 + known_runs * np.diag(joint) / _NOISE**2) ** -0.5
    return np.asarray(joint * np.outer(left, left))


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
    """Move the constants of `start` by the offset that a few runs of one cluster imply."""
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
            value=value,
            low=value / wide,
            high=value * wide,
            moved_by=movers,
            determined=float(found.determined[place]),
        )
    return intervals
