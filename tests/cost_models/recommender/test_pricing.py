"""Prices of recommender steps: tables, precisions, hosts, accesses, and published ones."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from asked import asked, option_of

import meshwright as mw
from benchmarks.recommenders.planners.hugectr import hugectr_options
from benchmarks.recommenders.planners.torchrec import TorchRecTopology, torchrec_options
from cost_models.compute.gemm import device_of
from cost_models.defaults import complete_question
from cost_models.errors import DoesNotFitError, InputError
from cost_models.files import catalog
from cost_models.files.catalog import load_profile, load_recommender, load_stack
from cost_models.files.loading import resolve_cluster
from cost_models.measured.validation.recommenders import RecommenderPrediction, predict, read_runs, scores
from cost_models.recommender.dense import dense_device
from cost_models.recommender.options import STAGES, PricedOptions, default_options, option_columns
from cost_models.recommender.prices import (
    estimate,
    fixed_seconds,
    launch_seconds,
    links_of,
    priced_options,
    reduction_seconds,
)
from cost_models.recommender.question import RecommenderQuestion, complete_recommender
from cost_models.specs.cluster import FULL, ClusterSpec, Precision
from cost_models.specs.recommender.constants import RecommenderStack
from cost_models.specs.recommender.model import TableSpec
from cost_models.specs.recommender.sharding import Option, parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.training import TrainingSpec

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


PRECISIONS: tuple[Precision, ...] = get_args(Precision)
STACKS = [name for name in catalog.names("stacks") if catalog.load_stack(name).recommender]


def cluster_with(gpu: str) -> ClusterSpec:
    return catalog.load_cluster("dgx-h100").model_copy(update={"gpu": catalog.load_gpu(gpu)})


@pytest.mark.parametrize("gpu", catalog.names("gpus"))
def test_both_families_refuse_what_a_gpu_has_no_units_for(gpu: str) -> None:
    cluster = cluster_with(gpu)
    dlrm, gpt = catalog.load_recommender("dlrm-tiny"), catalog.load_model("gpt2-small")
    for precision in PRECISIONS:
        job = TrainingSpec(global_batch=8, sequence_length=128, precision=precision)
        transformer = complete_question(gpt, cluster, job)
        recommender = complete_recommender(
            dlrm, cluster, RecommenderTraining(global_batch=64, precision=precision)
        )
        if precision in cluster.gpu.peak:
            assert (
                device_of(transformer).peak == dense_device(recommender).peak == cluster.gpu.peak[precision]
            )
            assert (dense_device(recommender).element_bytes == 4) == (precision in FULL)
        else:
            for refused in (lambda: device_of(transformer), lambda: dense_device(recommender)):  # noqa: B023
                with pytest.raises(InputError, match=f"`{gpu}` has no {precision} matrix rate"):
                    refused()


def test_tf32_multiplies_faster_than_fp32_and_keeps_as_much() -> None:
    """Half the bf16 rate; activations and exchanges as in fp32."""
    job = {"gpus": 8, "global_batch": 64, "sequence": 1024}
    found = {
        precision: mw.estimate(
            "gpt2-xl", "dgx-a100-80gb", None, "dp8 mbs4 zero1", precision=precision, **job
        ).estimate
        for precision in ("fp32", "tf32", "bf16")
    }
    assert found["fp32"].step_seconds > found["tf32"].step_seconds > found["bf16"].step_seconds
    assert found["fp32"].peak_bytes == found["tf32"].peak_bytes
    shares = [
        mw.estimate(
            "dlrm", "dgx-a100-80gb", None, "table:0-25=row", gpus=8, global_batch=65536, precision=precision
        ).estimate.step_seconds
        for precision in ("fp32", "tf32", "bf16")
    ]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("stack", STACKS)
def test_tables_lie_on_hosts_where_the_stack_puts_them(stack: str) -> None:
    dlrm, cluster = catalog.load_recommender("dlrm"), cluster_with("a100-sxm-40gb")
    one = cluster.model_copy(update={"gpus_per_node": 1, "host_memory": 2**40})
    question = complete_recommender(dlrm, one, RecommenderTraining(global_batch=1024), stack=stack)
    hosted = any(option.tier == "host" for _, option in default_options(question))
    assert hosted == question.facts.host_tables
    sharding = parse_sharding("table:0-25=row/host", dlrm.num_tables)
    if hosted:
        estimate(question, sharding)
        return
    with pytest.raises(InputError, match="tables cannot be held so"):
        estimate(question, sharding)
    with pytest.raises(DoesNotFitError, match="do not fit 1 GPU together") as refused:
        mw.plan("dlrm", "dgx-a100-40gb", gpus=1, global_batch=1024, stack=stack)
    assert refused.value.hint == "they need 3 GPUs of this size or more"


WIDE_TABLE = TableSpec(name="t", rows=10**6, width=128, pooling=100.0)


def test_a_shard_costs_its_lookups_and_its_due() -> None:
    for option, lookups, slices in [
        ("whole", 4 * 100 + 60, 1),
        ("row4", 4 * 25 + 60, 4),
        ("row", 4 * 12.5 + 60, 8),
        ("column2", (400 + 60) / 2, 2),
    ]:
        found = hugectr_options(asked(WIDE_TABLE, batch=1024, optimizer="adagrad"), [(0, option_of(option))])
        cost = (found.shard_seconds + found.everywhere_seconds)[0]
        assert cost[STAGES.index(STAGES.lookup)] == pytest.approx(1024 * 128 * lookups)
        assert cost.sum() == cost.max()
        size = found.shard_bytes[0] + found.everywhere_bytes[0]
        assert size == pytest.approx(10**6 * 128 * 8 / slices)


def test_it_splits_rows_by_powers_of_two() -> None:
    assert [str(one) for one in hugectr_options(asked(WIDE_TABLE)).options] == [
        "whole",
        "row2",
        "row4",
        "row",
    ]


T0 = TableSpec(name="t0", rows=1_000_000, width=128, pooling=3.0)
T1 = TableSpec(name="t1", rows=1003, width=48)
T2 = TableSpec(name="t2", rows=5000, width=256, pooling=20.0)

TOLD = [  # table, option, nodes of 8, forward, exchange, backward, exchange back, device bytes, host bytes
    (T0, "whole", 2, 0.017623306, 0.3125, 0.035246612, 0.3125, 516390912, 0),
    (T0, "column2", 2, 0.0102507762, 0.15625, 0.0205015525, 0.15625, 258293760, 0),
    (T0, "row", 2, 0.00518407577, 0.3125, 0.0103681515, 0.323191019, 36206592, 0),
    (T0, "node-row", 2, 0.00601335779, 0.0455729167, 0.0120267156, 0.0562639353, 68218880, 0),
    (T0, "copy", 2, 0.00220291325, 0, 0.0044058265, 16.9550961, 512274432, 0),
    (T0, "whole/host", 2, 4.94003296, 0.3125, 9.88006592, 0.3125, 4390912, 512000000),
    (T0, "whole/cached(0.2)", 2, 0.771127096, 0.3125, 1.54225419, 0.3125, 113990912, 512000000),
    (T0, "column2/cached(0.2)", 2, 0.448533965, 0.15625, 0.897067931, 0.15625, 60693760, 256000000),
    (T0, "row/host", 2, 1.45316124, 0.3125, 2.90632248, 3.30932617, 4206592, 32000000),
    (T1, "whole", 2, 0.0058347432, 0.1171875, 0.0116694864, 0.1171875, 1830976, 0),
    (T1, "row", 2, 0.00173936587, 0.1171875, 0.00347873173, 0.121196632, 1589056, 0),
    (T1, "node-row", 2, 0.00184568407, 0.0170898438, 0.00369136815, 0.0210989758, 1605248, 0),
    (T1, "copy", 2, 0.000416767371, 0, 0.000833534743, 0.0063772355, 294976, 0),
    (T2, "row", 1, 0.0153268327, 0.00651041667, 0.0306536654, 0.0172014353, 4916224, 0),
    (T2, "column2", 1, 0.046405771, 0.00325520833, 0.0928115419, 0.00325520833, 5312512, 0),
    (T2, "node-row/cached(0.2)", 1, 0.670642388, 0.00651041667, 1.34128478, 0.474307673, 4408724, 640000),
    (T2, "copy", 2, 0.0230327764, 0, 0.0460655527, 0.169550961, 5726208, 0),
]  # fmt: skip


def test_prices_are_those_of_its_estimators() -> None:
    for table, option, nodes, told in [(*one[:3], one[3:]) for one in TOLD]:
        *milliseconds, size, host = told
        question = asked(table, nodes=nodes, batch=512 * 8 * nodes)
        found = torchrec_options(question, [(0, option_of(option))], TorchRecTopology())
        seconds = (found.shard_seconds + found.everywhere_seconds)[0]
        stages = (STAGES.lookup, STAGES.forward_exchange, STAGES.update, STAGES.backward_exchange)
        assert [seconds[STAGES.index(one)] * 1e3 for one in stages] == pytest.approx(milliseconds, rel=1e-7)
        assert seconds.sum() * 1e3 == pytest.approx(sum(milliseconds), rel=1e-7)
        assert found.shard_bytes[0] + found.everywhere_bytes[0] == size
        here = 8 if option.startswith(("row", "node-row")) else 1
        assert found.shard_host_bytes[0] + found.everywhere_host_bytes[0] == here * host
        assert not np.concatenate([found.fixed, found.stage_floors]).any()


def test_options_that_it_has_not_are_refused() -> None:
    with pytest.raises(InputError, match="TorchRec has no"):
        torchrec_options(asked(T0), [(0, option_of("hot(0.1)+row"))])
    skewed = asked(T0.model_copy(update={"zipf": 1.1}))
    assert not any(option.hot for option in torchrec_options(skewed).options)


@cache
def predictions() -> tuple[RecommenderPrediction, ...]:
    return tuple(map(predict, read_runs()))


TIMES = {  # median error of step times found, with room for a breath
    ("MLPerf HugeCTR", "h100-sxm"): (16, 0.07),
    ("HugeCTR 2.2", "v100-16gb"): (52, 0.07),
    ("OneFlow 0.2", "v100-16gb"): (67, 0.08),
    ("SparseOperationKit", "a100-sxm-80gb"): (8, 0.11),
    ("SparseOperationKit", "v100-32gb"): (8, 0.12),
}


def test_step_times_of_every_framework_stay_near_its_runs() -> None:
    found = {(one.framework, one.gpu): one for one in scores(predictions())}
    assert found.keys() == TIMES.keys()
    for key, (runs, most) in TIMES.items():
        assert found[key].runs == runs
        assert found[key].median_error <= most, key


def test_profiles_of_tables_say_how_far_off_their_runs_are() -> None:
    errors: dict[str, list[float]] = {}
    for one in predictions():
        if one.error is not None:
            errors.setdefault(one.run.question.embedding.name, []).append(abs(one.error))
    assert errors.keys() == {"a100", "h100", "v100"}
    for gpu, name in (("a100-sxm-80gb", "a100"), ("h100-sxm", "h100"), ("v100-16gb", "v100")):
        profile = catalog.embedding_profile_of(gpu)
        assert (profile.name, profile.validated_runs) == (name, len(errors[name]))
        assert profile.median_error == pytest.approx(statistics.median(errors[name]), abs=5e-4)


def test_memory_stays_near_its_runs_and_all_that_ran_out_are_caught() -> None:
    for one in scores(predictions()):
        if one.median_memory_error is not None:
            assert one.median_memory_error <= 0.03
    full = [one for one in predictions() if one.run.out_of_memory]
    assert len(full) == 8
    assert not any(one.estimate.fits for one in full)


@pytest.mark.parametrize(("gpus", "share"), [(8, 0.25), (128, 0.51)])
def test_exchanges_take_their_share_of_a_step(gpus: int, share: float) -> None:
    """NVIDIA's blog on EMBark: embedding communication in DLRM-DCNv2 on H100, give or take."""
    one = next(
        one
        for one in predictions()
        if one.run.framework == "MLPerf HugeCTR" and one.run.question.cluster.num_gpus == gpus
    )
    assert one.exchange_share == pytest.approx(share, abs=0.09)


NINE = [  # GPU, nodes, global batch, million samples/s of result logs, evaluations among them
    ("dgx-h100", 1, 55296, 12.77),
    ("dgx-h100", 1, 55296, 13.5),
    ("dgx-h100", 8, 135168, 37.5),
    ("dgx-h100", 8, 135168, 46.8),
    ("dgx-h100", 8, 135168, 49.1),
    ("dgx-h100", 16, 135168, 40.1),
    ("dgx-h100", 16, 135168, 62.5),
    ("dgx-h100", 16, 135168, 67.7),
    ("hgx-h200", 1, 55296, 15.1),
]


def test_mlperf_throughputs_of_five_rounds() -> None:
    errors = []
    for cluster, nodes, batch, rate in NINE:
        run = next(
            one
            for one in read_runs()
            if one.framework == "MLPerf HugeCTR" and one.question.cluster.nodes == nodes
        )
        node = catalog.load_cluster(cluster).model_copy(update={"nodes": nodes})
        question = dataclasses.replace(run.question, cluster=node)
        assert question.training.global_batch == batch
        seconds = predict(dataclasses.replace(run, question=question)).seconds
        errors.append(abs(seconds * rate * 1e6 / batch - 1))
    assert statistics.median(errors) <= 0.10


def test_hash_tables_of_width_5_need_15_gb_for_6_gib_of_vectors() -> None:
    """HugeCTR issue 348."""
    table = TableSpec(name="t", rows=round(6 * 2**30 / 20), width=5, hashed=True)
    question = dataclasses.replace(asked(table, gpus=1, batch=1), stack=catalog.load_stack("hugectr-2020"))
    prices = priced_options(question, [(0, Option("whole"))])
    size = prices.shard_bytes[0] + prices.everywhere_bytes[0] + prices.fixed_bytes
    assert size == pytest.approx(15e9, rel=0.03)
