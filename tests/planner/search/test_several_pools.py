"""Several pools: bounds, placement and search equal brute force; equal pools are one cluster; faster is not slower."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from effort import few, number
from hypothesis import given, settings
from hypothesis import strategies as st
from several_pools import mixed_leaf, mixed_question, pool
from synthetic import exhaustive_best

from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InfeasibleError, InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pools import costs_of_ranks
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from planner.exact.program import best_placement
from planner.explain.reasons import why_not
from planner.placement.leaf import TOLERANCE, Leaf, Task
from planner.placement.mixes import good_placement
from planner.rules.legality import check
from planner.search.branching import SearchResult
from planner.search.pools import orders_of, pool_candidates
from planner.search.search import place_layout, search
from planner.space.restrictions import Restrictions, parse_restrictions

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


def legal_layouts(question: Question, zeros: tuple[int, ...], sps: tuple[bool, ...]) -> list[Layout]:
    """Every layout of some switches, in every order of the pools, that breaks no rule; found one by one."""
    gpus, batch = question.cluster.num_gpus, question.training.global_batch
    found = []
    for tp in (1, 2, 4):
        for pp in range(2, question.model.num_layers + 1):
            if gpus % (tp * pp) or any(p.cluster.num_gpus % (gpus // pp) for p in question.pools):
                continue
            dp = gpus // (tp * pp)
            sizes = [size for size in range(1, batch + 1) if batch % size == 0]
            shards = [shard for shard in range(2, dp + 1) if dp % shard == 0] or [1]
            for mbs, zero, sp, schedule, shard in product(sizes, zeros, sps, ("1f1b", "gpipe"), shards):
                if zero == 0 and shard < dp:
                    continue
                layout = Layout(
                    tp=tp, pp=pp, dp=dp, mbs=mbs, zero=zero, sp=sp, schedule=schedule, shard=shard
                )
                found += [one for one in orders_of(question, layout) if not check(question, one)]
    return found


def leaf_of(question: Question, layout: Layout) -> Leaf:
    policies = ("none", "selective", "full")
    return Leaf(
        costs=costs_of_ranks(question, layout),
        pp=layout.pp,
        vpp=1,
        schedule=layout.schedule,
        microbatches=layout.microbatches(question.training.global_batch),
        kinds=question.kinds,
        allowed=np.array([policy in question.training.recompute for policy in policies]),
    )


def seconds_of(result: SearchResult) -> list[float]:
    return [found.step_seconds for found in result.estimates]


POOLS = [(2, 2), (1, 1), (1, 2), (2, 4), (1, 1, 1)]
"""GPUs of each pool."""


@pytest.mark.parametrize("sizes", POOLS)
@given(
    st.lists(st.floats(0.5, 4.0), min_size=3, max_size=3),
    st.lists(st.sampled_from(["120 MiB", "160 MiB", "220 MiB", "400 MiB", "1 GiB"]), min_size=3, max_size=3),
    st.sampled_from([3, 4, 5]),
    st.sampled_from([4, 8]),
    st.sampled_from([("none",), ("none", "full"), ("selective", "full"), ("none", "selective", "full")]),
    st.sampled_from(["megatron-core", "megatron-2021", "fsdp"]),
    st.sampled_from([(0,), (0, 1), (0, 3), (1, 2)]),
    st.sampled_from([(False,), (True, False)]),
)
@settings(max_examples=number(3, 6), deadline=None, derandomize=True)
@few(2)
def test_search_is_brute_force(
    sizes: tuple[int, ...],
    speeds: list[float],
    memories: list[str],
    layers: int,
    batch: int,
    recompute: tuple[str, ...],
    stack: str,
    zeros: tuple[int, ...],
    sps: tuple[bool, ...],
) -> None:
    pools = [pool(f"p{k}", gpus=gpus, speed=speeds[k], memory=memories[k]) for k, gpus in enumerate(sizes)]
    question = mixed_question(*pools, layers=layers, stack=stack, global_batch=batch, recompute=recompute)
    layouts = legal_layouts(question, zeros, sps)
    fixed = ["cp=1", f"zero={','.join(map(str, zeros))}", f"sp={','.join(str(int(sp)) for sp in sps)}"]
    within = parse_restrictions(fixed)
    if not layouts:
        with pytest.raises(InfeasibleError, match="is legal"):
            search(question, restrictions=within)
        return
    leaves = {leaf.key: leaf for leaf in (leaf_of(question, layout) for layout in layouts)}
    best = sorted(exhaustive_best(leaf) for leaf in leaves.values())
    exact = [seconds for seconds in best if math.isfinite(seconds)]
    if not exact:
        with pytest.raises(InfeasibleError, match=r"fits the .* closest"):
            search(question, restrictions=within)
        return
    result = search(question, top=3, restrictions=within)
    assert seconds_of(result) == pytest.approx(exact[:3], rel=10 * TOLERANCE)
    proof = result.certificate
    assert (proof.gap, proof.undecided, proof.layouts) == (0, 0, len(layouts))
    assert proof.layouts == proof.infeasible + proof.pruned + proof.solved
    for found in result.estimates:
        assert found.fits
        assert estimate(question, parse_layout(str(found.layout))).step_seconds == found.step_seconds
        assert all(
            peak.total <= limit for peak, limit in zip(found.rank_memory, found.rank_limits, strict=True)
        )


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


def test_more_memory_and_a_faster_link_are_never_slower() -> None:
    question = mixed_question(pool("a", memory="200 MiB"), pool("b", speed=2.0, memory="200 MiB"))
    before = search(question, top=1).best.step_seconds
    roomy = mixed_question(pool("a", memory="200 MiB"), pool("b", speed=2.0, memory="1 GiB"))
    assert search(roomy, top=1).best.step_seconds <= before
    link = question.pool_link.model_copy(update={"bandwidth": 20e9, "latency": 1e-6})
    linked = complete_question(
        question.model, question.mixed.model_copy(update={"between": link}), question.training
    )
    assert search(linked, top=1).best.step_seconds <= before


def test_blocks_lie_in_proportion_to_speed() -> None:
    training = TrainingSpec(global_batch=512, sequence_length=2048)
    question = complete_question(
        catalog.load_model("gpt3-175b"), resolve_cluster("dgx-a100-80gb:64+dgx-h100:64"), training
    )
    best = search(question, top=1, restrictions=parse_restrictions(["tp=8", "pp=8"])).best
    blocks = dict(zip(best.layout.pools, best.layout.layers, strict=True))
    assert 2.5 <= blocks["dgx-h100"] / blocks["dgx-a100-80gb"] <= 3.5


def test_every_order_of_the_pools_is_covered() -> None:
    question = mixed_question(*(pool(name, gpus=1) for name in "abc"), recompute=("none",))
    space = pool_candidates(question, Restrictions())
    layouts = [space.layout(row) for row in range(len(space))]
    orders = {layout.pools for layout in layouts}
    assert len(orders) == 6
    assert "every order" in space.in_words()
    assert {layout.schedule for layout in layouts} == {"1f1b"}


def test_restrictions_and_the_memory_asked_for_hold() -> None:
    question = mixed_question(pool("a"), pool("b", speed=2.0))
    result = search(question, restrictions=parse_restrictions(["pp=4"], ["recompute=none"]))
    assert {found.layout.pp for found in result.estimates} == {4}
    limit = 0.7 * search(question, top=1).best.peak_bytes
    smaller = search(question, top=1, restrictions=parse_restrictions(max_memory=limit)).best
    assert smaller.peak_bytes <= limit
    assert max(smaller.rank_limits) == smaller.memory_limit == limit


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (search(mixed_question(pool("a"), pool("b", speed=2.0))) for _ in range(2))
    assert first.estimates == second.estimates


def test_interrupted_it_returns_the_best_so_far() -> None:
    question = mixed_question(pool("a", memory="200 MiB"), pool("b", speed=1.7, memory="200 MiB"))
    exact = search(question, top=1).best.step_seconds

    def interrupt(decided: int, layouts: int, best: float, bound: float) -> None:
        if math.isfinite(best):
            raise KeyboardInterrupt

    result = search(question, top=3, on_progress=interrupt, keep_on_interrupt=True)
    assert (
        result.certificate.bound <= exact * (1 + TOLERANCE) <= result.best.step_seconds * (1 + 2 * TOLERANCE)
    )
    assert result.certificate.undecided > 0


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


def test_pools_are_for_clusters_of_several() -> None:
    question = mixed_question(pool("a"), pool("b")).pools[0]
    problems = check(question, parse_layout("pp2 pools=a,b"))
    assert any("is one" in problem.what for problem in problems)


def test_why_not_speaks_of_the_pools_own_memory() -> None:
    question = mixed_question(pool("a", memory="160 MiB"), pool("b", memory="2 GiB"), layers=8)
    best = search(question, top=1).best
    heavy = best.layout.model_copy(update={"layers": (), "recompute": ("none",)})
    crowded = [7, 1] if best.layout.pp == 2 else [3, 3, 1, 1]
    order = ("a", "b") if best.layout.pp == 2 else ("a", "a", "b", "b")
    text = str(heavy.model_copy(update={"layers": tuple(crowded), "pools": order}))
    answer = why_not(question, best, text)
    assert answer.reason == "memory"
    assert answer.estimate is not None
    assert answer.estimate.layout.pools[answer.estimate.fullest_rank] == "a"


def test_the_columns_of_a_mixed_space_are_layouts() -> None:
    question = mixed_question(pool("a"), pool("b"))
    space = pool_candidates(question, Restrictions())
    layouts = [space.layout(row) for row in range(len(space))]
    assert len({str(layout) for layout in layouts}) == len(layouts) == len(space)
    assert all(not check(question, layout) for layout in layouts)
