"""Mixtures of experts and latent attention train as one process does: same seed, same text, fp32.

As in `test_parity`: plain gradient descent, and the norm of the whole gradient beside the loss. The load-balance loss
is in the gradient of every mixture but is no part of the loss compared.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from covering import cases_of, in_every_run
from processes import Processes
from test_parity import STEPS, TOLERANCE
from training import LATENT, MOE, SHARED, plan_for, train

from executor.axes.expert import Exchange
from executor.engine.engine import Engine
from executor.run_config import EngineOptions

ROUTED = SHARED | {
    "num_experts": 8,
    "num_moe_layers": 2,
    "moe_layers": [1, 3],
    "router_bias": True,
    "expert_groups": {"count": 4, "per_token": 2, "scored_by": "two best"},
    "routing_scale": 2.5,
    "shared_expert_gate": True,
}
"""Every second block a mixture, with all that a router and its shared experts may have."""
MODELS: dict[str, dict[str, Any]] = {
    "mixture": MOE,
    "shared": SHARED,
    "latent": LATENT,
    "deepseek": SHARED | LATENT | {"num_moe_layers": 3},
    "routed": ROUTED,
}

CASES = in_every_run(cases_of("mixtures"))


@pytest.fixture(scope="module")
def references(processes: Processes) -> dict[str, list[tuple[float, float]]]:
    """Each model's curve in one process, the whole batch in one microbatch."""
    return {
        name: processes.run(1, train, plan_for("mbs8", model), STEPS, True)[0]
        for name, model in MODELS.items()
    }


@pytest.mark.parametrize(("name", "layout"), CASES, ids=[f"{name} {layout}" for name, layout in CASES])
def test_same_curve_as_one_process(
    name: str, layout: str, processes: Processes, references: dict[str, list[tuple[float, float]]]
) -> None:
    """Loss and gradient norm of every step, on every rank."""
    plan = plan_for(layout, MODELS[name])
    for curve in processes.run(plan.layout.num_gpus, train, plan, STEPS, True):
        for got, expected in zip(curve, references[name], strict=True):
            assert got == pytest.approx(expected, rel=TOLERANCE)


def test_the_references_learn(references: dict[str, list[tuple[float, float]]]) -> None:
    """A curve that stands still would agree with anything."""
    for curve in references.values():
        assert curve[-1][0] < curve[0][0] - 0.05


def expert_norms(plan: Any) -> dict[str, tuple[float, ...]]:
    """Name of each matrix of an expert on this rank, its number in the model after it → norm of its gradient."""
    import torch
    from torch.distributed.tensor import DTensor

    from executor.data.batches import Batches

    engine = Engine(plan, torch.device("cpu"), EngineOptions(sgd=True))
    batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
    engine.forward_backward(*batches.slice(0, engine.place.dp, plan.layout.dp))
    engine.optimizer.settle()
    for flat in engine.optimizer.flats:
        flat.reduce()
    assert engine.experts is not None
    first = engine.experts["ep"].get_local_rank() * plan.model.num_experts // plan.layout.ep
    found = {}
    for name, parameter in engine.parts[0].named_parameters():
        if ".experts." in name:
            gradient = engine.optimizer.gradient(parameter) if engine.optimizer.flats else parameter.grad
            assert gradient is not None
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            for index, matrix in enumerate(whole):
                found[f"{name} {first + index}"] = float(matrix.norm())
    return found


@pytest.mark.parametrize("layout", ["dp4 ep2 mbs1 zero0", "dp4 ep4 mbs1 zero3", "dp4 ep2 mbs2 zero2"])
def test_experts_have_the_gradient_of_the_mean(layout: str, processes: Processes) -> None:
    """Matrix by matrix: experts are few of a model's parameters, and a wrong scale hardly shows in the whole norm."""
    plan = plan_for(layout, MOE)
    expected = processes.run(1, expert_norms, plan_for("mbs8", MOE))[0]
    found: dict[str, float] = {}
    for norms in processes.run(4, expert_norms, plan):
        found |= norms
    assert found == pytest.approx(expected, rel=1e-4)


def shared_out(some: int) -> list[list[float]]:
    """What comes back of rows that experts double, in two parts each; rank 1 has `some` rows."""
    rows_RD = torch.ones((some if dist.get_rank() else 3), 4)
    alone = dist.new_subgroups(1)[0]
    exchange = Exchange(alone, dist.group.WORLD)
    found: list[list[float]] = exchange(
        rows_RD, torch.tensor([len(rows_RD)]), lambda rows, counts: rows
    ).tolist()
    return found


@pytest.mark.parametrize("some", [2, 0])
def test_a_rank_without_copies_shares_experts_too(some: int, processes: Processes) -> None:
    """Each of two ranks adds its part to all rows."""
    assert processes.run(2, shared_out, some) == [[[2.0] * 4] * 3, [[2.0] * 4] * some]
