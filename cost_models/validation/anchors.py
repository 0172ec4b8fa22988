"""Anchors: what a user with a few old log lines has. K timed rows of a sweep calibrate the predictions of its others.

A sweep here is what one source ran with one framework on one GPU: what is unknown about it (clocks, fabric, versions)
is the same for all its rows, and a few of them tell most of it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cost_models.validation.predicting import Prediction
from cost_models.validation.rows import Row
from cost_models.validation.scores import measured_seconds

IS_ANCHOR = "an anchor: its measured step time calibrates the rest of its sweep"
"""Why an anchor has no prediction."""


def anchor(predictions: Iterable[Prediction], anchors: int) -> tuple[Prediction, ...]:
    """The predictions in their order, each sweep's scaled by the median of measured / predicted over its anchors.

    Anchors themselves are no longer predictions. A sweep without more timed rows than anchors keeps its own.
    """
    ordered = list(predictions)
    sweeps: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, one in enumerate(ordered):
        sweeps[_sweep_of(one.row)].append(index)
    for indices in sweeps.values():
        timed = sorted(
            (i for i in indices if _ratio(ordered[i]) is not None), key=lambda i: ordered[i].row.row_id
        )
        if not 0 < anchors < len(timed):
            continue
        chosen = {timed[position] for position in spread_positions(len(timed), anchors)}
        factor = statistics.median(ratio for i in chosen if (ratio := _ratio(ordered[i])) is not None)
        for i in indices:
            ordered[i] = _as_anchor(ordered[i]) if i in chosen else _scaled(ordered[i], factor, len(chosen))
    return tuple(ordered)


def spread_positions(count: int, wanted: int) -> Sequence[int]:
    """`wanted` of `count` positions, evenly spaced from the first to the last; one: the middle.

    Three of seven: 0, 3, 6.
    """
    if wanted == 1:
        return (count // 2,)
    return tuple(-(-position * (count - 1) // (wanted - 1)) for position in range(wanted))


def _sweep_of(row: Row) -> tuple[str, ...]:
    return tuple(row.text(column) for column in ("source_id", "framework", "gpu"))


def _ratio(prediction: Prediction) -> float | None:
    measured, predicted = measured_seconds(prediction.row), prediction.step_seconds
    return measured / predicted if measured and predicted else None


def _as_anchor(prediction: Prediction) -> Prediction:
    return Prediction(row=prediction.row, case=prediction.case, skipped=IS_ANCHOR, anchor=True)


def _scaled(prediction: Prediction, factor: float, anchors: int) -> Prediction:
    """The same step `factor` times as long, every part of it alike."""
    if prediction.step_seconds is None:
        return prediction
    return replace(
        prediction,
        step_seconds=factor * prediction.step_seconds,
        parts={part: factor * seconds for part, seconds in prediction.parts.items()},
        assumptions=(
            *prediction.assumptions,
            f"step time × {factor:.3f}, from {anchors} anchors of its sweep",
        ),
    )
