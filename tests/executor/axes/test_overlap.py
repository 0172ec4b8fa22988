"""`overlap=` trains as without it: on two ranks to the last bit, on more to 1e-6.

Where a rank has a share of the gradients their norm is added up share by share, and shares are other ones: norms, and
what is clipped by them, agree to rounding alone.
"""

from __future__ import annotations

from typing import Any

import pytest
from effort import few, number, some_of
from training import GPT, LLAMA, MOE, NO_GRADIENT, engine_and_batches, plan_for, train_weights

STEPS = number(2, 4)
TOLERANCE = 1e-6
CLIP = 0.1
"""Less than any of the norms."""
UNTIED = GPT | {"tied_embeddings": False}

CASES: list[tuple[dict[str, Any], str]] = [
    (GPT, "dp2 mbs2 zero0"),
    (GPT, "dp2 mbs2 zero1"),
    (LLAMA, "dp2 mbs1 zero0 recompute=full"),
    (LLAMA, "dp2 mbs1 zero1 recompute=selective"),
    (GPT, "dp2 mbs2 zero1 shard1"),
    (GPT, "dp4 mbs1 zero1 shard2"),
    (LLAMA, "tp2 dp2 sp mbs2 zero1"),
    (UNTIED, "tp2 dp2 mbs2 zero0 recompute=full"),
    (GPT, "pp2 dp2 mbs1 zero0"),
    (LLAMA, "pp2 dp2 mbs1 zero1 recompute=full"),
    (GPT, "pp2 vpp2 dp2 mbs1 zero1"),
    (LLAMA, "pp2 dp2 mbs1 zero1 schedule=zero-bubble"),
    (GPT, "pp2 dp2 mbs1 zero0 schedule=zbv"),
    (UNTIED, "tp2 pp2 dp2 mbs1 zero1 sp"),
    (MOE, "dp2 ep2 mbs2 zero1"),
    (MOE, "dp4 ep2 mbs1 zero0"),
    (UNTIED, "pp2 dp2 mbs1 zero1"),
    (GPT, "cp2 mbs2 zero1"),
]
SOME = [CASES[place] for place in (0, 3, 5, 6, 11, 14)]


@few(3)
@pytest.mark.parametrize(("model", "layout"), some_of(CASES, *SOME), ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("clip", [None, CLIP])
def test_gradients_reduced_behind_compute_train_alike(
    model: dict[str, Any], layout: str, clip: float | None, processes
) -> None:
    """Losses and norms of every step, and how far every parameter went with the plan's own optimizer."""
    plans = [plan_for(words, model) for words in (layout, f"{layout} overlap=pp,dp")]
    ranks = plans[0].layout.num_gpus
    one, other = (processes.run(ranks, train_weights, plan, STEPS, False, None, clip) for plan in plans)
    for (curve, way), (own_curve, own_way) in zip(one, other, strict=True):
        for (value, norm), (own_value, own_norm) in zip(curve, own_curve, strict=True):
            assert own_norm == pytest.approx(norm, rel=TOLERANCE)
            assert own_value == (
                value if ranks == 2 and clip is None else pytest.approx(value, rel=TOLERANCE)
            )
        for name, gone in way.items():
            exact = ranks == 2 and clip is None
            if exact or not name.endswith(NO_GRADIENT):
                assert abs(own_way[name] - gone).max() <= (0 if exact else TOLERANCE), name


AHEAD: list[tuple[dict[str, Any], str]] = [
    (GPT, "pp2 mbs1"),
    (LLAMA, "pp2 mbs2 schedule=gpipe recompute=full"),
    (GPT, "pp4 mbs1"),
    (UNTIED, "tp2 pp2 mbs2 sp"),
    (GPT, "pp2 dp2 mbs1 zero3"),
    (GPT, "pp2 dp2 mbs1 zero1"),
]


@pytest.mark.parametrize(("model", "layout"), some_of(AHEAD, AHEAD[0], AHEAD[2], AHEAD[5]))
def test_stages_that_send_ahead_train_alike_to_the_last_bit(
    model: dict[str, Any], layout: str, processes
) -> None:
    """Who waits for a tensor when changes nothing of it."""
    plans = [plan_for(words, model) for words in (layout, f"{layout} overlap=pp")]
    one, other = (
        processes.run(plan.layout.num_gpus, train_weights, plan, STEPS, False, None, CLIP) for plan in plans
    )
    for (curve, way), (own_curve, own_way) in zip(one, other, strict=True):
        assert own_curve == curve
        assert all((own_way[name] == gone).all() for name, gone in way.items())


def begun_before_the_backward_pass_ends(plan: Any) -> tuple[int, int]:
    """How many reductions had been started when forward and backward were done, of how many."""

    from executor.axes.overlap import OverlapAxis

    engine, batch = engine_and_batches(plan)
    engine.forward_backward(*batch(0))
    overlap = engine.axis(OverlapAxis)
    assert overlap is not None
    begun = overlap.reducing
    engine.update()
    return begun, len(engine.optimizer.flats)


WHOLE = ["dp2 mbs1 zero1", "pp2 dp2 mbs1 zero0", "pp2 dp2 mbs1 zero1 schedule=zbv"]


@pytest.mark.parametrize("layout", some_of(WHOLE, WHOLE[2]))
def test_every_reduction_has_begun_when_the_backward_pass_ends(layout: str, processes) -> None:
    plan = plan_for(f"{layout} overlap=dp", UNTIED)
    for begun, flats in processes.run(plan.layout.num_gpus, begun_before_the_backward_pass_ends, plan):
        assert begun == flats > 1
