"""Anchors calibrate the rest of their sweep and are no longer predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from effort import few

from cost_models.measured.calibration.profile_fits import anchor, spread_positions
from cost_models.measured.runs.cases import shipped_rows
from cost_models.measured.runs.rows import Row, parse_row
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import score, step_error


@cache
def untimed() -> tuple[Prediction, ...]:
    return tuple(predict(sweep_rows()))


def timed(factors: Sequence[float | None], **names: str) -> list[Prediction]:
    """Predictions of the first layouts as if each had run `factors` times as long as predicted, or not been timed."""
    predictions = []
    for one, factor in zip(untimed(), factors, strict=False):
        assert one.case is not None
        assert one.step_seconds is not None
        measured = None if factor is None else factor * one.step_seconds
        row = one.row.model_copy(update={"step_seconds": measured, **names})
        predictions.append(replace(one, row=row, case=replace(one.case, row=row)))
    return predictions


def ratios(before: Sequence[Prediction], after: Sequence[Prediction]) -> list[float]:
    """Step times that are no anchors' after calibration, over those before."""
    pairs = zip(before, after, strict=True)
    return [
        one.step_seconds / old.step_seconds for old, one in pairs if one.step_seconds and old.step_seconds
    ]


@pytest.mark.parametrize(
    ("count", "wanted", "positions"),
    [(7, 3, [0, 3, 6]), (6, 3, [0, 3, 5]), (5, 1, [2]), (9, 2, [0, 8]), (10, 4, [0, 3, 6, 9])],
)
def test_anchors_are_spread(count: int, wanted: int, positions: list[int]) -> None:
    assert list(spread_positions(count, wanted)) == positions


def test_a_sweep_that_is_half_as_fast_comes_out_right() -> None:
    rows = anchor(timed([2.0] * 5), 3)
    assert [row.anchor for row in rows] == [True, False, True, False, True]
    for row in (rows[1], rows[3]):
        assert row.step_seconds == pytest.approx(row.row.step_seconds, rel=0.02)
        assert sum(row.parts.values()) == pytest.approx(row.step_seconds)
        assert "3 anchors" in row.assumptions[-1]
    (source,) = score(rows)
    assert (source.rows, source.predicted, source.skipped) == (5, 2, 3)


def test_one_wrong_anchor_moves_nothing() -> None:
    plain = timed([2.0, 2.0, 20.0, 2.0, 2.0])
    assert ratios(plain, anchor(plain, 3))[0] == pytest.approx(2.0, rel=0.03)


def test_rows_without_a_time_are_calibrated_but_never_anchors() -> None:
    plain = timed([None, 2.0, 2.0, 2.0, 2.0])
    rows = anchor(plain, 3)
    assert not rows[0].anchor
    assert ratios(plain, rows)[0] == pytest.approx(2.0, rel=0.02)


def test_sweeps_of_another_gpu_or_with_too_few_rows_keep_their_predictions() -> None:
    few = timed([2.0] * 3, cluster="pcie-a100")
    rows = anchor([*timed([2.0] * 5), *few], 3)
    assert rows[5:] == tuple(few)
    assert anchor(few, 0) == tuple(few)


def test_one_run_far_off_is_odd_and_three_alike_are_the_cluster() -> None:
    plain = timed([2.0] * 9)
    alone, agreed = (max(ratios(plain, anchor(plain, anchors))) for anchors in (1, 3))
    assert alone < 1.2
    assert agreed == pytest.approx(2.0, rel=0.03)


def sweep_rows() -> list[Row]:
    """Nine layouts of a 7B model on eight A100."""
    cells = {
        "source_id": "lab", "model": "GPT", "model.num_layers": "32", "model.hidden_size": "4096",
        "model.num_heads": "32", "model.vocab_size": "51200", "cluster": "dgx-a100-80gb", "stack": "megatron-2021",
        "sequence_length": "2048", "global_batch": "64", "precision": "fp16",
    }  # fmt: skip
    layouts = [(tp, pp, mbs) for tp in (1, 2, 4) for pp, mbs in ((1, 1), (2, 2), (2, 4))]
    notations = [f"tp{tp} pp{pp} dp{8 // tp // pp} mbs{mbs} zero0 recompute=full" for tp, pp, mbs in layouts]
    return [
        parse_row(cells | {"row_id": f"{n:04}", "layout": text}, "lab.csv")
        for n, text in enumerate(notations)
    ]


def test_a_cluster_with_other_clocks_is_learned_from_three_runs() -> None:
    (first, *_) = untimed()
    slow = first.case.question.hardware.model_copy(update={"gemm_efficiency": 0.7})
    seconds = [one.step_seconds or 0.0 for one in predict(sweep_rows(), profile=slow)]
    factors = [slower / (one.step_seconds or 1.0) for slower, one in zip(seconds, untimed(), strict=True)]
    plain = timed(factors)
    assert worst(plain) > 0.1
    rows = anchor(plain, 3)
    assert worst(rows) < 0.03
    others = [row for row in rows if not row.anchor]
    assert all("3 anchors of its sweep: gemm_efficiency × 0" in row.assumptions[-1] for row in others)
    assert [row.peak_bytes for row in others] == [
        one.peak_bytes for one, row in zip(plain, rows, strict=True) if not row.anchor
    ]
    factors[4] *= 2
    assert worst([row for row in anchor(timed(factors), 5) if row.row.row_id != "0004"]) < 0.1


def worst(predictions: Sequence[Prediction]) -> float:
    return max(abs(error) for one in predictions if (error := step_error(one)) is not None)


@few(1)
@pytest.mark.parametrize("source", ["korthikanti22", "megatron_sc21", "megascale"])
def test_anchors_make_no_shipped_source_worse(source: str) -> None:
    """Within a point: five of MegaScale's sweeps of eight leave three rows each."""
    plain = tuple(predict(row for row in shipped_rows() if row.source_id == source))
    for anchors in (1, 3, 5):
        rows = anchor(plain, anchors)
        pairs = zip(plain, rows, strict=True)
        errors = [
            (step_error(old), step_error(one)) for old, one in pairs if not one.anchor and one.step_seconds
        ]
        sizes = np.abs(np.array(errors, dtype=float))
        assert sizes[:, 1].mean() <= sizes[:, 0].mean() + 0.01
