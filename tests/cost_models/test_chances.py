"""P(fits): the error that peaks have shown, against the room left; and the limit that a confidence leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asking import ask
from hypothesis import assume, given
from hypothesis import strategies as st

from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Prediction
from cost_models.measured.validation.scores import brier_scores, chance_ranges
from cost_models.risk import PeakErrors, confident_share, fits_probability, least_chance, peak_errors

ERROR = 0.1


def test_the_core_of_peaks_is_within_the_error_and_outliers_are_anywhere() -> None:
    """No outliers: a normal error. With them a peak of five times the limit may run, and one of a fifth may not."""
    plain = PeakErrors(core=1.0, below_share=0, below_reach=1.0, above_share=0, above_reach=1.0)
    chances = [plain.p_below(np.log(room), ERROR) for room in (1.0, 1.1, 1 / 1.1)]
    assert chances == pytest.approx([0.5, 0.95, 0.05])
    assert fits_probability(500.0, 100.0, ERROR) > 1e-3 > plain.p_below(np.log(0.2), ERROR)
    assert fits_probability(20.0, 100.0, ERROR) < 0.999
    assert fits_probability(0.0, 100.0, ERROR) == 1.0


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
