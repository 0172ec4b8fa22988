"""LAMB trains the same under every layout as twenty lines do on whole parameters in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from covering import cases_of, in_every_run
from effort import few, number
from training import GPT, MOE, Trained, engine_and_batches, plan_for, question_for, stray, train_weights

from cost_models.axes.layout import parse_layout
from executor.run_config import Rate
from planner.plan import Plan
from planner.rules.legality import check

STEPS = number(2, 4)
RATE = Rate(peak=2e-2)
TOLERANCE = 1e-5
WAY_TOLERANCE = 1e-3
WITHOUT_GRADIENT = "key.bias"
"""It adds as much to every score of a row; what rounding leaves of its gradient has a direction all the same."""
LAMB = {"optimizer": "lamb"}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "untied": GPT | {"tied_embeddings": False},
    "mixture": MOE,
    "biased mixture": MOE | {"gated_mlp": False, "activation": "gelu", "mlp_bias": True},
}

CASES = in_every_run(cases_of("lamb"))


def by_reference(plan: Plan, steps: int) -> Trained:
    """You et al. 2020, algorithm 2, on the gradients of one process."""

    engine, batch = engine_and_batches(plan)
    named = {name: x for part in engine.parts for name, x in part.named_parameters()}
    before = {name: x.detach().double().numpy().copy() for name, x in named.items()}
    moments = {name: (torch.zeros_like(x), torch.zeros_like(x)) for name, x in named.items()}
    curve = []
    for t in range(1, steps + 1):
        value = engine.forward_backward(*batch(t - 1))
        gradients = {name: engine.optimizer.gradient(x) for name, x in named.items()}
        curve.append((value, float(torch.cat([g.flatten().double() for g in gradients.values()]).norm())))
        with torch.no_grad():
            for name, x in named.items():
                g, (m, v) = gradients[name], moments[name]
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.95).add_(0.05 * g * g)
                r = (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-6) + 0.1 * x
                ratio = x.norm() / r.norm() if x.norm() > 0 and r.norm() > 0 else 1.0
                x.sub_(RATE.peak * ratio * r)
                g.zero_()
    return curve, {name: x.detach().double().numpy() - before[name] for name, x in named.items()}


def judged(way: dict[str, Any]) -> dict[str, Any]:
    return {name: gone for name, gone in way.items() if not name.endswith(WITHOUT_GRADIENT)}


@pytest.fixture(scope="module")
def references(processes) -> dict[str, Trained]:
    return {
        name: processes.run(1, by_reference, plan_for("mbs8", model, **LAMB), STEPS)[0]
        for name, model in MODELS.items()
    }


@few(5)
@pytest.mark.parametrize(("name", "layout"), CASES, ids=[f"{name} {layout}" for name, layout in CASES])
def test_every_layout_trains_as_the_reference(name: str, layout: str, processes, references) -> None:
    """Losses, gradient norms and the way of every parameter, on every rank."""
    plan = plan_for(layout, MODELS[name], **LAMB)
    expected, way = references[name]
    for curve, own in processes.run(plan.layout.num_gpus, train_weights, plan, STEPS, False, RATE):
        assert curve == [pytest.approx(pair, rel=TOLERANCE) for pair in expected]
        assert stray(judged(own), way) < (WAY_TOLERANCE, "")


@pytest.mark.parametrize("where", ["states", "streamed:1"])
def test_what_the_cpu_updates_is_refused(where: str) -> None:
    layout = parse_layout(f"dp2 mbs2 zero1 offload={where}")
    (problem,) = check(question_for(GPT, 2, **LAMB), layout)
    assert "the CPU updates blocks one after another" in problem.what
    assert not check(question_for(GPT, 2), layout)


def axes_waited_for(plan: Plan) -> set[str]:
    """What waiting in an update counts as."""
    from executor.timing import Waits

    engine, batch = engine_and_batches(plan)
    engine.forward_backward(*batch(0))
    waits = Waits(engine.mesh, engine.device, engine.context_group, engine.experts)
    with waits.watching():
        engine.optimizer.step()
    return {wait.axis for wait in waits.take()}


@pytest.mark.parametrize(("layout", "axes"), [("tp2 mbs4", {"tp"}), ("dp2 mbs2 zero1", {"dp"})])
def test_waiting_for_norms_counts_where_it_is_priced(layout: str, axes: set[str], processes) -> None:
    assert processes.run(2, axes_waited_for, plan_for(layout, GPT, **LAMB))[0] == axes
