"""Predicted against published step times: every fitted profile has the error it claims, on the runs it claims."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.files import catalog
from cost_models.measured.calibration.profile_fits import ANY, is_fitted, pair_of
from cost_models.measured.runs.cases import Case, timed_cases
from cost_models.measured.validation.step_times import StepTimes
from cost_models.pipeline.pricing import estimate

FITTED = [
    name
    for name in catalog.names("profiles")
    if catalog.load_profile(name).tier == "profile" and catalog.load_profile(name).borrowed_from is None
]


def runs_of(profile: str) -> list[Case]:
    """What the profile was fitted to: the shipped runs of its die and stack that move constants."""
    fitted = catalog.load_profile(profile)
    trusted = [case for case in timed_cases() if is_fitted(case)]
    pairs = {(fitted.gpu, fitted.stack)} if fitted.stack != ANY else {pair_of(case) for case in trusted}
    return [case for case in trusted if pair_of(case) in pairs and pair_of(case)[0] == fitted.gpu]


@pytest.mark.parametrize("profile", FITTED)
def test_a_profile_claims_the_median_error_it_has(profile: str) -> None:
    claimed = catalog.load_profile(profile)
    runs = runs_of(profile)
    measured = np.array([case.row.step_seconds for case in runs], dtype=np.float64)
    errors = StepTimes(runs).seconds(claimed) / measured - 1
    assert len(errors) == claimed.validated_runs
    assert float(np.median(np.abs(errors))) == pytest.approx(claimed.median_error, abs=0.0005)


def test_every_published_run_is_predicted_by_a_fitted_profile() -> None:
    assert {case.question.hardware.tier for case in timed_cases()} == {"profile"}


def test_prices_of_many_runs_at_once_are_those_of_each() -> None:
    some = timed_cases()[::40]
    together = {case.row.row_id: StepTimes([case]).seconds(case.question.hardware)[0] for case in some}
    for case in some:
        assert together[case.row.row_id] == pytest.approx(
            estimate(case.question, case.layout).step_seconds, rel=1e-12
        )
