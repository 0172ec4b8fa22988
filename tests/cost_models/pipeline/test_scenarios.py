"""Scenarios: constants that runs leave possible, with the covariance that sources show."""

from __future__ import annotations

import numpy as np
import pytest
from asking import ask, change

from cost_models.axes.layout import parse_layout
from cost_models.errors import InputError
from cost_models.measured.calibration.step_time_fit import COUNT, prior_widths, scenarios_of
from cost_models.pipeline.pricing import estimate, seconds_under_scenarios, step_interval
from cost_models.question import Question
from cost_models.specs.hardware import Scenarios

NAMES = ("gemm_efficiency", "memory_efficiency", "link_efficiency")
WIDTHS = prior_widths(NAMES)


@pytest.fixture(scope="module")
def question() -> Question:
    return ask("llama2-7b", "dgx-a100-80gb", 8, global_batch=64, sequence_length=4096)


def logs(told: Scenarios) -> np.ndarray:
    return np.log(np.array(list(told.by_constant.values())))


def test_their_mean_is_zero_and_their_covariance_is_what_is_known() -> None:
    covariance = np.array([[0.04, 0.01, 0.0], [0.01, 0.09, 0.0], [0.0, 0.0, 0.01]])
    flat = np.zeros((5, 3))  # runs that say nothing: sources differ by the pulls
    told = scenarios_of(NAMES, covariance, flat, np.full(5, 0.1), ["a"] * 5)
    drawn = logs(told)
    assert drawn.shape == (3, COUNT)
    assert drawn.mean(axis=1) == pytest.approx(np.zeros(3), abs=1e-3)
    assert drawn @ drawn.T / COUNT == pytest.approx(covariance + np.diag(WIDTHS**2), abs=1e-3)


def test_constants_that_differ_between_sources_are_less_sure() -> None:
    """Two constants of which the sources' errors show that one differs by 30 % and the other not at all."""
    rng = np.random.default_rng(3)
    slopes = rng.normal(size=(400, 3))
    sources = [str(row % 8) for row in range(400)]
    shift = {source: 0.3 * (-1) ** int(source) for source in set(sources)}
    errors = np.array([-shift[source] * slope[0] for source, slope in zip(sources, slopes, strict=True)])
    told = scenarios_of(NAMES, 1e-6 * np.eye(3), slopes, errors, sources)
    spread = logs(told).std(axis=1)
    assert spread[0] == pytest.approx(0.3, rel=0.1)
    assert max(spread[1:]) < 0.1
    assert told.unexplained < 0.02


def test_each_scenario_is_priced_as_a_profile_of_its_own(question: Question) -> None:
    told = question.hardware.scenarios
    assert told is not None
    layout = parse_layout("tp2 pp1 dp4 mbs1 zero1 sp")
    found = seconds_under_scenarios(question, layout)
    assert found is not None
    for place in (0, 5):
        values = {
            name: getattr(question.hardware, name) * own[place] for name, own in told.by_constant.items()
        }
        alone = estimate(change(question, hardware=values), layout).step_seconds
        assert found[place] == pytest.approx(alone)


def test_an_interval_holds_the_prediction_and_grows_with_its_share(question: Question) -> None:
    layout = parse_layout("dp8 mbs1 zero1")
    seconds = estimate(question, layout).step_seconds
    narrow, wide = (step_interval(question, layout, seconds, share) for share in (0.5, 0.9))
    assert narrow is not None
    assert wide is not None
    assert wide[0] < narrow[0] < seconds < narrow[1] < wide[1] < 2 * seconds


def test_scenarios_of_a_file_are_checked() -> None:
    uneven = {"gemm_efficiency": "1", "link_efficiency": "1 1"}
    for factors in ({}, {"gemm": "1 1"}, {"gemm_efficiency": "1 x"}, uneven):
        with pytest.raises(InputError):
            Scenarios(factors=factors, unexplained=0.1)
