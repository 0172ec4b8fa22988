"""Several pools: pipelines through them, each rank at its pool's rates, and whole replicas that share microbatches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
from asking import ask, columns
from effort import few

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.estimate import fullest_pool
from cost_models.operators.flops import model_flops
from cost_models.pipeline.pools import (
    Finish,
    divide_microbatches,
    in_pools,
    pool_capacities,
    pool_terms,
    rank_terms,
    replica_terms,
)
from cost_models.pipeline.pricing import estimate, place_layout
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, costs_of, stage_costs
from cost_models.question import Question
from cost_models.specs.cluster import LinkSpec

JOB = {"global_batch": 256, "sequence_length": 2048}
LAYOUTS = ("tp8 pp8 dp2 zero1", "tp8 pp2 dp8 zero1 sp", "tp4 pp8 dp4 mbs2", "tp2 pp4 dp16 zero2")
STACKS = ("megatron-core", "megatron-2021", "megatron-deepspeed", "meshwright")


def mixed(cluster: str, *, model: str = "llama3-8b", stack: str = "megatron-core") -> Question:
    return ask(model, cluster, stack=stack, **JOB)


def rank_costs(question: Question, text: str) -> StageCosts:
    """A row for each rank; the pools follow one another as in the cluster."""
    x = columns(text)
    capacities = pool_capacities(question, (x.tp * x.replicas)[0])
    pool_R = np.repeat(np.arange(len(question.pools)), capacities)
    return costs_of(rank_terms(pool_terms(question, x), np.zeros(1, dtype=np.int64), pool_R))


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("model", ["llama3-8b", "gpt2-large"])  # the latter ties its embeddings
@pytest.mark.parametrize("text", LAYOUTS)
def test_equal_pools_cost_what_one_cluster_costs(text: str, model: str, stack: str) -> None:
    whole = ask(model, "dgx-a100-80gb", 128, stack=stack, **JOB)
    halves = rank_costs(mixed("dgx-a100-80gb:64+dgx-a100-80gb:64", model=model, stack=stack), text)
    alone = stage_costs(whole, columns(text))
    for name in COLUMNS:
        one = getattr(alone, name)[0]
        for rank in getattr(halves, name):
            np.testing.assert_allclose(rank, one, rtol=1e-12, err_msg=name)


def test_ranks_have_the_rates_and_the_memory_of_their_pool() -> None:
    question = mixed("dgx-a100-40gb:64+dgx-h100:64")
    layout = "tp8 pp4 dp4 mbs4 zero1"  # with less work in a pass hosts would set the pace of both
    costs = rank_costs(question, layout)
    for k, ranks in enumerate((slice(0, 2), slice(2, 4))):
        own = stage_costs(ask("llama3-8b", question.pool_names[k], 128, **JOB), columns(layout))
        for name in ("layer_forward", "layer_backward", "layer_optimizer", "memory_limit", "layer_static"):
            np.testing.assert_allclose(getattr(costs, name)[ranks][0], getattr(own, name)[0])
    assert costs.layer_forward[0] > 1.7 * costs.layer_forward[3]
    assert costs.memory_limit[0] < 0.6 * costs.memory_limit[3]


def slow_link(question: Question, bandwidth: float) -> Question:
    """The same pools a given link apart, bytes/s."""
    link = LinkSpec(kind="ethernet", bandwidth=f"{bandwidth} B/s", latency="50 us")  # type: ignore[arg-type]
    mixed = question.mixed.model_copy(update={"between": link})
    return complete_question(question.model, mixed, question.training, stack=question.stack)


def test_a_sender_that_waits_pays_its_own_boundary() -> None:
    question = mixed("dgx-a100-80gb:64+dgx-h100:64", stack="megatron-2021")
    assert not question.stack.overlap_pipeline_sends
    text = "tp8 pp4 dp4 zero1"
    near, far = rank_costs(question, text), rank_costs(slow_link(question, 1e9), text)
    added = far.stage_forward - near.stage_forward
    assert (added[[0, 2, 3]] == 0).all()
    assert added[1] > 0
    back = far.stage_backward - near.stage_backward
    assert (back[[0, 1, 3]] == 0).all()
    assert back[2] == pytest.approx(added[1])
    assert (far.p2p == 0).all()


def test_overlapped_transfers_wait_for_the_slowest_boundary() -> None:
    question = mixed("dgx-a100-80gb:64+dgx-h100:64")
    text = "tp8 pp4 dp4 zero1"
    near, far = rank_costs(question, text), rank_costs(slow_link(question, 1e9), text)
    assert len(set(far.p2p.tolist())) == 1
    tokens = JOB["sequence_length"] * question.model.hidden_size * 2
    assert far.p2p[0] >= tokens / 1e9 > near.p2p[0]
    np.testing.assert_array_equal(near.stage_forward, far.stage_forward)


def test_tied_gradients_cross_the_link() -> None:
    question = mixed("dgx-a100-80gb:64+dgx-h100:64", model="gpt2-large")
    near, far = (rank_costs(one, "tp4 pp2 dp16") for one in (question, slow_link(question, 1e9)))
    tied = question.model.vocab_size * question.model.hidden_size / 4 * 4
    assert far.embedding_sync[0] - near.embedding_sync[0] > 0.8 * tied / 1e9
    assert far.head_sync[-1] > near.head_sync[-1]


def test_an_estimate_has_its_parts_and_the_peaks_of_all_pools() -> None:
    question = mixed("dgx-a100-80gb:64+dgx-h100:64")
    layout = parse_layout("tp4 pp4 dp8 zero1 layers=4*2,12*2 pools=dgx-a100-80gb*2,dgx-h100*2")
    priced = estimate(question, layout)
    assert priced.time.total == pytest.approx(priced.step_seconds)
    peak = sum(pool.cluster.num_gpus * pool.cluster.gpu.peak["bf16"] for pool in question.pools)
    useful = model_flops(question.model, question.training, 4)
    assert priced.mfu == pytest.approx(useful / (priced.step_seconds * peak))
    assert len(priced.rank_memory) == len(priced.rank_limits) == 4
    even = estimate(question, layout.model_copy(update={"layers": (8,) * 4}))
    assert priced.step_seconds < even.step_seconds


def test_the_fullest_rank_is_full_of_its_own_memory() -> None:
    question = mixed("dgx-a100-40gb:64+hgx-h200:64")
    layout = parse_layout("tp4 pp2 dp16 zero1 layers=14,18 pools=dgx-a100-40gb,hgx-h200")
    priced = estimate(question, layout)
    assert priced.rank_memory[1].total > priced.rank_memory[0].total
    assert priced.fullest_rank == 0
    assert priced.memory_limit == priced.rank_limits[0]
    tight = priced.within(0.5 * priced.peak_bytes)
    assert not tight.fits
    assert tight.memory_limit == 0.5 * priced.peak_bytes
    assert tight.fullest_rank == 1


def test_ranks_and_replicas_must_fill_the_pools_and_have_work() -> None:
    question = with_replicas()
    layout = replicas(question, "tp2 pp1 zero1")
    uneven = (OLD, *layout.replicas[:-1])
    for asked, wrong, said in (
        (
            mixed("dgx-a100-80gb:64+dgx-h100:64"),
            parse_layout("tp8 pp3 dp4"),
            "3 ranks of 32 GPUs; the pools hold 4",
        ),
        (
            question,
            layout.model_copy(update={"mbs": 8}),
            "8 microbatches of 64 sequences for 16 replicas, each",
        ),
        (question, layout.model_copy(update={"replicas": uneven}), "their GPUs hold"),
    ):
        with pytest.raises(InputError, match=said):
            estimate(asked, wrong)


OLD, NEW = "dgx-a100-80gb", "dgx-h100"


def with_replicas(
    cluster: str = f"{OLD}:16+{NEW}:16", *, stack: str = "megatron-core", batch: int = 64
) -> Question:
    return ask("llama3.2-1b", cluster, stack=stack, global_batch=batch, sequence_length=2048)


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
        found = divide_microbatches(ends, counts, microbatches, least)
        assert [len(own) for own in found] == counts
        assert sum(map(sum, found)) == microbatches
        assert min(map(min, found)) >= least
        last = max(end(max(own)) for end, own in zip(ends, found, strict=True))
        assert last == pytest.approx(least_end(ends, counts, microbatches, least))


@pytest.mark.parametrize("text", ["tp2 pp1 zero1", "tp2 pp2 zero0", "tp4 pp2 zero1 mbs2 sp", "tp1 pp4 zero1"])
@pytest.mark.parametrize("stack", ["megatron-core", "fsdp"])
def test_replicas_in_equal_pools_cost_what_they_do_on_one_cluster(text: str, stack: str) -> None:
    question = with_replicas(f"{OLD}:16+{OLD}:16", stack=stack)
    layout = replicas(question, text)
    columns = LayoutColumns.of([layout])
    whole = ask("llama3.2-1b", OLD, 32, stack=stack, global_batch=64, sequence_length=2048)
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


@few(2)
@pytest.mark.parametrize("text", ["tp2 pp1 zero1", "tp2 pp2 zero0", "tp4 pp2 zero1 sp", "tp8 pp2 zero1"])
def test_a_step_is_that_of_the_best_shares(text: str) -> None:
    question = with_replicas()
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


def test_what_happens_once_a_step_lasts_as_long_everywhere() -> None:
    question = with_replicas()
    terms = replica_terms(question, LayoutColumns.of([replicas(question, "tp2 pp2 zero1")]))
    for name in (
        f"{part}_{work}" for part in ("layer", "embedding", "head", "rank") for work in ("sync", "optimizer")
    ):
        old, new = (getattr(costs_of(pool), name) for pool in terms)
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("text", ["tp2 pp1 zero1", "tp2 pp2 zero0", "tp1 pp4 zero1"])
def test_a_pool_whose_drivers_leave_no_memory_fits_nothing(text: str) -> None:
    """Whatever the other holds; nor does a pipeline over both, nor its search."""
    question = with_replicas()
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
    question = with_replicas("dgx-a100-40gb:16+hgx-h200:16", batch=256)
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
