"""What a few rows of a sweep are worth: how well the others are predicted with them, beside without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from cost_models.measured.calibration.profile_fits import anchor, spread_positions
from cost_models.measured.calibration.step_time_fit import errors_of, fit_step_times, measured_seconds, under
from cost_models.measured.runs.cases import Case
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Prediction
from cost_models.measured.validation.scores import step_error

Sizes = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Source → sizes of the errors of its other rows, without and with the few."""


def anchored(cases: Sequence[Case], given: int) -> Sizes:
    """`validate --anchors`."""
    sizes: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    plain = [
        Prediction(row=case.row, case=case, step_seconds=measured_seconds(case) * (1 + error))
        for case, error in zip(cases, errors_of(cases).tolist(), strict=True)
    ]
    calibrated_ones = anchor(plain, given)
    enough = {_sweep(one.row) for one in calibrated_ones if one.anchor}
    for before, after in zip(plain, calibrated_ones, strict=True):
        errors = step_error(before), step_error(after)
        if _sweep(before.row) in enough and errors[0] is not None and errors[1] is not None:
            for found, error in zip(sizes[before.row.source], errors, strict=True):
                found.append(abs(error))
    return {source: (np.array(before), np.array(after)) for source, (before, after) in sizes.items()}


def calibrated(cases: Sequence[Case], given: int) -> Sizes:
    """`calibrate --from-runs`."""
    sweeps: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for case in cases:
        sweeps[(*_sweep(case.row), case.question.hardware.name)].append(case)
    sizes: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for own in sweeps.values():
        if len(own) <= given:
            continue
        own.sort(key=lambda case: case.row.row_id)
        chosen = set(spread_positions(len(own), given))
        rest = [case for place, case in enumerate(own) if place not in chosen]
        few = [own[place] for place in sorted(chosen)]
        fit = fit_step_times(own[0].question.hardware, few, of_one_cluster=True)
        found = sizes[own[0].row.source]
        found[0].extend(np.abs(errors_of(rest)).tolist())
        found[1].extend(np.abs(errors_of(under(fit.profile, rest))).tolist())
    return {source: (np.array(before), np.array(after)) for source, (before, after) in sizes.items()}


def _sweep(row: Row) -> tuple[str, ...]:
    return tuple(row.text(column) for column in ("source_id", "framework", "gpu"))
