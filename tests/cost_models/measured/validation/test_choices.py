"""Choices within sweeps: the recommended row against the one predicted fastest, and intervals of ratios."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from cost_models.measured.runs.cases import shipped_rows
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import choice_scores, sweep_of


@pytest.fixture(scope="module")
def predictions() -> list[Prediction]:
    timed = [row for row in shipped_rows() if row.source_id == "bloom_prequel" and row.step_seconds]
    return [one for one in predict(timed[:60]) if one.step_seconds]


def measured_as(one: Prediction, seconds: float) -> Prediction:
    return replace(one, row=one.row.model_copy(update={"step_seconds": seconds}))


def test_a_model_without_error_has_no_regret_and_covers_all(predictions: list[Prediction]) -> None:
    (found,) = choice_scores([measured_as(one, one.step_seconds or 1.0) for one in predictions])
    assert found.covered == 1.0
    assert set(found.point) == {0.0}
    assert max(found.recommended) < 0.1


def test_what_a_whole_sweep_is_off_by_is_no_error_of_a_choice(predictions: list[Prediction]) -> None:
    (found,) = choice_scores([measured_as(one, 3 * (one.step_seconds or 1.0)) for one in predictions])
    assert found.covered == 1.0
    assert set(found.point) == {0.0}


def test_ratios_far_off_are_not_covered(predictions: list[Prediction]) -> None:
    sweep = Counter(sweep_of(one.row) for one in predictions).most_common(1)[0][0]
    rows = [one for one in predictions if sweep_of(one.row) == sweep]
    far = [measured_as(one, (one.step_seconds or 1.0) * 10**place) for place, one in enumerate(rows)]
    (found,) = choice_scores(far)
    assert found.covered == 0.0


def test_runs_of_one_layout_are_one_choice(predictions: list[Prediction]) -> None:
    """A slow repetition of the layout predicted fastest is no regret of having chosen it."""
    sweep = Counter(sweep_of(one.row) for one in predictions).most_common(1)[0][0]
    rows = [measured_as(one, one.step_seconds or 1.0) for one in predictions if sweep_of(one.row) == sweep]
    fastest = min(rows, key=lambda one: one.step_seconds or 0.0)
    again = [measured_as(fastest, factor * (fastest.step_seconds or 1.0)) for factor in (1.0, 1.3)]
    (found,) = choice_scores([*again, *rows])
    assert set(found.point) == {0.0}
