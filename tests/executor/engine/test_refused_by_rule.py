"""What the engine would train wrong, or many times over, if rules did not refuse it: run past the rules, and seen."""

from __future__ import annotations

import pytest
from effort import few
from training import GPT, engine_and_batches, plan_for, question_for, train

from cost_models.axes.layout import parse_layout
from planner.plan import Plan
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


def products(plan: Plan) -> int:
    """FLOPs of this rank's matrix products in one step."""
    from flop_counter import FlopCounter

    engine, batch = engine_and_batches(plan)
    with FlopCounter() as counter:
        engine.step(*batch(0))
    return counter.products


@few(0)
def test_a_split_backward_recomputes_many_times(processes) -> None:
    """Full recompute adds a forward pass to a step of three, and with split backward passes more than five."""
    ranks = {
        text: sum(processes.run(2, products, plan_for(text)))
        for text in (
            "pp2 mbs1",
            "pp2 mbs1 recompute=full",
            "pp2 mbs1 schedule=zbv",
            "pp2 mbs1 schedule=zbv recompute=full",
        )
    }
    whole, again, split, many = ranks.values()
    assert 1.1 < again / whole <= 4 / 3
    assert many - split > 5 * (again - whole)
    assert "does not go with `schedule=zbv`" in refused("pp2 mbs1 schedule=zbv recompute=full")
    assert not refused("pp2 mbs1 recompute=full")
