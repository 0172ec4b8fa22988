"""Expected steps, and the chances that they are drawn from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asking import ask
from hypothesis import assume, given
from hypothesis import strategies as st

from cost_models.axes.layout import parse_layout
from cost_models.compute.gemm import device_of
from cost_models.estimate import Estimate
from cost_models.expected import (
    FEATURES,
    MOST_MFU,
    ExpectedStep,
    expected_step,
    features_of,
    labels_of,
    shipped_constants,
    spread_of,
    timed_rows,
)
from cost_models.measured.calibration.step_time_fit import measured_seconds
from cost_models.measured.runs.cases import read_case, shipped_rows
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Prediction
from cost_models.measured.validation.scores import brier_scores, chance_ranges
from cost_models.pipeline.pricing import estimate, seconds_under_scenarios, trust_of
from cost_models.question import Question
from cost_models.risk import confident_share, fits_probability, least_chance, peak_errors

TIMED = "tp4 pp4 vpp5 cp2 dp2 mbs1 zero1 sp"
"""What NVIDIA ran Llama 3.1 70B with on 64 H100 (dgxc-0013 and two later releases)."""


def priced(cluster: str, layout: str) -> tuple[Question, Estimate]:
    asked = ask("llama3-70b", cluster, 64, global_batch=128, sequence_length=8192)
    return asked, estimate(asked, parse_layout(layout))


def expected(cluster: str, layout: str) -> ExpectedStep:
    found = expected_step(*priced(cluster, layout))
    assert found is not None
    return found


def test_runs_of_the_same_question_are_named_and_narrow_it() -> None:
    found = expected("dgx-h100", TIMED)
    near = found.nearest
    assert (near.source, near.runs, near.differs) == ("dgxc", 3, ())
    assert (near.least_seconds, near.most_seconds) == (14.61, 14.72)
    assert found.low < 14.61 < 14.72 < found.high
    assert found.high / found.low < 1.35


def test_another_layout_says_in_what_it_differs() -> None:
    near = expected("dgx-h100", TIMED.replace("vpp5", "vpp4")).nearest
    assert near.differs == ("vpp",)


def test_a_borrowed_profile_widens_the_interval_and_has_an_error_of_its_own() -> None:
    own, other = expected("dgx-h100", TIMED), expected("ec2-g6e", TIMED)
    assert not own.borrowed
    assert other.borrowed
    assert other.high / other.low > 1.1 * own.high / own.low
    trust = priced("ec2-g6e", TIMED)[1].trust
    assert trust.borrowed == "h100-sxm"
    assert trust.error == shipped_constants()[2]["borrowed_error"] > 0.05
    assert "borrowed from h100-sxm" in str(trust)


def test_no_interval_reaches_above_eighty_percent_mfu() -> None:
    question, own = priced("dgx-h100", TIMED)
    fast = expected_step(question, replace(own, mfu=0.78))
    assert own.step_seconds * 0.78 / fast.low <= MOST_MFU + 1e-9
    assert fast.low <= fast.seconds <= fast.high


def test_draws_end_where_the_interval_does() -> None:
    found = expected("dgx-h100", TIMED)
    ends = found.sample_steps(np.array([-1.6448536, 0.0, 1.6448536]))
    assert ends == pytest.approx([found.low, found.seconds, found.high], rel=1e-6)


@pytest.mark.parametrize("run", ["dgxc-0013", "llm_foundry-0201", "vtrain_multi-0001", "simumax_b200-0001"])
def test_the_table_of_rows_is_that_of_the_shipped_profiles(run: str) -> None:
    """`python benchmarks/fit_errors.py --rows` writes it again where predictions move."""
    rows, errors = timed_rows()
    (place,) = [at for at, told in enumerate(rows["run"]) if told["run"] == run]
    case = read_case(next(row for row in shipped_rows() if row.row_id == run))
    seconds = estimate(case.question, case.layout).step_seconds
    features, under = (
        features_of(case.question, case.layout),
        seconds_under_scenarios(case.question, case.layout),
    )
    assert under is not None
    assert errors[place] == pytest.approx(math.log(measured_seconds(case) / seconds), abs=2e-3)
    assert rows["spread"][place] == pytest.approx(spread_of(under, seconds), rel=0.02)
    assert {name: rows[name][place] for name in FEATURES} == pytest.approx(features, abs=1e-4)
    labels = labels_of(case.question)
    assert {name: rows[name][place] for name in labels} == labels


def test_the_nearest_of_a_sure_question_is_like_it() -> None:
    """Where the model is surer than publishers agree no run shares anything, and the first of the table was nearest."""
    asked = ask("gpt3-175b", "dgx-a100-80gb", 1024, global_batch=1536, sequence_length=2048)
    found = expected_step(asked, estimate(asked, parse_layout("tp8 pp8 vpp12 dp16 mbs3 zero1 sp")))
    assert (found.nearest.gpu, "175B" in found.nearest.model) == ("a100-sxm-80gb", True)


AMD = {"mi300x": "mi300x", "mi325x": "mi300x", "mi355x": "mi355x", "frontier": "mi250x-gcd"}
"""Cluster → the GPU whose profile prices it."""


def llama_on(cluster: str, stack: str) -> Question:
    return ask("llama3-8b", cluster, 16, stack=stack, global_batch=128, sequence_length=4096)


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan", "deepspeed", "jax", "meshwright"])
@pytest.mark.parametrize("cluster", AMD)
def test_every_amd_cluster_has_a_profile_of_its_own(cluster: str, stack: str) -> None:
    trust = trust_of(llama_on(cluster, stack))
    assert trust.profile.startswith(AMD[cluster])
    assert trust.borrowed == "h100-sxm"
    assert "constants of h100-sxm x ratios of published tests" in str(trust)


def test_memory_and_links_reach_what_tests_do_relative_to_h100() -> None:
    """BabelStream's triad: 4.09 TB/s and 2.97 TB/s (Azure AI benchmarking guide)."""
    h100, mi300x = (device_of(llama_on(name, "megatron-core")) for name in ("dgx-h100", "mi300x"))
    assert mi300x.memory_rate / h100.memory_rate == pytest.approx(4.09 / 2.97, rel=1e-3)


ERROR = 0.1


def test_it_is_the_share_of_measured_peaks_below_the_limit() -> None:
    """Of 100,000 peaks drawn around the predicted one, outliers among them."""
    rng, told = np.random.default_rng(0), peak_errors()
    normal, kind = rng.standard_normal(100_000), rng.random(100_000)
    off = told.core * np.log(1.1) / 1.645 * normal
    off = np.where(kind < told.below_share, -told.below_reach * np.abs(normal), off)
    off = np.where(kind > 1 - told.above_share, told.above_reach * np.abs(normal), off)
    drawn = 90.0 * np.exp(off)
    assert fits_probability(90.0, 100.0, ERROR) == pytest.approx((drawn <= 100.0).mean(), abs=0.005)


@pytest.mark.parametrize("confidence", [0.6, 0.8, 0.95, 0.99])
def test_a_peak_at_the_confident_limit_fits_with_that_confidence(confidence: float) -> None:
    assert fits_probability(confident_share(confidence, ERROR), 1.0, ERROR) == pytest.approx(confidence)


@given(
    room=st.floats(-0.1, 0.5),
    error=st.floats(0.01, 0.5),
    confidence=st.sampled_from([0.5, 0.54, 0.56, 0.7, 0.9, 0.99]),
)
def test_a_share_says_what_a_chance_says(room: float, error: float, confidence: float) -> None:
    """One rule, in bytes and in words; closer than a rounding either may be said."""
    share = confident_share(confidence, error)
    assume(abs(np.exp(-room) / share - 1) > 1e-9)
    chance = fits_probability(np.exp(-room), 1.0, error)
    assert (np.exp(-room) <= share) == (chance >= least_chance(confidence))


def test_chances_are_held_against_what_ran() -> None:
    """Two runs at 90 % of which one ran, one at 100 %, and one that nobody knows of."""

    def prediction(chance: float, **measured: Any) -> Prediction:
        return Prediction(row=Row(row_id="a", source_id="b", **measured), fits_probability=chance)

    told = [
        prediction(0.9, out_of_memory=True),
        prediction(0.9, step_seconds=1.0),
        prediction(1.0, peak_gb=1.0),
        prediction(0.1),
    ]
    found = chance_ranges(told)
    assert [(one.least, one.most, one.runs, one.ran_share) for one in found] == [
        (0.9, 0.95, 2, 0.5),
        (0.98, 1.0, 1, 1.0),
    ]
    assert found[0].fits_probability == pytest.approx(0.9)
    assert brier_scores(told) == pytest.approx(((0.81 + 0.01) / 3, 2 / 9))
    assert brier_scores(told[-1:]) is None


def test_mixtures_have_an_error_of_their_own() -> None:
    dense, mixture = (
        ask(name, "dgx-h100", 8, stack="megatron-core", global_batch=64, sequence_length=4096)
        for name in ("llama2-7b", "mixtral-8x7b")
    )
    assert dense.memory_error == dense.stack.memory_error
    assert mixture.memory_error == mixture.stack.mixture_memory_error
