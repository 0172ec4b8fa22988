"""What the model says of published runs, source by source: no figure may get worse unnoticed.

python tests/golden/test_accuracy.py        rewrites accuracy.json after a deliberate change
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from cost_models.measured.runs.cases import shipped_rows
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import SourceScore, score

FIGURES = Path(__file__).with_name("accuracy.json")
SLACK = 0.0005
"""Rounding of the committed figures."""


@cache
def predictions() -> tuple[Prediction, ...]:
    return tuple(predict(shipped_rows()))


@cache
def scores() -> dict[str, SourceScore]:
    return {found.source: found for found in score(predictions())}


def figures(found: SourceScore) -> dict[str, float]:
    """The figures of a source for which less is better."""
    candidates = {
        "skipped rows": found.skipped,
        "step time, median": found.step and found.step.median,
        "step time, nine in ten": found.step and found.step.p90,
        "peak memory, median": found.memory and found.memory.median,
        "out of memory, missed": found.verdicts.missed,
        "out of memory, false alarms": found.verdicts.false_alarms,
        "regret, mean": found.mean_regret,
        "regret, worst": found.worst_regret,
    }
    return {name: round(float(value), 4) for name, value in candidates.items() if value is not None}


def committed() -> dict[str, dict[str, float]]:
    return json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}


@pytest.mark.parametrize("source", committed())
def test_no_figure_got_worse(source: str) -> None:
    before, now = committed()[source], figures(scores()[source])
    assert now.keys() == before.keys()
    worse = {name: (before[name], value) for name, value in now.items() if value > before[name] + SLACK}
    assert not worse, f"{source}: committed, now: {worse}"


def test_parts_make_up_every_step_that_is_predicted() -> None:
    predicted = [one for one in predictions() if not one.skipped]
    assert len(predicted) > 0.97 * len(shipped_rows())  # of some the architecture or the batch is blank
    timed = [one for one in predicted if one.step_seconds is not None]
    assert len(timed) > 0.9 * len(predicted)
    for one in timed:
        assert sum(one.parts.values()) == pytest.approx(one.step_seconds)


def test_every_shipped_source_has_figures() -> None:
    assert scores().keys() == committed().keys()


if __name__ == "__main__":
    FIGURES.write_text(
        json.dumps({name: figures(one) for name, one in scores().items()}, indent=1) + "\n", "utf-8"
    )
