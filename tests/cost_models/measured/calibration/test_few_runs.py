"""A profile moved by a few runs: no further than they agree, and never far on the word of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from cost_models.files import catalog
from cost_models.measured.calibration.profile_fits import refit
from cost_models.measured.calibration.step_time_fit import (
    MAX_FEW_RUNS,
    fit_step_times,
    offset_of,
    prior_covariance,
    prior_widths,
)
from cost_models.measured.runs.cases import Case, timed_cases
from cost_models.measured.validation.step_times import StepTimes
from cost_models.specs.hardware import HardwareProfile

NAMES = ("gemm_efficiency", "memory_efficiency")


@pytest.fixture(scope="module")
def start() -> HardwareProfile:
    return catalog.load_profile("a100-megatron-2021")


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    """Layouts of published runs, as if of a source that no profile has seen."""
    return tuple(
        replace(case, row=case.row.model_copy(update={"source_id": "mine"}))
        for case in timed_cases()
        if case.row.source_id == "megatron_sc21" and case.question.stack.name == "megatron-2021"
    )[:12]


def as_timed(cases: Sequence[Case], profile: HardwareProfile, noise: Sequence[float]) -> list[Case]:
    """The cases as a cluster of such constants would have timed them."""
    seconds = StepTimes(cases).seconds(profile) * np.exp(noise)
    return [
        replace(case, row=case.row.model_copy(update={"step_seconds": float(one)}))
        for case, one in zip(cases, seconds, strict=True)
    ]


def error_on(cases: Sequence[Case], profile: HardwareProfile) -> float:
    measured = np.array([case.row.step_seconds for case in cases])
    return float(np.median(np.abs(StepTimes(cases).seconds(profile) / measured - 1)))


def test_three_runs_that_agree_are_learned_from(start: HardwareProfile, cases: Sequence[Case]) -> None:
    """Of a cluster whose products are 15 % slower, what is said of its other layouts is less wrong by a third."""
    slow = start.model_copy(update={"gemm_efficiency": 0.85 * start.gemm_efficiency})
    timed = as_timed(cases, slow, np.random.default_rng(0).normal(scale=0.01, size=len(cases)))
    fit = fit_step_times(start, timed[:3], of_one_cluster=True)
    assert error_on(timed[3:], fit.profile) < 0.67 * error_on(timed[3:], start)
    gemm = fit.constants["gemm_efficiency"]
    assert gemm.low < gemm.value < gemm.high
    assert 0 < gemm.determined < 1
    assert len(fit.residuals) == 3
    assert fit.profile.scenarios == start.scenarios
    assert [runs.source for runs in fit.profile.timed] == [*(runs.source for runs in start.timed), "mine"]


@pytest.mark.parametrize("given", [1, 3, 5])
def test_an_odd_run_spoils_nothing(start: HardwareProfile, cases: Sequence[Case], given: int) -> None:
    """One run that took half as long again, first among runs that took what was predicted."""
    timed = as_timed(cases, start, [0.4, *np.zeros(len(cases) - 1)])
    assert error_on(timed[given:], fit_step_times(start, timed[:given], of_one_cluster=True).profile) < 0.02


def test_calibrating_takes_the_careful_way_with_few_runs_of_one_source(cases: Sequence[Case]) -> None:
    pair = ("a100-sxm-80gb", "megatron-2021")
    few = refit(pair, cases[:3])
    alone = fit_step_times(few.start, cases[:3], of_one_cluster=True).profile
    assert few.profile.gemm_efficiency == alone.gemm_efficiency
    assert len(cases) > MAX_FEW_RUNS
    assert refit(pair, cases).profile.gemm_efficiency != few.profile.gemm_efficiency


def test_constants_are_unsure_as_the_scenarios_say(start: HardwareProfile) -> None:
    assert start.scenarios is not None
    logs = np.log([start.scenarios.by_constant[name] for name in NAMES])
    assert prior_covariance(start, NAMES) == pytest.approx(np.cov(logs, bias=True))
    bare = start.model_copy(update={"scenarios": None})
    assert prior_covariance(bare, NAMES) == pytest.approx(np.diag(prior_widths(NAMES) ** 2))


def test_rows_that_disagree_are_not_believed_in_full() -> None:
    """Of a cluster without constants: the word of one row far off, of two that differ, of three alike."""
    bare, nothing = np.zeros((0, 0)), np.zeros((3, 0))

    def step(*errors: float) -> float:
        return float(offset_of(np.array(errors), nothing[: len(errors)], bare).mean[0])

    assert step() == 0
    assert abs(step(0.5)) < 0.1
    assert abs(step(0.5, -0.3)) < 0.1
    assert step(0.5, 0.5, 0.5) == pytest.approx(-0.5, abs=0.01)
    assert step(0.03, 0.03, 0.03) == pytest.approx(-0.03, abs=0.01)


def test_many_rows_are_followed_as_few_are() -> None:
    """Forty rows, a third of them odd, have more combinations than are followed, and say the same."""
    draw = np.random.default_rng(1)
    errors = (
        -0.05 + 0.01 * draw.standard_normal(40) + (np.arange(40) % 3 == 0) * draw.normal(scale=0.5, size=40)
    )
    found = offset_of(errors, np.zeros((40, 0)), np.zeros((0, 0)))
    assert found.mean[0] == pytest.approx(0.05, abs=0.01)
