"""Frozen parts: every layout trains the rest as one process does, and what is frozen stays bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from effort import few, first_of
from processes import Processes
from training import GPT, LLAMA, MOE, plan_for, stray, train_weights

TOLERANCE, WAY_TOLERANCE = 1e-5, 1e-3


def is_frozen(name: str, freeze: tuple[str, ...], *, tied: bool) -> bool:
    count = max([int(one.removeprefix("first=")) for one in freeze if "=" in one], default=0)
    return name.startswith(tuple(f"blocks.{layer}." for layer in range(count))) or (
        "embedding" in freeze and name.startswith(("embedding.", *["head.weight"] * tied))
    )


@few(1)
@pytest.mark.parametrize(
    ("layout", "model", "freeze"),
    first_of(
        4,
        [
            ("pp2 mbs2", LLAMA, ("embedding", "first=2")),
            ("tp2 dp2 sp mbs2 zero3", LLAMA, ("embedding", "first=2")),
            ("pp4 dp2 mbs1 zero1", LLAMA, ("embedding", "first=2")),
            ("dp2 mbs2 zero2 recompute=full", GPT, ("first=3",)),
            ("tp2 pp2 sp mbs2", GPT, ("embedding", "first=2")),
            ("pp2 dp2 mbs2 zero3 recompute=selective", LLAMA, ("embedding", "first=2")),
            ("cp2 dp2 mbs2 zero1", LLAMA, ("first=1",)),
            ("pp2 vpp2 mbs2", LLAMA, ("embedding", "first=3")),
            ("ep2 dp2 mbs2 zero1", MOE, ("embedding", "first=2")),
            ("dp2 mbs2 zero1 overlap=dp", LLAMA, ("embedding", "first=2")),
        ],
    ),
)
def test_a_layout_trains_the_rest_as_one_process(
    processes: Processes, layout: str, model: dict[str, Any], freeze: tuple[str, ...]
) -> None:
    job = {"freeze": freeze}
    expected, way = processes.run(1, train_weights, plan_for("mbs8", model, **job), 4, True)[0]
    plan = plan_for(layout, model, **job)
    for curve, own in processes.run(plan.num_ranks, train_weights, plan, 4, True):
        for found, wanted in zip(curve, expected, strict=True):
            assert found == pytest.approx(wanted, rel=TOLERANCE)
        off, name = stray(own, way)
        assert off < WAY_TOLERANCE, name
        still = {name for name, gone in own.items() if abs(gone).max() == 0}
        assert still == {name for name in own if is_frozen(name, freeze, tied=plan.model.tied_embeddings)}
