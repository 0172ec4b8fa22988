"""Anchors calibrate the rest of their sweep and are no longer predictions."""

from __future__ import annotations

import pytest

from cost_models.validation.anchors import anchor, spread_positions
from cost_models.validation.predicting import Prediction
from cost_models.validation.rows import Row
from cost_models.validation.scores import score


def prediction(number: int, measured: float | None, predicted: float, *, gpu: str = "A100") -> Prediction:
    cells = {"row_id": f"{number:04}", "source_id": "lab", "framework": "fsdp", "gpu": gpu}
    if measured is not None:
        cells["step_time_best_s"] = str(measured)
    parts = {"compute": 0.75 * predicted, "bubble": 0.25 * predicted}
    return Prediction(row=Row(cells), step_seconds=predicted, fits=True, parts=parts)


@pytest.mark.parametrize(
    ("count", "wanted", "positions"),
    [(7, 3, [0, 3, 6]), (6, 3, [0, 3, 5]), (5, 1, [2]), (9, 2, [0, 8]), (10, 4, [0, 3, 6, 9])],
)
def test_anchors_are_spread(count: int, wanted: int, positions: list[int]) -> None:
    assert list(spread_positions(count, wanted)) == positions


def test_a_sweep_that_is_half_as_fast_comes_out_right() -> None:
    rows = anchor([prediction(n, 2.0 + 2 * n, 1.0 + n) for n in range(5)], 3)
    assert [row.anchor for row in rows] == [True, False, True, False, True]
    for row in (rows[1], rows[3]):
        assert row.step_seconds == pytest.approx(float(row.row.text("step_time_best_s")))
        assert sum(row.parts.values()) == pytest.approx(row.step_seconds)
        assert "3 anchors" in row.assumptions[-1]
    (source,) = score(rows)
    assert (source.rows, source.predicted, source.skipped) == (5, 2, 3)


def test_one_wrong_anchor_moves_nothing() -> None:
    measured = [2.0, 4.0, 60.0, 8.0, 10.0]
    rows = anchor([prediction(n, m, 1.0 + n) for n, m in enumerate(measured)], 3)
    assert rows[1].step_seconds == pytest.approx(4.0)


def test_rows_without_a_time_are_calibrated_but_never_anchors() -> None:
    rows = anchor([prediction(0, None, 1.0), *(prediction(n, 2.0, 1.0) for n in range(1, 5))], 3)
    assert not rows[0].anchor
    assert rows[0].step_seconds == pytest.approx(2.0)


def test_sweeps_of_another_gpu_or_with_too_few_rows_keep_their_predictions() -> None:
    few = [prediction(n, 2.0, 1.0, gpu="H100") for n in range(5, 8)]
    rows = anchor([*(prediction(n, 2.0, 1.0) for n in range(5)), *few], 3)
    assert [row.step_seconds for row in rows[5:]] == [1.0, 1.0, 1.0]
    assert anchor(few, 0) == tuple(few)
