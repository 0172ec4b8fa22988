"""Offset of a cluster from its profile, inferred from a few timed runs: factors of its steps and of constants.

    log measured = log predicted(constants · e^δ) + γ + noise

γ is what the cluster or its software has of its own and no constant has; δ varies as the profile's scenarios do. Two
things are unsure besides: whether a row is ordinary or odd (misread, or of a mechanism that is missing), and whether
the cluster is like others or far from them all. Every combination is followed as a Gaussian, row by row, and their
mean counts, each weighted by how likely it makes the rows (a Gaussian sum filter, Alspach and Sorenson 1972): where
rows disagree, none is believed in full. Of many rows only the likeliest combinations are followed. How wide all this is
was seen where whole sources were left out of every fit, with one to five of their rows given.

With one to eight runs a fit that follows them closely takes their oddities for constants. So a profile's constants move
only by δ; the factor γ and odd rows stay out of it.

**Anchors**: K timed rows of a sweep, as a user has them in old logs, calibrate the predictions of its other rows. A
sweep is the rows of one source, framework and GPU: what is unknown about them (clocks, fabric, versions) is the same
for all, and a few rows tell most of it. They give one factor on the sweep's steps and move the profile's constants, all
pulled back to where they were, so that one odd row moves little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array, group_by
from cost_models.measured.calibration.least_squares import intervals
from cost_models.measured.calibration.step_time_fit import (
    CONSTANTS,
    OnRound,
    StepTimeFit,
    TimedCases,
    fit_step_times,
    ignore,
    pulls_of,
    scale_constants,
)
from cost_models.measured.runs.cases import Case
from cost_models.measured.validation.predictions import Prediction
from cost_models.measured.validation.scores import measured_seconds
from cost_models.pipeline.pricing import estimate
from cost_models.specs.hardware import HardwareProfile

_VARIANCE = 0.6
"""Variance of δ as a share of the scenarios', which have stacks that were misread among them."""
_OFFSET_DEVIATION, _FAR_OFFSET_DEVIATION = 0.03, 0.5
"""Deviation of γ between ordinary clusters, and of a far cluster."""
_FAR_SHARE = 0.01
"""Share of clusters that are far."""
_NOISE, _ODD_NOISE = 0.02, 0.5
"""Deviation of an ordinary row from its neighbours, and of an odd row."""
_ODD_SHARE, _FAR_ODD_SHARE = 0.4, 0.05
"""Share of rows that are odd; on a cluster that is far rows agree, or it could not be recognised."""
_MAX_COMBINATIONS = 128
"""Combinations that are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Logarithmic offsets of one cluster's step times and constants from its hardware profile, inferred from
    timed runs."""

    step: float
    """Added to every step time."""
    constants: Array
    """(C,) added to constants."""
    deviations: Array
    """(C,) remaining deviation of each constant."""
    priors: Array
    """(C,) deviation of each constant before the runs."""

    def moved(self, profile: HardwareProfile, constants: Sequence[str]) -> HardwareProfile:
        """Copy of a profile with `constants`, those of the offset, moved by it."""
        return scale_constants(profile, dict(zip(constants, np.exp(self.constants).tolist(), strict=True)))


def offset_of(errors: Array, slopes: Array, covariance: Array, *, known_runs: int = 0) -> Offset:
    """Infer the mean offset of a cluster from (K,) logs of predicted / measured step times and (K, C) slopes in
    the constants.

    `covariance` (C, C) is that of the scenarios. `known_runs` of the same cluster are in the constants already, which
    leaves less to say for these. Without errors the offset is zero.

    Hypotheses on the cluster (ordinary or far) and on each row so far (ordinary or odd) are Gaussians over the step
    offset γ and the constants' offsets δ: means (H, 1 + C), covariances (H, 1 + C, 1 + C), logarithms of chances (H,),
    and shares of odd rows (H,).
    """
    joint = np.zeros((2, len(covariance) + 1, len(covariance) + 1))
    joint[:, 0, 0] = _OFFSET_DEVIATION**2, _FAR_OFFSET_DEVIATION**2
    joint[:, 1:, 1:] = _VARIANCE * covariance
    remaining = (1.0 + known_runs * np.diagonal(joint, axis1=1, axis2=2) / _NOISE**2) ** -0.5
    covariances = joint * (remaining[:, :, None] * remaining[:, None, :])
    means = np.zeros(covariances.shape[:2])
    chances, odd = np.log([1 - _FAR_SHARE, _FAR_SHARE]), np.array([_ODD_SHARE, _FAR_ODD_SHARE])

    def moments() -> tuple[Array, Array]:
        """Mean and standard deviation of (γ, δ), (1 + C,) each, over all hypotheses."""
        weights = np.exp(chances - chances.max())
        weights /= weights.sum()
        mean = weights @ means
        spread = np.diagonal(covariances, axis1=1, axis2=2) + (means - mean) ** 2
        return mean, np.sqrt(np.maximum(weights @ spread, 0.0))

    priors = moments()[1]
    for error, slope in zip(errors.tolist(), slopes, strict=True):
        term = np.append(1.0, slope)
        along, off = covariances @ term, -error - means @ term
        branches = []
        for share, deviation in ((1 - odd, _NOISE), (odd, _ODD_NOISE)):
            variance = along @ term + deviation**2
            gain = along / variance[:, None]
            posterior = covariances - gain[:, :, None] * along[:, None, :]
            log_chances = chances + np.log(share) - 0.5 * (off**2 / variance + np.log(variance))
            branches.append((means + gain * off[:, None], posterior, log_chances, odd))
        hypotheses = [np.concatenate(pair) for pair in zip(*branches, strict=True)]
        likeliest = np.argsort(-hypotheses[2], kind="stable")[:_MAX_COMBINATIONS]
        means, covariances, chances, odd = (values[likeliest] for values in hypotheses)
    mean, deviations = moments()
    return Offset(step=float(mean[0]), constants=mean[1:], deviations=deviations[1:], priors=priors[1:])


def covariance_of(profile: HardwareProfile, constants: Sequence[str]) -> Array:
    """(C, C) covariance of the logarithms of `constants` over a profile's scenarios; squared prior widths for
    constants without."""
    scenario_factors = profile.scenarios.by_constant if profile.scenarios is not None else {}
    covariance = np.diag(pulls_of(constants) ** 2)
    places = [place for place, name in enumerate(constants) if name in scenario_factors]
    if places:
        logs = np.log([scenario_factors[constants[place]] for place in places])
        covariance[np.ix_(places, places)] = np.cov(logs, bias=True)
    return covariance


MAX_FEW_RUNS = 8
"""Largest number of runs that are fitted as few; with fifteen runs of a left-out source a close fit predicted
better."""
_WARY = 0.8
"""Share of the variance that anchors count: a profile is kept, and must not be worse than the one it was."""
_NEGLIGIBLE_WEIGHT = 1e-6
"""Weight of a run that moves nothing."""


def fit_few_runs(start: HardwareProfile, cases: Sequence[Case], *, on_round: OnRound = ignore) -> StepTimeFit:
    """Refit a profile to a few timed runs of one cluster; constants move only by the offset δ inferred from
    the runs, not by the cluster's own factor γ or odd rows."""
    timed = TimedCases(start, cases)
    errors, slopes = timed.logarithms
    known_runs = sum(one.runs for one in start.timed if one.source == cases[0].row.source)
    covariance = _WARY * covariance_of(start, timed.constants)
    offset = offset_of(errors, slopes, covariance, known_runs=known_runs)
    profile = offset.moved(start, timed.constants)
    point = np.log([getattr(profile, name) for name in timed.constants])
    runs = [case.row.row_id for case in cases]
    fit = fit_step_times(profile, cases, weight_of_a_run=_NEGLIGIBLE_WEIGHT, on_round=on_round)
    return replace(
        fit,
        profile=profile,
        constants=intervals(timed.constants, point, offset.deviations, offset.priors, slopes.T, runs),
        # what sources differ by, and what was ever timed, a few runs add to
        pair_error=start.pair_error or fit.pair_error,
        scenarios=start.scenarios or fit.scenarios,
        timed=(*start.timed, *fit.timed),
    )


IS_ANCHOR = "an anchor: its measured step time calibrates the rest of its sweep"
"""Reason of an anchor's row for having no prediction."""
_NAMED = 0.005
"""Smallest relative change of a constant that a prediction names."""
_ANOTHER_UNIT = 500.0
"""Factor beyond which a time must be in another unit (milliseconds, hours) or mistyped, and calibrates nothing."""


def anchor(
    predictions: Iterable[Prediction], anchors: int, *, on_sweep: Callable[[int, int], None] = ignore
) -> tuple[Prediction, ...]:
    """Calibrate the predicted step times of each sweep of runs on the measured times of `anchors` of its runs;
    keep the order.

    Anchors no longer have predictions. A sweep without more timed rows than anchors keeps its predictions. `on_sweep`
    is called with the number of sweeps that are done and of all.
    """
    ordered = list(predictions)
    rows = [prediction.row for prediction in ordered]
    sweep_of = [(row.source, row.text("framework"), row.text("gpu")) for row in rows]
    sweeps = group_by(range(len(rows)), sweep_of.__getitem__)
    for sweeps_done, indices in enumerate(sweeps.values(), start=1):
        timed = [i for i in sorted(indices, key=lambda i: rows[i].row_id) if _ratio(ordered[i]) is not None]
        if 0 < anchors < len(timed):
            anchor_indices = {timed[position] for position in spread_positions(len(timed), anchors)}
            calibrated = _calibration([ordered[i] for i in sorted(anchor_indices)])
            for i in indices:
                run = ordered[i]
                as_anchor = Prediction(row=run.row, case=run.case, skipped=IS_ANCHOR, anchor=True)
                ordered[i] = as_anchor if i in anchor_indices else calibrated(run)
        on_sweep(sweeps_done, len(sweeps))
    return tuple(ordered)


def spread_positions(count: int, number: int) -> Sequence[int]:
    """Indices of `number` of `count` items, evenly spaced from the first to the last; for one, the middle index.

    Three of seven: 0, 3, 6.
    """
    if number == 1:
        return (count // 2,)
    return tuple(-(-position * (count - 1) // (number - 1)) for position in range(number))


def _ratio(prediction: Prediction) -> float | None:
    """Measured / predicted step time of one run; None if either is missing or they differ so much that a unit
    must be wrong."""
    measured, predicted = measured_seconds(prediction.row), prediction.step_seconds
    ratio = measured / predicted if measured and predicted else None
    return ratio if ratio is not None and 1 / _ANOTHER_UNIT < ratio < _ANOTHER_UNIT else None


def _calibration(anchors: Sequence[Prediction]) -> Callable[[Prediction], Prediction]:
    """Return a function that predicts a step time again with constants moved by the `anchors`, and scales it
    as they imply. Memory figures stay."""
    cases = [one.case for one in anchors if one.case is not None]
    sources = {case.row.source for case in cases}
    starts = {case.question.hardware.name: case.question.hardware for case in cases}.values()
    # a factor cannot move a zero
    constants = [name for name in CONSTANTS if starts and all(getattr(one, name) > 0 for one in starts)]
    around = [_around(one, constants) for one in anchors]
    offset = offset_of(
        np.array([error for error, _ in around]),
        np.stack([slope for _, slope in around]),
        covariance_of(cases[0].question.hardware, constants) if cases else np.zeros((0, 0)),
        known_runs=sum(runs.runs for one in starts for runs in one.timed if runs.source in sources),
    )
    step_factor, moved = math.exp(offset.step), dict[str, HardwareProfile]()

    def calibrated(prediction: Prediction) -> Prediction:
        if prediction.step_seconds is None:
            return prediction
        seconds, parts, changes = prediction.step_seconds, prediction.parts, list[str]()
        if prediction.case is not None:
            old = prediction.case.question.hardware
            new = moved.get(old.name) or offset.moved(old, constants)
            moved[old.name] = new
            priced = estimate(replace(prediction.case.question, hardware=new), prediction.case.layout)
            seconds, parts = priced.step_seconds, dict(priced.time)
            positive = [name for name in CONSTANTS if getattr(old, name) > 0]
            ratios = {name: getattr(new, name) / getattr(old, name) for name in positive}
            changes = [f"{name} × {ratio:.2f}" for name, ratio in ratios.items() if abs(ratio - 1) > _NAMED]
        if abs(offset.step) > _NAMED:
            changes.append(f"step time × {step_factor:.3f}")
        summary = f"{len(anchors)} anchors of its sweep: {', '.join(changes) or 'nothing moved'}"
        return replace(
            prediction,
            step_seconds=step_factor * seconds,
            parts={part: step_factor * value for part, value in parts.items()},
            assumptions=(*prediction.assumptions, summary),
        )

    return calibrated


def _around(prediction: Prediction, constants: Sequence[str]) -> tuple[float, Array]:
    """Logarithm of predicted over measured step time of one anchor (a measured row), and its derivatives by the
    logarithms of C constants, (C,); zeros if the row has no case to price."""
    if prediction.case is None:
        ratio = _ratio(prediction)
        assert ratio is not None
        return -math.log(ratio), np.zeros(len(constants))
    errors, slopes = TimedCases(prediction.case.question.hardware, [prediction.case], constants).logarithms
    return float(errors[0]), slopes[0]
