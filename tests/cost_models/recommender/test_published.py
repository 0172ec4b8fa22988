"""Published runs of recommenders: predictions stay as near as they were found."""

from __future__ import annotations

import dataclasses
import statistics
from functools import cache

import pytest
from asked import asked

from cost_models.files import catalog
from cost_models.measured.validation.recommenders import RecommenderPrediction, predict, read_runs, scores
from cost_models.recommender.prices import priced_options
from cost_models.specs.recommender.model import TableSpec
from cost_models.specs.recommender.sharding import Option


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
