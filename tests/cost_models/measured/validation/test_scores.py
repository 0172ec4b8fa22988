"""Every accuracy figure on a table small enough to check by hand."""

from __future__ import annotations

import pytest

from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Prediction
from cost_models.measured.validation.scores import SourceScore, kendall_tau, score


def prediction(
    number: int,
    measured: float | None,
    predicted: float | None,
    *,
    fits: bool | None = True,
    oom: bool = False,
    memory: tuple[float, float] | None = None,
    sweep: str = "gpt",
    source: str = "lab",
) -> Prediction:
    gigabytes, peak = memory or (None, None)
    fields = {"row_id": f"{source}-{number:04}", "source_id": source, "model": sweep, "out_of_memory": oom}
    row = Row(**fields, step_seconds=measured, peak_gb=gigabytes)
    return Prediction(row=row, step_seconds=predicted, fits=fits, peak_bytes=peak)


def only(*predictions: Prediction) -> SourceScore:
    (source,) = score(predictions)
    return source


def test_errors_by_hand() -> None:
    """+10 %, −20 %, +30 %, 0: sizes 0, .1, .2, .3; element ⌊0.9 · 4⌋ = 3 is the 90th percentile."""
    source = only(
        prediction(1, 1.0, 1.1), prediction(2, 1.0, 0.8), prediction(3, 2.0, 2.6), prediction(4, 5.0, 5.0)
    )
    assert source.step is not None
    assert source.step.median == pytest.approx(0.15)
    assert source.step.mean == pytest.approx(0.15)
    assert source.step.p90 == pytest.approx(0.3)
    assert source.step.bias == pytest.approx(0.05)
    assert (source.rows, source.predicted, source.skipped) == (4, 4, 0)


def test_what_was_not_predicted_is_skipped_and_what_was_not_measured_has_no_error() -> None:
    source = only(prediction(1, 1.0, None, fits=None), prediction(2, None, 1.0), prediction(3, 1.0, 1.0))
    assert (source.rows, source.predicted, source.skipped) == (3, 1, 1)


def test_memory_errors_are_in_decimal_gigabytes() -> None:
    source = only(
        prediction(1, None, 1.0, memory=(40.0, 44e9)), prediction(2, None, 1.0, memory=(50.0, 40e9))
    )
    assert source.memory is not None
    assert source.memory.median == pytest.approx(0.15)
    assert source.memory.bias == pytest.approx(-0.05)


def test_out_of_memory_by_hand() -> None:
    """Three ran out, two caught; of two that ran one alarm; what neither ran nor ran out does not count."""
    source = only(
        prediction(1, None, 1.0, fits=False, oom=True),
        prediction(2, None, 1.0, fits=False, oom=True),
        prediction(3, None, 1.0, fits=True, oom=True),
        prediction(4, 1.0, 1.0, fits=False),
        prediction(5, 1.0, 1.0, fits=True),
        prediction(6, None, 1.0, fits=False),
    )
    assert source.verdicts.recall == pytest.approx(2 / 3)
    assert source.verdicts.precision == pytest.approx(2 / 3)
    assert (source.verdicts.false_alarms, source.verdicts.agreed) == (1, 1)


def test_regret_is_how_much_slower_our_choice_ran() -> None:
    """We would pick row 2 (predicted 1.9 s), which ran in 3 s; the fastest ran in 2 s: 50 % regret."""
    source = only(prediction(1, 2.0, 2.0), prediction(2, 3.0, 1.9), prediction(3, 4.0, 5.0))
    assert [sweep.regret for sweep in source.sweeps] == [pytest.approx(0.5)]
    assert source.sweeps[0].tau is None


def test_what_is_said_not_to_fit_is_not_chosen() -> None:
    source = only(prediction(1, 2.0, 2.0), prediction(2, 3.0, 1.9, fits=False), prediction(3, 4.0, 5.0))
    assert source.worst_regret == pytest.approx(0.0)


def test_order_and_anchors_of_five() -> None:
    """Predicted at half the measured time but for row 2: anchors 0, 2 and 4 have the ratios 0.5, 0.6, 0.5.

    So the factor is 0.5, and rows 1 and 3 come out exactly right. One of ten pairs is swapped: τ = 0.8.
    """
    measured = [1.0, 2.0, 3.0, 3.2, 5.0]
    predicted = [0.5, 1.0, 1.8, 1.6, 2.5]
    source = only(*(prediction(n, m, p) for n, (m, p) in enumerate(zip(measured, predicted, strict=True))))
    assert source.anchored is not None
    assert source.anchored.count == 2
    assert source.anchored.p90 == pytest.approx(0.0)
    assert source.mean_tau == pytest.approx(0.8)


def test_ties_have_no_order() -> None:
    assert kendall_tau([1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == 1.0
    assert kendall_tau([1.0, 1.0], [1.0, 2.0]) is None


def test_sources_are_scored_apart_in_their_order() -> None:
    scores = score([prediction(1, 1.0, 2.0, source="b"), prediction(1, 1.0, 1.0, source="a")])
    assert [(one.source, one.step and one.step.median) for one in scores] == [("b", 1.0), ("a", 0.0)]
