"""Several pools: bounds, placement and search equal brute force; equal pools are one cluster; faster is not slower."""

from __future__ import annotations

import math

import pytest
from asking import ask
from effort import number
from hypothesis import given, settings
from hypothesis import strategies as st
from several_pools import mixed_leaf, mixed_question, pool
from synthetic import exhaustive_best

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.pipeline.pricing import estimate
from planner.exact.program import best_placement
from planner.placement.leaf import TOLERANCE, Task
from planner.placement.mixes import good_placement
from planner.search.branching import SearchResult
from planner.search.search import place_layout, search
from planner.space.restrictions import parse_restrictions

SEEDS = st.integers(min_value=0, max_value=10**6)


@given(SEEDS)
@settings(max_examples=number(20, 200), deadline=None, derandomize=True)
def test_the_exact_placement_is_the_best_of_all(seed: int) -> None:
    leaf = mixed_leaf(seed)
    exact = exhaustive_best(leaf)
    solution = best_placement(Task(leaf, good_placement(leaf)))
    assert solution.objective == pytest.approx(exact, rel=TOLERANCE)
    assert solution.status == ("optimal" if math.isfinite(exact) else "infeasible")
    if solution.placement is not None:
        assert leaf.fits(solution.placement.table)


def seconds_of(result: SearchResult) -> list[float]:
    return [found.step_seconds for found in result.estimates]


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-2021"])
@pytest.mark.parametrize("memory", ["220 MiB", "1 GiB"])
def test_two_equal_pools_are_one_cluster(stack: str, memory: str) -> None:
    one = pool("one", nodes=4, memory=memory)
    halves = [pool(name, nodes=2, memory=memory) for name in ("left", "right")]
    mixed = mixed_question(*halves, layers=8, stack=stack, global_batch=16)
    whole = complete_question(mixed.model, one, mixed.training, stack=stack)
    plain = parse_restrictions(["cp=1", "schedule=1f1b", "order=tp-cp-dp-pp"], ["pp=1"])
    alone = search(whole, restrictions=plain)
    limits = parse_restrictions(["cp=1"], [])
    together = search(mixed, top=len(alone.estimates), restrictions=limits)  # either pool may be first
    assert seconds_of(together) == pytest.approx(seconds_of(alone), rel=10 * TOLERANCE)
    best, same = alone.best, estimate(mixed, alone.best.layout)
    assert (same.step_seconds, same.mfu, same.peak_bytes) == pytest.approx(
        (best.step_seconds, best.mfu, best.peak_bytes)
    )
    assert same.time == pytest.approx(best.time)
    assert same.hidden_comm == pytest.approx(best.hidden_comm)


@given(st.floats(0.5, 3.0), st.floats(1.0, 3.0), st.booleans(), st.sampled_from(["220 MiB", "1 GiB"]))
@settings(max_examples=number(3, 20), deadline=None, derandomize=True)
def test_a_faster_pool_never_makes_it_slower(speed: float, factor: float, first: bool, memory: str) -> None:
    other = pool("other", memory=memory)
    seconds = []
    for rate in (speed, speed * factor):
        pools = [pool("changed", speed=rate, memory=memory), other]
        question = mixed_question(
            *(pools if first else pools[::-1]), global_batch=4, recompute=("none", "full")
        )
        seconds.append(search(question, top=1).best.step_seconds)
    assert seconds[1] <= seconds[0] * (1 + TOLERANCE)


def test_blocks_lie_in_proportion_to_speed() -> None:
    pools = "dgx-a100-80gb:64+dgx-h100:64"
    question = ask("gpt3-175b", pools, global_batch=512, sequence_length=2048)
    best = search(question, top=1, restrictions=parse_restrictions(["tp=8", "pp=8"])).best
    blocks = dict(zip(best.layout.pools, best.layout.layers, strict=True))
    assert 2.5 <= blocks["dgx-h100"] / blocks["dgx-a100-80gb"] <= 3.5


def test_a_layout_is_placed_as_search_places_it() -> None:
    question = mixed_question(pool("a"), pool("b", speed=2.5), layers=8)
    best = search(question, top=1).best
    named = best.layout.model_copy(update={"layers": ()})
    open_layout = named.model_copy(update={"pools": ()})
    for layout in (named, open_layout):
        assert estimate(question, place_layout(question, layout)).step_seconds == pytest.approx(
            best.step_seconds
        )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pp2 dp2 zero1 pools=a,c", "is not how the pools divide"),
        ("pp4 pools=a,b,a,b", "pools=a*2,b*2, in any order of the pools"),
        ("pp4 pools=a*3,b", "is not how the pools divide"),
        ("pp1 dp4 zero1", "does not divide pool `a` of 2"),
        ("pp2 vpp2 dp2 mbs1 zero1", "needs equal stages"),
    ],
)
def test_what_does_not_lie_in_pools_is_refused(text: str, told: str) -> None:
    question = mixed_question(pool("a"), pool("b"))
    with pytest.raises(InputError, match=told.replace("*", r"\*")):
        place_layout(question, parse_layout(text))
