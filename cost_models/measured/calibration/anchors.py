"""Anchors: K timed rows of a sweep, as a user has them in old logs, calibrate the predictions of its other rows.

A sweep here is the rows of one source, framework and GPU: what is unknown about them (clocks, fabric, versions) is the
same for all, and a few rows tell most of it. They give one factor on the sweep's steps and move the profile's
constants, all pulled back to where they were, so that one odd row moves little (`offset`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from cost_models.arrays import Array, group_by
from cost_models.measured.calibration.few_runs import covariance_of, offset_of
from cost_models.measured.calibration.step_time_fit import CONSTANTS, TimedCases, ignore
from cost_models.measured.validation.predictions import Prediction
from cost_models.measured.validation.scores import measured_seconds
from cost_models.pipeline.pricing import estimate
from cost_models.specs.hardware import HardwareProfile

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
        timed = [i for i in indices if _ratio(ordered[i]) is not None]
        timed.sort(key=lambda i: ordered[i].row.row_id)
        if 0 < anchors < len(timed):
            anchor_indices = {timed[position] for position in spread_positions(len(timed), anchors)}
            calibrated = _calibration([ordered[i] for i in sorted(anchor_indices)])
            for i in indices:
                run = ordered[i]
                ordered[i] = Prediction(row=run.row, case=run.case, skipped=IS_ANCHOR, anchor=True)
                if i not in anchor_indices:
                    ordered[i] = calibrated(run)
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
        np.array([slope for _, slope in around]).reshape(len(around), len(constants)),
        covariance_of(cases[0].question.hardware, constants) if cases else np.zeros((0, 0)),
        known_runs=sum(runs.runs for one in starts for runs in one.timed if runs.source in sources),
    )
    step_factor = math.exp(offset.step)
    profiles: dict[str, HardwareProfile] = {}

    def calibrated(prediction: Prediction) -> Prediction:
        if prediction.step_seconds is None:
            return prediction
        seconds, parts, changes = prediction.step_seconds, prediction.parts, list[str]()
        if prediction.case is not None:
            old = prediction.case.question.hardware
            if old.name not in profiles:
                profiles[old.name] = offset.moved(old, constants)
            new = profiles[old.name]
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
    """Log of predicted / measured step time of an anchor, and (C,) derivatives by the constants' logarithms;
    zeros without a case."""
    if prediction.case is None:
        ratio = _ratio(prediction)
        assert ratio is not None
        return -math.log(ratio), np.zeros(len(constants))
    errors, slopes = TimedCases(prediction.case.question.hardware, [prediction.case], constants).logarithms
    return float(errors[0]), slopes[0]
