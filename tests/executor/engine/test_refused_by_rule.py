"""What the engine would train wrong, or many times over, if rules did not refuse it: run past the rules, and seen."""

from __future__ import annotations

import pytest
from effort import few
from training import GPT, plan_for, question_for, train

from cost_models.axes.layout import parse_layout
from planner.rules.legality import check

STEPS = 2
UNTIED = GPT | {"tied_embeddings": False}


def refused(layout: str) -> str:
    """Why a layout is no plan."""
    parsed = parse_layout(layout)
    return " / ".join(problem.what for problem in check(question_for(GPT, parsed.num_gpus), parsed))


@pytest.mark.parametrize(
    "schedule", ["vpp2 schedule=zero-bubble", "vpp2 schedule=zbv", "vpp2 schedule=dualpipev"]
)
@few(1)
def test_a_split_backward_that_reshards_trains_wrong(schedule: str, processes) -> None:
    """Every step runs, and the gradients are others."""
    (expected,) = processes.run(1, train, plan_for("mbs8", UNTIED), STEPS, True)
    layout = f"pp2 dp2 mbs1 zero3 {schedule}"
    norm = processes.run(4, train, plan_for(layout, UNTIED), STEPS, True)[0][0][1]
    assert abs(norm / expected[0][1] - 1.0) > 1e-2
    assert "PyTorch trains wrong without a word" in refused(layout)
    harmless = layout.replace("zero3", "zero2")
    assert not refused(harmless)
    curve = processes.run(4, train, plan_for(harmless, UNTIED), STEPS, True)[0]
    assert curve == [pytest.approx(step, rel=1e-5) for step in expected]
