"""Whole replicas in several pools: how microbatches are shared among them, and what a step of them takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.estimate import fullest_pool
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.operators.flops import model_flops
from cost_models.pipeline.pools import ONCE_A_STEP, Finish, in_pools, replica_terms, shared
from cost_models.pipeline.pricing import estimate, place_layout
from cost_models.pipeline.stage_costs import costs_of, stage_costs
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

TRAINING = TrainingSpec(global_batch=64, sequence_length=2048)
OLD, NEW = "dgx-a100-80gb", "dgx-h100"


def mixed(cluster: str = f"{OLD}:16+{NEW}:16", *, stack: str = "megatron-core", batch: int = 64) -> Question:
    training = TRAINING.model_copy(update={"global_batch": batch})
    model = catalog.load_model("llama3.2-1b")
    question = complete_question(model, resolve_cluster(cluster), training, stack=stack)
    assert question.has_pools
    return question


def replicas(question: Question, text: str) -> Layout:
    layout = parse_layout(text)
    order = "tp-cp-pp-dp" if layout.pp > 1 else layout.order
    return in_pools(question, layout.model_copy(update={"order": order}))


def ends_of(rng: random.Random, pools: int) -> list[Finish]:
    """Rising functions: so long a microbatch, after so long, with a step every third."""
    if rng.random() < 0.2:
        return [float] * pools
    numbers = [(rng.uniform(0, 5), rng.uniform(0.3, 3), rng.choice([0, 1])) for _ in range(pools)]
    return [lambda n, own=own: own[0] + own[1] * n + own[2] * (n // 3) for own in numbers]  # type: ignore[misc]


def least_end(ends: Sequence[Finish], counts: Sequence[int], microbatches: int, least: int) -> float:
    each = product(range(least, microbatches + 1), repeat=len(ends))
    enough = (most for most in each if np.dot(most, counts) >= microbatches)
    return min(max(end(own) for end, own in zip(ends, most, strict=True)) for most in enough)


def test_no_way_to_share_microbatches_ends_sooner() -> None:
    rng = random.Random(1)
    for _ in range(300):
        counts = [rng.randint(1, 3) for _ in range(rng.choice([1, 2, 3]))]
        ends, least = ends_of(rng, len(counts)), rng.choice([1, 1, 2])
        microbatches = least * sum(counts) + rng.randint(0, 9)
        found = shared(ends, counts, microbatches, least)
        assert [len(own) for own in found] == counts
        assert sum(map(sum, found)) == microbatches
        assert min(map(min, found)) >= least
        last = max(end(max(own)) for end, own in zip(ends, found, strict=True))
        assert last == pytest.approx(least_end(ends, counts, microbatches, least))


@pytest.mark.parametrize("text", ["tp2 pp1 zero1", "tp2 pp2 zero0", "tp4 pp2 zero1 mbs2 sp", "tp1 pp4 zero1"])
@pytest.mark.parametrize("stack", ["megatron-core", "fsdp"])
def test_replicas_in_equal_pools_cost_what_they_do_on_one_cluster(text: str, stack: str) -> None:
    question = mixed(f"{OLD}:16+{OLD}:16", stack=stack)
    layout = replicas(question, text)
    columns = LayoutColumns.of([layout])
    whole = complete_question(question.model, resolve_cluster(OLD, 32), question.training, stack=stack)
    alone = stage_costs(whole, columns)
    for pool in replica_terms(question, columns):
        costs = costs_of(pool)
        for field in fields(alone):
            there, here = getattr(costs, field.name), getattr(alone, field.name)
            np.testing.assert_allclose(there, here, rtol=1e-12, err_msg=field.name)
    equal = estimate(question, layout)
    assert equal.step_seconds == pytest.approx(
        estimate(whole, layout.model_copy(update={"replicas": ()})).step_seconds
    )
    assert {len(set(pool.microbatches)) for pool in equal.replicas} == {1}


@pytest.mark.parametrize("text", ["tp2 pp1 zero1", "tp2 pp2 zero0", "tp4 pp2 zero1 sp", "tp8 pp2 zero1"])
def test_a_step_is_that_of_the_best_shares(text: str) -> None:
    question = mixed()
    layout = replicas(question, text)
    priced = estimate(question, layout)
    placed = place_layout(layout, question)
    pipelines = [
        placed.pipeline(costs_of(own)) for own in replica_terms(question, LayoutColumns.of([layout]))
    ]
    ends = [
        lambda n, one=one: float(replace(one, microbatches=n).step_seconds(placed.blocks))
        for one in pipelines
    ]
    counts = [len(pool.microbatches) for pool in priced.replicas]
    assert priced.step_seconds == pytest.approx(least_end(ends, counts, 64, layout.pp), rel=1e-12)
    assert sum(sum(pool.microbatches) for pool in priced.replicas) == 64
    assert priced.step_seconds == max(pool.step_seconds for pool in priced.replicas)
    assert priced.time.total == pytest.approx(priced.step_seconds)
    old, new = priced.replicas
    assert min(new.microbatches) > max(old.microbatches)
    peak = sum(pool.cluster.num_gpus * pool.cluster.gpu.peak["bf16"] for pool in question.pools)
    useful = model_flops(question.model, question.training, layout.tp)
    assert priced.mfu == pytest.approx(useful / (priced.step_seconds * peak))


def test_unequal_shares_beat_equal_ones_and_a_slow_link_shows() -> None:
    question = mixed()
    layout = replicas(question, "tp2 pp1 zero1")
    priced = estimate(question, layout)
    alike = mixed(f"{OLD}:16+{OLD}:16")  # where the slower pool takes half of the microbatches
    assert priced.step_seconds < 0.75 * estimate(alike, replicas(alike, "tp2 pp1 zero1")).step_seconds
    link = question.pool_link.faster(0.01)
    far = complete_question(
        question.model, question.mixed.model_copy(update={"between": link}), question.training
    )
    assert estimate(far, layout).time["dp_comm"] > 10 * priced.time["dp_comm"]
    assert estimate(far, layout).time["compute"] <= priced.time["compute"]


def test_what_happens_once_a_step_lasts_as_long_everywhere() -> None:
    question = mixed()
    terms = replica_terms(question, LayoutColumns.of([replicas(question, "tp2 pp2 zero1")]))
    for name in ONCE_A_STEP:
        old, new = (getattr(costs_of(pool), name) for pool in terms)
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("text", ["tp2 pp1 zero1", "tp2 pp2 zero0", "tp1 pp4 zero1"])
def test_a_pool_whose_drivers_leave_no_memory_fits_nothing(text: str) -> None:
    """Whatever the other holds; nor does a pipeline over both, nor its search."""
    question = mixed()
    small = question.mixed.pools[0].gpu.model_copy(update={"memory": 1e9})
    pools = tuple(
        pool.model_copy(update={"gpu": small} if not nth else {})
        for nth, pool in enumerate(question.mixed.pools)
    )
    cluster = question.mixed.model_copy(update={"pools": pools})
    question = complete_question(question.model, cluster, question.training, stack="megatron-core")
    priced = estimate(question, replicas(question, text))
    assert fullest_pool(priced.replicas).pool == OLD
    assert (priced.fits, priced.memory_limit, priced.verdict) == (False, 0.0, "does not fit")
    assert priced.fits_probability == 0.0
    across = parse_layout("pp2 tp8 dp2 mbs1").model_copy(update={"pools": (NEW, OLD)})
    assert not estimate(question, across).fits


def test_memory_is_each_pools_own() -> None:
    question = mixed("dgx-a100-40gb:16+hgx-h200:16", batch=256)
    priced = estimate(question, replicas(question, "tp1 pp2 zero1 mbs2"))
    small, large = priced.replicas
    assert small.memory_limit < large.memory_limit
    assert priced.memory_limit == small.memory_limit == priced.rank_limits[0]
    assert priced.peak_bytes == small.peak_bytes
    below = 0.9 * large.peak_bytes
    assert priced.within(below).peak_bytes == max(small.peak_bytes, large.peak_bytes)
    assert not priced.within(below).fits
    assert [pool.memory_limit for pool in priced.within(below).replicas] == [
        min(below, own) for own in (small.memory_limit, large.memory_limit)
    ]


def test_replicas_must_fill_the_pools_and_have_work() -> None:
    question = mixed()
    layout = replicas(question, "tp2 pp1 zero1")
    with pytest.raises(InputError, match="has 8 microbatches of 64 sequences for 16 replicas, each"):
        estimate(question, layout.model_copy(update={"mbs": 8}))
    uneven = (OLD, *layout.replicas[:-1])
    with pytest.raises(InputError, match="their GPUs hold"):
        estimate(question, layout.model_copy(update={"replicas": uneven}))
