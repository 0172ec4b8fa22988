"""Anchors calibrate the rest of their sweep and are no longer predictions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from cost_models.measured.calibration.few_runs import anchor, spread_positions
from cost_models.measured.runs.cases import shipped_rows
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import score, step_error


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
        assert row.step_seconds == pytest.approx(float(row.row.text("step_time_best_s")), rel=0.01)
        assert sum(row.parts.values()) == pytest.approx(row.step_seconds)
        assert "3 anchors" in row.assumptions[-1]
    (source,) = score(rows)
    assert (source.rows, source.predicted, source.skipped) == (5, 2, 3)


def test_one_wrong_anchor_moves_nothing() -> None:
    measured = [2.0, 4.0, 60.0, 8.0, 10.0]
    rows = anchor([prediction(n, m, 1.0 + n) for n, m in enumerate(measured)], 3)
    assert rows[1].step_seconds == pytest.approx(4.0, rel=0.02)


def test_rows_without_a_time_are_calibrated_but_never_anchors() -> None:
    rows = anchor([prediction(0, None, 1.0), *(prediction(n, 2.0, 1.0) for n in range(1, 5))], 3)
    assert not rows[0].anchor
    assert rows[0].step_seconds == pytest.approx(2.0, rel=0.01)


def test_sweeps_of_another_gpu_or_with_too_few_rows_keep_their_predictions() -> None:
    few = [prediction(n, 2.0, 1.0, gpu="H100") for n in range(5, 8)]
    rows = anchor([*(prediction(n, 2.0, 1.0) for n in range(5)), *few], 3)
    assert [row.step_seconds for row in rows[5:]] == [1.0, 1.0, 1.0]
    assert anchor(few, 0) == tuple(few)


def runs_on(gemm_efficiency: float, *, odd: int | None = None) -> list[Row]:
    """Nine layouts as a cluster of that efficiency would have timed them; run `odd` took twice as long."""
    cells = {
        "source_id": "lab",
        "framework": "Megatron-LM 2021",
        "gpu": "A100-SXM-80GB",
        "num_gpus": "8",
        "layers": "32",
        "hidden": "4096",
        "heads": "32",
        "vocab": "51200",
        "seq_len": "2048",
        "global_batch": "64",
        "zero_stage": "0",
        "vp": "1",
        "precision": "fp16",
    }
    layouts = [(tp, pp, mbs) for tp in (1, 2, 4) for pp, mbs in ((1, 1), (2, 2), (2, 4))]
    rows = [
        Row(cells | {"row_id": f"{n:04}", "tp": str(tp), "pp": str(pp), "micro_batch": str(mbs)})
        for n, (tp, pp, mbs) in enumerate(layouts)
    ]
    (first,) = predict(rows[:1])
    assert first.case is not None
    slow = first.case.question.hardware.model_copy(update={"gemm_efficiency": gemm_efficiency})
    timed = []
    for number, one in enumerate(predict(rows, profile=slow)):
        assert one.step_seconds is not None
        seconds = one.step_seconds * (2 if number == odd else 1)
        timed.append(Row({**one.row.cells, "step_time_best_s": str(seconds)}))
    return timed


def worst(predictions: list[Prediction] | tuple[Prediction, ...]) -> float:
    return max(abs(error) for one in predictions if (error := step_error(one)) is not None)


def test_a_cluster_with_other_clocks_is_learned_from_three_runs() -> None:
    plain = list(predict(runs_on(0.7)))
    assert worst(plain) > 0.1
    rows = anchor(plain, 3)
    assert worst(rows) < 0.03
    others = [row for row in rows if not row.anchor]
    assert all(sum(row.parts.values()) == pytest.approx(row.step_seconds) for row in others)
    assert all("3 anchors of its sweep: gemm_efficiency × 0" in row.assumptions[-1] for row in others)
    assert [row.peak_bytes for row in others] == [
        one.peak_bytes for one, row in zip(plain, rows, strict=True) if not row.anchor
    ]


def test_one_odd_run_does_not_spoil_the_rest() -> None:
    assert worst(anchor(predict(runs_on(0.7, odd=4)), 5)) < 0.1


def test_a_time_in_another_unit_calibrates_nothing() -> None:
    rows = anchor([prediction(n, 2000.0 if n == 0 else 1.05, 1.0) for n in range(4)], 1)
    assert [row.anchor for row in rows] == [False, False, True, False]
    assert rows[1].step_seconds == pytest.approx(1.03, abs=0.01)


def test_one_run_far_off_is_odd_and_three_alike_are_the_cluster() -> None:
    alone, agreed = (
        anchor([prediction(n, 2.0, 1.0) for n in range(9)], anchors)[1].step_seconds for anchors in (1, 3)
    )
    assert alone is not None
    assert alone < 1.1
    assert agreed == pytest.approx(2.0, rel=0.01)


def mean_error(predictions: Sequence[Prediction], among: Sequence[Prediction]) -> float:
    """Mean error of the rows that are no anchors `among` calibrated ones."""
    errors = [step_error(one) for one, other in zip(predictions, among, strict=True) if not other.anchor]
    return float(np.mean([abs(error) for error in errors if error is not None]))


@pytest.mark.parametrize("anchors", [1, 2, 3, 5])
@pytest.mark.parametrize(("between", "within"), [(0.1, 0.03), (0.05, 0.03), (0.02, 0.06)])
def test_anchors_help_where_sources_differ_and_harm_little_where_rows_do(
    anchors: int, between: float, within: float
) -> None:
    """Sixty clusters each off by something of its own, with one row in ten that is odd."""
    draw = np.random.default_rng(3)
    before, after = [], []
    for _ in range(60):
        odd = draw.choice([0.0, 0.7], 12, p=[0.9, 0.1]) * draw.standard_normal(12)
        noise = within * draw.standard_normal(12) + odd
        times = np.exp(between * draw.standard_normal() + noise)
        plain = [prediction(n, float(time), 1.0) for n, time in enumerate(times)]
        rows = anchor(plain, anchors)
        before.append(mean_error(plain, rows))
        after.append(mean_error(rows, rows))
    worth = 0.005 if between < within else 0.0
    assert np.mean(after) <= np.mean(before) + worth


@pytest.mark.parametrize("anchors", [1, 3, 5])
@pytest.mark.parametrize("source", ["megatron_sc21", "korthikanti22", "megascale"])
def test_anchors_make_no_shipped_source_worse(source: str, anchors: int) -> None:
    """Within a point: five of MegaScale's sweeps of eight leave three rows each."""
    plain = predictions_of(source)
    rows = anchor(plain, anchors)
    assert mean_error(rows, rows) <= mean_error(plain, rows) + 0.01


@cache
def predictions_of(source: str) -> tuple[Prediction, ...]:
    return tuple(predict(row for row in shipped_rows() if row.source == source))
