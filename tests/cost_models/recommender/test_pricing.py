"""Prices of sharding options, each formula worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asked import asked, option_of

from cost_models.errors import InputError
from cost_models.files.catalog import load_profile, load_recommender, load_stack
from cost_models.files.loading import resolve_cluster
from cost_models.recommender.options import STAGES, PricedOptions, option_columns
from cost_models.recommender.prices import (
    estimate,
    fixed_seconds,
    launch_seconds,
    links_of,
    priced_options,
    reduction_seconds,
)
from cost_models.recommender.question import RecommenderQuestion, complete_recommender
from cost_models.specs.recommender.constants import RecommenderStack
from cost_models.specs.recommender.model import TableSpec
from cost_models.specs.recommender.sharding import Option, parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining

B, D, E, R, P = 8192, 128, 2, 10**6, 3.0
NVLINK = 450e9 * 0.75
"""Bytes/s that collectives reach on the links of an H100 by the datasheet's constants."""
NETWORK = 50e9 * 0.80
TABLE = TableSpec(name="t", rows=R, width=D, pooling=P)
FORWARD, BACKWARD = STAGES.index(STAGES.forward_exchange), STAGES.index(STAGES.backward_exchange)
UPDATE = STAGES.index(STAGES.update)


def price(option: str, question: RecommenderQuestion | None = None) -> PricedOptions:
    """The prices of one option of the first class."""
    return priced_options(question or asked(TABLE), [(0, option_of(option))])


def test_whole_tables_travel_in_an_all_to_all_of_seven_eighths_of_their_vectors() -> None:
    seconds = 7 / 8 * B * D * E / NVLINK
    one = price("whole")
    assert one.shard_seconds[0, [FORWARD, BACKWARD]] == pytest.approx(seconds)
    assert not one.everywhere_seconds[0].any()
    assert price("column4").shard_seconds[0, FORWARD] == pytest.approx(seconds / 4)


def test_ids_and_lengths_travel_to_the_holder() -> None:
    one = price("whole")
    assert one.shard_seconds[0, 0] == pytest.approx(7 / 8 * (B * P * 8 + B * 4) / NVLINK)
    facts = RecommenderStack(exchanges_ids=False)
    assert price("whole", asked(TABLE, facts=facts)).shard_seconds[0, 0] == 0


def test_lengths_of_one_id_a_sample_travel_where_a_stack_sends_all() -> None:
    one = asked(TABLE.model_copy(update={"pooling": 1.0}))
    every = asked(TABLE.model_copy(update={"pooling": 1.0}), facts=RecommenderStack(sends_all_lengths=True))
    ids, lengths = (7 / 8 * B * size / NVLINK for size in (8, 4))
    assert price("whole", one).shard_seconds[0, 0] == pytest.approx(ids)
    assert price("whole", every).shard_seconds[0, 0] == pytest.approx(ids + lengths)


def test_rows_on_all_gpus_travel_in_a_reduce_scatter_of_w_times_as_much() -> None:
    row = price("row")
    assert row.everywhere_seconds[0, FORWARD] == pytest.approx(7 / 8 * B * D * E / NVLINK)
    assert row.everywhere_seconds[0, FORWARD] * 8 == pytest.approx(
        8 * price("whole").shard_seconds[0, FORWARD]
    )
    assert row.shards[0] == 0
    assert not row.shard_seconds.any()


def test_between_nodes_the_network_sets_the_pace() -> None:
    two = asked(TABLE, nodes=2)
    assert price("whole", two).shard_seconds[0, FORWARD] == pytest.approx(8 / 16 * B * D * E / NETWORK)
    summed = 7 / 8 * B * D * E / NVLINK + 1 / 2 * B / 8 * D * E / NETWORK
    assert price("node-row", two).shard_seconds[0, FORWARD] == pytest.approx(summed)


def test_copies_send_nothing_forward_and_all_reduce_their_gradients() -> None:
    question = asked(TABLE, facts=RecommenderStack(copies_reduce="all"))
    copy = price("copy", question)
    assert copy.everywhere_seconds[0, FORWARD] == 0
    sums = _sums(B * P / 8)
    assert copy.everywhere_seconds[0, BACKWARD] == pytest.approx(2 * 7 / 8 * R * D * E / NVLINK + sums)


def _sums(ids: float) -> float:
    """Seconds of adding up the gradients of so many ids: sorted, then read as rows."""
    return ids * 100 / (3350e9 * 0.8) + ids * D * E / (3350e9 * 0.6 * D * E / (D * E + 64))


def test_copies_may_gather_the_rows_that_were_touched() -> None:
    ids = B * P / 8
    touched = R * (1 - (1 - 1 / R) ** ids)
    question = asked(TABLE, facts=RecommenderStack(copies_reduce="touched"))
    by_hand = 7 / 8 * 8 * touched * (D * E + 8) / NVLINK + _sums(ids) + _sums(8 * touched)
    copy = price("copy", question).everywhere_seconds[0]
    assert copy[BACKWARD] == pytest.approx(by_hand)
    rows = (
        R * (1 - (1 - 1 / R) ** (8 * ids)) * 2 * 4 * D
    )  # that are updated; their gradients are added up before
    assert copy[UPDATE] == pytest.approx(rows / (3350e9 * 0.6 * 512 / 576))


def test_hot_rows_take_their_share_of_the_lookups_and_vectors() -> None:
    skewed = asked(TABLE.model_copy(update={"histogram": ((10**4, 0.5), (R - 10**4, 0.5))}))
    hot, whole = price("hot(0.01)+whole", skewed), price("whole", skewed)
    assert hot.shard_seconds[0, FORWARD] == pytest.approx((1 - 0.5**3) * whole.shard_seconds[0, FORWARD])
    assert hot.everywhere_seconds[0, BACKWARD] > 0
    assert hot.shard_seconds[0, 1] < whole.shard_seconds[0, 1]
    weights = (R - 10**4) * D * 4
    assert whole.shard_bytes[0] - hot.shard_bytes[0] == pytest.approx(
        R * D * 4 - weights + B * P * 0.5 * 8 * 2
    )


def test_lookups_move_rows_at_the_rate_that_their_length_leaves() -> None:
    rate = 3350e9 * 0.8
    rows = B * P * D * 4 / (rate * 512 / (512 + 64))
    distinct = R * (1 - (1 - 1 / R) ** (B * P))
    again = B * P - distinct  # the cache of 50 MiB holds all rows that the batch meets
    rows -= again * (1 - 1 / 2.5) * D * 4 / (rate * 512 / 576)
    assert price("whole").shard_seconds[0, 1] == pytest.approx(rows + (B * D * E + B * P * 8) / rate)


def test_rows_of_the_host_come_over_its_link_but_for_what_is_cached() -> None:
    skewed = asked(TABLE.model_copy(update={"histogram": ((10**4, 0.5), (R - 10**4, 0.5))}))
    away = price("whole/host", skewed).shard_seconds[0, 1]
    cached = price("whole/cached(0.01)", skewed).shard_seconds[0, 1]
    link = min(skewed.cluster.gpu.host_bandwidth or 0, 614.4e9 / 8) * 0.7
    assert away == pytest.approx(B * P * D * 4 / link, rel=0.01)
    assert cached == pytest.approx(away / 2, rel=0.05)


@pytest.mark.parametrize(
    ("optimizer", "each_row"), [("sgd", 0), ("rowwise-adagrad", 4), ("adagrad", 4 * D), ("adam", 8 * D)]
)
def test_a_row_has_its_weights_and_states(optimizer: Any, each_row: int) -> None:
    sizes = {name: price("whole", asked(TABLE, optimizer=name)).shard_bytes[0] for name in ("sgd", optimizer)}
    assert sizes[optimizer] - sizes["sgd"] == pytest.approx(R * each_row)


TWO = (TABLE, TableSpec(name="u", rows=5000, width=64, count=3, zipf=1.05))
SHARDINGS = [
    "table:0=whole@3 table:1=copy table:2=row table:3=whole@1",
    "table:0=column4@0,5,6,7 table:1-2=whole@1,1 table:3=hot(0.01)+row",
    "table:0=node-row@1 table:1=hot(0.1)+whole@9 table:2=row/host table:3=whole@3/cached(0.1)",
]


@pytest.mark.parametrize("text", SHARDINGS)
def test_an_estimate_adds_up_the_prices(text: str) -> None:
    question = asked(*TWO, nodes=2)
    sharding = parse_sharding(text, 4)
    found = estimate(question, sharding)
    prices = priced_options(question, [(0, Option("whole"))])
    loads, size = np.zeros((16, len(STAGES))), np.zeros((16, len(prices.fixed_bytes)))
    hosts = np.zeros(2)
    for which, placed in zip((0, 1, 1, 1), sharding.tables, strict=True):
        one = priced_options(question, [(which, placed.option)])
        loads, size = loads + one.everywhere_seconds[0], size + one.everywhere_bytes[0]
        hosts = hosts + one.everywhere_host_bytes[0]
        for at in placed.at:
            node = placed.option.form == "node-row"
            holders = range(8 * at, 8 * at + 8) if node else (at,)
            hosts[at if node else at // 8] += one.shard_host_bytes[0]
            for gpu in holders:
                loads[gpu] += one.shard_seconds[0]
                size[gpu] += one.shard_bytes[0]
    assert found.loads == pytest.approx(loads)
    assert found.device_bytes == pytest.approx((size + prices.fixed_bytes).max(axis=1))
    assert found.host_bytes == pytest.approx(hosts)
    stages = np.maximum(loads.max(axis=0), prices.stage_floors) + prices.fixed
    assert found.step_seconds == pytest.approx(stages.sum())
    assert found.stages.total == pytest.approx(sum(found.stages.values()))
    assert sum(found.device_parts.values()) == pytest.approx(found.device_bytes)
    assert found.busiest_sum_seconds <= found.step_seconds + 1e-12
    assert 0 < found.mfu < 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("table:0=whole@8 table:1-3=row", "GPU 8"),
        ("table:0=node-row@1 table:1-3=row", "node 1"),
        ("table:0=column3@0,1,2 table:1-3=row", "3 slices"),
    ],
)
def test_a_sharding_of_other_hardware_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        estimate(asked(*TWO), parse_sharding(text, 4))


def test_a_cpu_has_one_memory_and_no_context() -> None:
    question = asked(TABLE, cluster="local", gpus=2)
    assert all(option.tier == "device" for option in priced_options(question).options)
    parts = estimate(question, parse_sharding("table:0=whole@0", 1)).device_parts
    assert not parts["workspace"].any()
    assert not parts["communicators"].any()
    assert estimate(asked(TABLE), parse_sharding("table:0=whole@0", 1)).device_parts["workspace"].all()


def test_the_dense_network_is_summed_and_updated_in_the_update() -> None:
    behind = asked(TABLE, facts=RecommenderStack(hides_reduction=True))
    after = asked(TABLE, facts=RecommenderStack(hides_reduction=False))
    (hidden, _), (shown, beside) = (fixed_seconds(one, links_of(one)) for one in (behind, after))
    stage, dense = STAGES.index(STAGES.update), STAGES.index(STAGES.dense)
    assert shown[stage] - hidden[stage] == pytest.approx(reduction_seconds(after, links_of(after)))
    assert shown[dense] == hidden[dense]
    assert beside[stage] == 0


def test_exchanges_of_cpus_start_as_slowly_as_the_hardware_profile_says() -> None:
    """Of ids lengths, then values; sums of the dense network are scattered, then gathered."""
    of, start, fixed = asked(TABLE, cluster="local", gpus=2), load_profile("datasheet-cpu"), []
    for seconds in (3e-4, 1e-3):
        profile = start.model_copy(update={"collective_seconds": seconds})
        question = complete_recommender(of.model, of.cluster, of.training, profile=profile)
        fixed.append(fixed_seconds(question, links_of(question))[0])
    assert (fixed[1] - fixed[0]) / 7e-4 == pytest.approx([2, 0, 1, 0, 1, 2])


def test_every_operation_of_a_table_takes_the_host_a_launch() -> None:
    question = complete_recommender(
        load_recommender("dlrm-tiny"), resolve_cluster("local", 2), RecommenderTraining(global_batch=2)
    )
    pairs = [(0, option_of(word)) for word in ("whole", "row", "copy", "hot(0.1)+whole")]
    shard, everywhere = launch_seconds(question, option_columns(question, pairs))
    busy = shard.sum(axis=1) + everywhere.sum(axis=1)
    assert (busy > 20 * question.hardware.kernel_seconds).all()
    assert busy[0] < busy[1] < busy[3]
    assert not shard[2].any() or not priced_options(question, pairs).shard_seconds[2].any()
    plain = replace(question, stack=load_stack("torchrec"))
    assert not launch_seconds(plain, option_columns(plain, pairs))[0].any()
