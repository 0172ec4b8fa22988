"""Layouts of one question, and rows of tables that ask it, are priced together, to the last digit as each alone."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.measured.runs.cases import shipped_rows
from cost_models.measured.validation.predictions import predict
from cost_models.pipeline import stage_costs
from cost_models.pipeline.pricing import estimate, estimate_each
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

LAYOUTS = [
    parse_layout(text)
    for text in ("tp8 pp1 dp8 mbs1", "tp4 pp4 dp4 mbs1", "tp2 pp4 vpp2 dp8 mbs1", "tp4 pp4 dp4 mbs1")
]


def question() -> Question:
    training = TrainingSpec(global_batch=64, sequence_length=2048)
    return complete_question(catalog.load_model("llama3-8b"), resolve_cluster("dgx-h100", 64), training)


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Calls that price coefficients of time."""
    counted = Mock(wraps=stage_costs.time_terms)
    monkeypatch.setattr(stage_costs, "time_terms", counted)
    return counted


def test_layouts_priced_together_cost_what_each_does_alone(priced: Mock) -> None:
    together = estimate_each(question(), LAYOUTS)
    assert priced.call_count == 1
    assert together == [estimate(question(), layout) for layout in LAYOUTS]


def test_one_that_cannot_run_says_so() -> None:
    with pytest.raises(InputError, match="do not divide"):
        estimate_each(question(), [*LAYOUTS, parse_layout("tp1 pp64 dp1 mbs1")])


def test_rows_that_ask_the_same_are_priced_together(priced: Mock) -> None:
    rows = [row for row in shipped_rows() if row.source == "bloom_prequel"][:40]
    found = list(predict(rows))
    assert [one.row for one in found] == rows
    assert 0 < priced.call_count < sum(one.case is not None for one in found)
    alone = [prediction for row in rows[:3] for prediction in predict([row])]
    assert [one.step_seconds for one in found[:3]] == [one.step_seconds for one in alone]
