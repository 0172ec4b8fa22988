"""Anchors: K timed rows of a sweep, as a user has them in old logs, calibrate the predictions of its other rows.

A sweep here is the rows of one source, framework and GPU: what is unknown about them (clocks, fabric, versions) is the
same for all, and a few rows tell most of it. They move the few constants of the profile that differ most between
clusters, each pulled back to its value, so that one odd row moves little.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from cost_models.evidence.calibration.step_time_fit import WEIGHT_ON_ONE_CLUSTER, fit_step_times
from cost_models.evidence.rows.cases import Case
from cost_models.evidence.rows.row import Row
from cost_models.evidence.validation.predicting import Prediction
from cost_models.evidence.validation.scores import measured_seconds
from cost_models.pipeline.estimating import estimate
from cost_models.specs.hardware import HardwareProfile

IS_ANCHOR = "an anchor: its measured step time calibrates the rest of its sweep"
"""Why an anchor's row has no prediction."""
ANCHORED_CONSTANTS = (
    "gemm_efficiency",
    "memory_efficiency",
    "network_efficiency",
    "link_efficiency",
    "host_layer_seconds",
    "step_seconds",
)
"""Constants that clocks, fabric and host decide; those of kernels and schedules are the stack's."""
_WORTH_NAMING = 0.005
_ANOTHER_UNIT = 500.0
"""Factor beyond which a time must be in another unit (milliseconds, hours) or mistyped, and calibrates nothing."""


def anchor(
    predictions: Iterable[Prediction],
    anchors: int,
    *,
    on_sweep: Callable[[int, int], None] | None = None,
) -> tuple[Prediction, ...]:
    """The predictions in their order, with those of each sweep calibrated on `anchors` of its timed rows.

    Anchors no longer have predictions. A sweep without more timed rows than anchors keeps its predictions. `on_sweep`
    is called with the number of sweeps that are done and of all.
    """
    ordered = list(predictions)
    sweeps: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, one in enumerate(ordered):
        sweeps[_sweep_of(one.row)].append(index)
    for done, indices in enumerate(sweeps.values(), start=1):
        timed = [i for i in indices if _ratio(ordered[i]) is not None]
        timed.sort(key=lambda i: ordered[i].row.row_id)
        if 0 < anchors < len(timed):
            chosen = {timed[position] for position in spread_positions(len(timed), anchors)}
            calibrated = _calibration([ordered[i] for i in sorted(chosen)])
            for i in indices:
                ordered[i] = _as_anchor(ordered[i]) if i in chosen else calibrated(ordered[i])
        if on_sweep is not None:
            on_sweep(done, len(sweeps))
    return tuple(ordered)


def spread_positions(count: int, wanted: int) -> Sequence[int]:
    """`wanted` of `count` positions, evenly spaced from the first to the last; of one, the middle.

    Three of seven: 0, 3, 6.
    """
    if wanted == 1:
        return (count // 2,)
    return tuple(-(-position * (count - 1) // (wanted - 1)) for position in range(wanted))


def _sweep_of(row: Row) -> tuple[str, ...]:
    return tuple(row.text(column) for column in ("source_id", "framework", "gpu"))


def _ratio(prediction: Prediction) -> float | None:
    """Measured / predicted step time; None where either is missing or the row must be in another unit."""
    measured, predicted = measured_seconds(prediction.row), prediction.step_seconds
    ratio = measured / predicted if measured and predicted else None
    return ratio if ratio is not None and 1 / _ANOTHER_UNIT < ratio < _ANOTHER_UNIT else None


def _as_anchor(prediction: Prediction) -> Prediction:
    return Prediction(row=prediction.row, case=prediction.case, skipped=IS_ANCHOR, anchor=True)


def _calibration(anchors: Sequence[Prediction]) -> Callable[[Prediction], Prediction]:
    """How anchors correct a prediction: priced again under a profile fitted to them, else scaled by their median."""
    factor = statistics.median(ratio for one in anchors if (ratio := _ratio(one)) is not None)
    cases: dict[str, list[Case]] = defaultdict(list)
    for one in anchors:
        if one.case is not None:
            cases[one.case.question.hardware.name].append(one.case)
    profiles = {name: _fitted(some) for name, some in cases.items()}

    def calibrated(prediction: Prediction) -> Prediction:
        if prediction.step_seconds is None:
            return prediction
        if prediction.case is not None and prediction.case.question.hardware.name in profiles:
            profile = profiles[prediction.case.question.hardware.name]
            return _priced(prediction, prediction.case, profile, len(anchors))
        return _scaled(prediction, factor, len(anchors))

    return calibrated


def _fitted(cases: Sequence[Case]) -> HardwareProfile:
    """The cases' profile with the anchored constants fitted to them."""
    start = cases[0].question.hardware
    constants = [name for name in ANCHORED_CONSTANTS if getattr(start, name) > 0]
    return fit_step_times(start, cases, constants, weight_of_a_run=WEIGHT_ON_ONE_CLUSTER).profile


def _priced(prediction: Prediction, case: Case, profile: HardwareProfile, anchors: int) -> Prediction:
    """The prediction priced again under the fitted profile; its memory stays."""
    priced = estimate(replace(case.question, hardware=profile), case.layout)
    moved = [
        f"{name} × {ratio:.2f}"
        for name in ANCHORED_CONSTANTS
        if (before := getattr(case.question.hardware, name)) > 0
        and abs((ratio := getattr(profile, name) / before) - 1) > _WORTH_NAMING
    ]
    told = f"{anchors} anchors of its sweep: {', '.join(moved) or 'no constant moved'}"
    return replace(
        prediction,
        step_seconds=priced.step_seconds,
        parts=dict(priced.time),
        assumptions=(*prediction.assumptions, told),
    )


def _scaled(prediction: Prediction, factor: float, anchors: int) -> Prediction:
    """The prediction with its step, and every part of it, multiplied by `factor`."""
    assert prediction.step_seconds is not None
    return replace(
        prediction,
        step_seconds=factor * prediction.step_seconds,
        parts={part: factor * seconds for part, seconds in prediction.parts.items()},
        assumptions=(*prediction.assumptions, f"{anchors} anchors of its sweep: step time × {factor:.3f}"),
    )
