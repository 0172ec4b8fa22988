"""The price of a pipeline through several pools: every rank at its own pool's rates, transfers over their own links."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.operators.flops import model_flops
from cost_models.pipeline.pools import pool_capacities, pool_terms, rank_terms
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, costs_of, stage_costs
from cost_models.question import Question
from cost_models.specs.cluster import LinkSpec
from cost_models.specs.training import TrainingSpec

TRAINING = TrainingSpec(global_batch=256, sequence_length=2048)
LAYOUTS = ("tp8 pp8 dp2 zero1", "tp8 pp2 dp8 zero1 sp", "tp4 pp8 dp4 mbs2", "tp2 pp4 dp16 zero2")
STACKS = ("megatron-core", "megatron-2021", "megatron-deepspeed", "meshwright")


def asked(cluster: str, *, model: str = "llama3-8b", stack: str = "megatron-core") -> Question:
    return complete_question(catalog.load_model(model), resolve_cluster(cluster), TRAINING, stack=stack)


def mixed(cluster: str, *, model: str = "llama3-8b", stack: str = "megatron-core") -> Question:
    question = asked(cluster, model=model, stack=stack)
    assert question.has_pools
    return question


def rank_costs(question: Question, text: str) -> StageCosts:
    """A row for each rank; the pools follow one another as in the cluster."""
    columns = LayoutColumns.of([parse_layout(text)])
    pool_R = np.repeat(
        np.arange(len(question.pools)), pool_capacities(question, (columns.tp * columns.replicas)[0])
    )
    return costs_of(rank_terms(pool_terms(question, columns), np.zeros(1, dtype=np.int64), pool_R))


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("model", ["llama3-8b", "gpt2-large"])  # the latter ties its embeddings
@pytest.mark.parametrize("text", LAYOUTS)
def test_equal_pools_cost_what_one_cluster_costs(text: str, model: str, stack: str) -> None:
    whole = complete_question(
        catalog.load_model(model), resolve_cluster("dgx-a100-80gb", 128), TRAINING, stack=stack
    )
    halves = rank_costs(mixed("dgx-a100-80gb:64+dgx-a100-80gb:64", model=model, stack=stack), text)
    alone = stage_costs(whole, LayoutColumns.of([parse_layout(text)]))
    for name in COLUMNS:
        one = getattr(alone, name)[0]
        for rank in getattr(halves, name):
            np.testing.assert_allclose(rank, one, rtol=1e-12, err_msg=name)


def test_ranks_have_the_rates_and_the_memory_of_their_pool() -> None:
    question = mixed("dgx-a100-40gb:64+dgx-h100:64")
    layout = "tp8 pp4 dp4 mbs4 zero1"  # with less work in a pass hosts would set the pace of both
    costs = rank_costs(question, layout)
    for k, ranks in enumerate((slice(0, 2), slice(2, 4))):
        own = stage_costs(
            complete_question(question.model, resolve_cluster(question.pool_names[k], 128), TRAINING),
            LayoutColumns.of([parse_layout(layout)]),
        )
        for name in ("layer_forward", "layer_backward", "layer_optimizer", "memory_limit", "layer_static"):
            np.testing.assert_allclose(getattr(costs, name)[ranks][0], getattr(own, name)[0])
    assert costs.layer_forward[0] > 1.7 * costs.layer_forward[3]
    assert costs.memory_limit[0] < 0.6 * costs.memory_limit[3]


def slow_link(question: Question, bandwidth: float) -> Question:
    """The same pools a given link apart, bytes/s."""
    link = LinkSpec(kind="ethernet", bandwidth=f"{bandwidth} B/s", latency="50 us")  # type: ignore[arg-type]
    linked = complete_question(
        question.model,
        question.mixed.model_copy(update={"between": link}),
        question.training,
        stack=question.stack,
    )
    assert linked.has_pools
    return linked


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
    tokens = TRAINING.sequence_length * question.model.hidden_size * 2
    assert far.p2p[0] >= tokens / 1e9 > near.p2p[0]
    np.testing.assert_array_equal(near.stage_forward, far.stage_forward)


def test_inside_a_node_of_a_pool_transfers_stay_there() -> None:
    question = mixed("dgx-a100-80gb:8+dgx-h100:8", stack="megatron-2021")
    costs = rank_costs(slow_link(question, 1e9), "tp2 pp8")
    inside, across = costs.stage_forward[0], costs.stage_forward[3]
    assert across > 10 * inside


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
    useful = model_flops(question.model, TRAINING, 4)
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


def test_the_least_known_profile_is_what_a_prediction_stands_on() -> None:
    weak = catalog.load_profile("datasheet-gpu")
    question = mixed("dgx-a100-80gb:64+dgx-h100:64")
    assert estimate(question, parse_layout("tp8 pp2 dp8 zero1")).trust.profile == "a100"
    guessed = complete_question(question.model, question.mixed, TRAINING, profile=weak)
    assert estimate(guessed, parse_layout("tp8 pp2 dp8 zero1")).trust.tier == "datasheet"


def test_ranks_must_fill_the_pools() -> None:
    question = mixed("dgx-a100-80gb:64+dgx-h100:64")
    with pytest.raises(InputError, match="has 3 ranks of 32 GPUs; the pools hold 4"):
        estimate(question, parse_layout("tp8 pp3 dp4"))
