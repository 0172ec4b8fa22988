"""Anchors: K timed rows of a sweep, as a user has them in old logs, calibrate the predictions of its other rows.

A sweep here is the rows of one source, framework and GPU: what is unknown about them (clocks, fabric, versions) is the
same for all, and a few rows tell most of it. They give one factor on the sweep's steps and move the profile's
constants, all pulled back to where they were, so that one odd row moves little (`offset`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from cost_models.arrays import Array
from cost_models.measured.calibration.few_runs import Offset, covariance_of, offset_of
from cost_models.measured.calibration.scaled_profile import scale_constants
from cost_models.measured.calibration.step_time_fit import CONSTANTS, TimedCases
from cost_models.measured.runs.cases import Case
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Prediction
from cost_models.measured.validation.scores import measured_seconds
from cost_models.pipeline.pricing import estimate
from cost_models.specs.hardware import HardwareProfile

IS_ANCHOR = "an anchor: its measured step time calibrates the rest of its sweep"
"""Reason of an anchor's row for having no prediction."""
_WORTH_NAMING = 0.005
_ANOTHER_UNIT = 500.0
"""Factor beyond which a time must be in another unit (milliseconds, hours) or mistyped, and calibrates nothing."""


def anchor(
    predictions: Iterable[Prediction],
    anchors: int,
    *,
    on_sweep: Callable[[int, int], None] | None = None,
) -> tuple[Prediction, ...]:
    """Calibrate the predicted step times of each sweep of runs on the measured times of `anchors` of its runs;
    keep the order.

    Anchors no longer have predictions. A sweep without more timed rows than anchors keeps its predictions. `on_sweep`
    is called with the number of sweeps that are done and of all.
    """
    ordered = list(predictions)
    sweeps: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, prediction in enumerate(ordered):
        sweeps[_sweep_of(prediction.row)].append(index)
    for sweeps_done, indices in enumerate(sweeps.values(), start=1):
        timed = [i for i in indices if _ratio(ordered[i]) is not None]
        timed.sort(key=lambda i: ordered[i].row.row_id)
        if 0 < anchors < len(timed):
            anchor_indices = {timed[position] for position in spread_positions(len(timed), anchors)}
            calibrated = _calibration([ordered[i] for i in sorted(anchor_indices)])
            for i in indices:
                ordered[i] = _as_anchor(ordered[i]) if i in anchor_indices else calibrated(ordered[i])
        if on_sweep is not None:
            on_sweep(sweeps_done, len(sweeps))
    return tuple(ordered)


def spread_positions(count: int, number: int) -> Sequence[int]:
    """Indices of `number` of `count` items, evenly spaced from the first to the last; for one, the middle index.

    Three of seven: 0, 3, 6.
    """
    if number == 1:
        return (count // 2,)
    return tuple(-(-position * (count - 1) // (number - 1)) for position in range(number))


def _sweep_of(row: Row) -> tuple[str, ...]:
    return tuple(row.text(column) for column in ("source_id", "framework", "gpu"))


def _ratio(prediction: Prediction) -> float | None:
    """Measured / predicted step time of one run; None if either is missing or they differ so much that a unit
    must be wrong."""
    measured, predicted = measured_seconds(prediction.row), prediction.step_seconds
    ratio = measured / predicted if measured and predicted else None
    return ratio if ratio is not None and 1 / _ANOTHER_UNIT < ratio < _ANOTHER_UNIT else None


def _as_anchor(prediction: Prediction) -> Prediction:
    return Prediction(row=prediction.row, case=prediction.case, skipped=IS_ANCHOR, anchor=True)


def _calibration(anchors: Sequence[Prediction]) -> Callable[[Prediction], Prediction]:
    """Return a function that predicts a step time again with constants moved by the `anchors`, and scales it
    as they imply."""
    cases = [one.case for one in anchors if one.case is not None]
    constants = _constants_of([case.question.hardware for case in cases])
    around = [_around(one, constants) for one in anchors]
    errors = np.array([error for error, _ in around])
    slopes = np.array([slope for _, slope in around]).reshape(len(errors), len(constants))
    covariance = covariance_of(cases[0].question.hardware, constants) if cases else np.zeros((0, 0))
    offset = offset_of(errors, slopes, covariance, known_runs=_known_runs(cases))
    factors = dict(zip(constants, np.exp(offset.constants).tolist(), strict=True))
    profiles: dict[str, HardwareProfile] = {}

    def calibrated(prediction: Prediction) -> Prediction:
        if prediction.step_seconds is None:
            return prediction
        if prediction.case is not None:
            hardware = prediction.case.question.hardware
            if hardware.name not in profiles:
                profiles[hardware.name] = scale_constants(hardware, factors)
            prediction = _priced(prediction, prediction.case, profiles[hardware.name])
        return _scaled(
            prediction, math.exp(offset.step), _anchor_summary(prediction, profiles, len(anchors), offset)
        )

    return calibrated


def _known_runs(cases: Sequence[Case]) -> int:
    """Number of runs of the cases' source among the runs that their hardware profiles were fitted to."""
    sources = {case.row.source for case in cases}
    fitted = {case.question.hardware.name: case.question.hardware.timed for case in cases}
    return sum(one.runs for timed in fitted.values() for one in timed if one.source in sources)


def _constants_of(profiles: Sequence[HardwareProfile]) -> tuple[str, ...]:
    """Names of the fitted constants that are above zero in all the profiles; a factor cannot move a zero."""
    return tuple(name for name in CONSTANTS if profiles and all(getattr(one, name) > 0 for one in profiles))


def _around(prediction: Prediction, constants: Sequence[str]) -> tuple[float, Array]:
    """Log of predicted / measured step time of an anchor, and (C,) derivatives by the constants' logarithms;
    zeros without a case."""
    if prediction.case is None:
        ratio = _ratio(prediction)
        assert ratio is not None
        return -math.log(ratio), np.zeros(len(constants))
    cases = TimedCases(prediction.case.question.hardware, [prediction.case], constants)
    errors, slopes = cases.logarithms
    return float(errors[0]), slopes[0]


def _anchor_summary(
    prediction: Prediction, profiles: dict[str, HardwareProfile], anchors: int, offset: Offset
) -> str:
    """Text that lists the factors by which the anchors moved the profile's constants and the step time."""
    changes = []
    if prediction.case is not None:
        old = prediction.case.question.hardware
        new = profiles[old.name]
        ratios = {
            name: getattr(new, name) / getattr(old, name) for name in CONSTANTS if getattr(old, name) > 0
        }
        changes = [
            f"{name} × {ratio:.2f}" for name, ratio in ratios.items() if abs(ratio - 1) > _WORTH_NAMING
        ]
    if abs(offset.step) > _WORTH_NAMING:
        changes.append(f"step time × {math.exp(offset.step):.3f}")
    return f"{anchors} anchors of its sweep: {', '.join(changes) or 'nothing moved'}"


def _priced(prediction: Prediction, case: Case, profile: HardwareProfile) -> Prediction:
    """Prediction with the step time computed again under another hardware profile; the memory figures stay."""
    priced = estimate(replace(case.question, hardware=profile), case.layout)
    return replace(prediction, step_seconds=priced.step_seconds, parts=dict(priced.time))


def _scaled(prediction: Prediction, factor: float, summary: str) -> Prediction:
    """Prediction with the step seconds and each part multiplied by `factor`, and `summary` added to the
    assumptions."""
    assert prediction.step_seconds is not None
    return replace(
        prediction,
        step_seconds=factor * prediction.step_seconds,
        parts={part: factor * seconds for part, seconds in prediction.parts.items()},
        assumptions=(*prediction.assumptions, summary),
    )
