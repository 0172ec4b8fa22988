"""`plan --serve`, `serve` and `plot cache`: rows of tables on every GPU, what they hit, and how long a batch takes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from cost_models.errors import InfeasibleError, InputError
from cost_models.files.catalog import load_profile
from cost_models.specs.recommender.constants import TableRates
from planner.serving import load_serving_plan, rows_on_host

MODEL = """\
kind: recommender
name: ads
tables:
  - {name: users, rows: 200000000, width: 64, zipf: 0.9}
  - {name: items, rows: 40000000, width: 64, pooling: 20, zipf: 1.1}
  - {name: words, rows: 1000000, width: 64, count: 8, pooling: 10, zipf: 1.2}
bottom_mlp: [512, 64]
top_mlp: [1024, 256, 1]
"""


TABLE = {"row_bytes": 64.0, "efficiency": 0.5}


@pytest.fixture
def model(tmp_path) -> str:
    path = tmp_path / "ads.yaml"
    path.write_text(MODEL)
    return str(path)


def test_the_smallest_cache_with_a_share_of_hits_has_it(model) -> None:
    asked = mw.plan_cache(model, "dgx-h100", gpus=1, hits="95%").plan
    assert asked.hits == pytest.approx(0.95, abs=1e-6)
    again = mw.plan_cache(model, "dgx-h100", gpus=1, cache=asked.cache_bytes).plan
    assert again.cached_rows == asked.cached_rows
    assert mw.plan_cache(model, "dgx-h100", gpus=1, cache=0.98 * asked.cache_bytes).plan.hits < 0.95


def test_latency_is_of_its_parts_and_falls_with_the_cache(model) -> None:
    small, large = (mw.plan_cache(model, "dgx-h100", gpus=1, cache=size) for size in ("100MiB", "10GiB"))
    for answer in (small, large):
        for one in answer.batches:
            parts = one["launch_seconds"] + one["cache_seconds"] + one["host_seconds"] + one["drive_seconds"]
            assert one["latency_seconds"] == pytest.approx(parts)
    assert all(
        few["latency_seconds"] > many["latency_seconds"]
        for few, many in zip(small.batches, large.batches, strict=True)
    )
    lru = mw.plan_cache(model, "dgx-h100", gpus=1, cache="100MiB", policy="lru")
    assert lru.plan.hits < small.plan.hits


def test_rates_are_those_of_the_cluster_and_launches_those_of_our_lookups(model) -> None:
    """The catalogue's for an H100, whose lookups are launched together; those of a CPU's profile, or as measured."""
    far = mw.plan_cache(model, "dgx-h100", gpus=1, cache="1GiB")
    assert far.record()["serving"]["embedding_profile"] == "h100"
    assert all(one["launch_seconds"] == 0 for one in far.batches)
    asked: dict[str, Any] = {"gpus": 1, "cache": "100MiB", "host_memory": "200GiB"}
    near = mw.plan_cache(model, "local", **asked)
    profile = load_profile("datasheet-cpu")
    each = near.batches[0]["launch_seconds"] / 10
    assert each == pytest.approx(near.plan.question.launch_seconds)
    assert 10 < each / profile.kernel_seconds < 100
    assert "launch" in str(near.text[-3])
    point = {"row_bytes": 64.0, "launch_seconds": 1e-4, "hit_seconds": 1e-8, "miss_seconds": 1e-7}
    rates = TableRates.model_validate(
        {"lookup": (TABLE,), "sums": (TABLE,), "changes": {}, "served": {"hottest": (point,)}}
    )
    measured = profile.model_copy(update={"tables": rates})
    (one, *_) = mw.plan_cache(model, "local", **asked, profile=measured, batch=1000).batches
    ids = 1000 * (1 + 20 + 8 * 10)
    assert one["launch_seconds"] == pytest.approx(10 * 1e-4)
    assert one["host_seconds"] == pytest.approx(1e-7 * one["host_rows"])
    assert one["cache_seconds"] == pytest.approx(1e-8 * (ids - one["host_rows"]))


def test_tables_beyond_host_memory_come_from_drives(model) -> None:
    small: dict[str, Any] = {"gpus": 1, "cache": "1GiB", "host_memory": "20GiB"}
    with pytest.raises(InfeasibleError, match="do not fit host memory"):
        mw.plan_cache(model, "dgx-h100", **small)
    answer = mw.plan_cache(model, "dgx-h100", **small, drive_rate="7GB/s")
    assert all(one["drive_seconds"] > 0 for one in answer.batches)
    held = rows_on_host(answer.plan.question)
    tables = answer.plan.question.tables
    assert tables.counts @ (held * tables.vector_bytes) == pytest.approx(18 * 2**30, rel=1e-3)
    assert (held >= answer.plan.rows).all()


def test_a_recorded_histogram_is_read_beside_the_model(tmp_path) -> None:
    np.save(tmp_path / "clicks.npy", np.array([1, 0, 7, 2]))
    (tmp_path / "small.yaml").write_text(
        "kind: recommender\ntables: [{name: a, rows: 4, width: 4, histogram: clicks.npy}]\n"
    )
    answer = mw.plan_cache(tmp_path / "small.yaml", "dgx-h100", gpus=1, cache=2 * 32)
    assert answer.plan.cached_rows == (2,)
    assert answer.plan.hits == pytest.approx(0.9)


def test_a_cut_or_wrong_plan_is_refused(model, tmp_path) -> None:
    path = tmp_path / "serving.yaml"
    mw.plan_cache(model, "dgx-h100", gpus=1, cache="1GiB").save(path)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        load_serving_plan(path)
    path.write_text(whole.replace("cached_rows:\n- ", "cached_rows:\n- 9999"))
    with pytest.raises(InputError, match="not rows of its tables"):
        load_serving_plan(path)


SMALL_MODEL = """\
kind: recommender
name: shop
tables:
  - {name: users, rows: 400000, width: 8, zipf: 0.9}
  - {name: items, rows: 80000, width: 8, pooling: 5, zipf: 1.1, count: 2}
bottom_mlp: [8]
top_mlp: [8, 1]
"""


@pytest.fixture
def plan(tmp_path) -> str:
    (tmp_path / "shop.yaml").write_text(SMALL_MODEL)
    path = tmp_path / "serving.yaml"
    mw.plan_cache(tmp_path / "shop.yaml", "dgx-h100", gpus=1, cache="500KiB", batch="16,256").save(path)
    return str(path)


def test_hits_and_latency_stand_beside_the_plan(meshwright, plan) -> None:
    asked = ("serve", plan, "--synthetic", "20000", "--scale", "0.1")
    code, out, err = meshwright(*asked, "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert [one["rows"] for one in record["tables"]] == [40_000, 8_000]
    assert record["served"]["measured_hits"] == pytest.approx(record["served"]["predicted_hits"], abs=0.01)
    for one in record["batches"]:
        assert one["measured_host_rows"] == pytest.approx(one["host_rows"], rel=0.05)
        assert 0 < one["latency_seconds"] < 1
        assert one["measured_samples_per_second"] > 0
    assert [one["p99_seconds"] is None for one in record["batches"]] == [False, True]
    text = meshwright.done(*asked[:2], "--synthetic", "500", "--scale", "0.1", "--batch", "16").out
    assert "shop served on cpu: 3 tables of 1.7 MiB, 0.1 of the plan's rows" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_requests_of_a_file_get_their_vectors(meshwright, plan, tmp_path) -> None:
    lines = ['{"users": 0, "items.0": [3, 3, 79999]}', "", '{"users": [399999], "items.1": 2}', "{}"]
    (tmp_path / "asked.jsonl").write_text("\n".join(lines))
    asked = ("serve", plan, "--requests", str(tmp_path / "asked.jsonl"), "-o", str(tmp_path / "found.npz"))
    err = meshwright.done(*asked).err
    assert "found.npz" in err
    found = np.load(tmp_path / "found.npz")
    assert {name: of.shape for name, of in found.items()} == dict.fromkeys(
        ("users", "items.0", "items.1"), (3, 8)
    )
    assert not found["users"][2].any()
    assert found["users"][:2].any(axis=1).all()
    (tmp_path / "one.jsonl").write_text('{"items.0": [3]}\n{"items.0": 79999}')
    meshwright(*asked[:3], str(tmp_path / "one.jsonl"), *asked[4:])
    each = np.load(tmp_path / "found.npz")["items.0"]
    np.testing.assert_allclose(found["items.0"][0], 2 * each[0] + each[1], rtol=1e-5)


def test_what_is_wrong_is_said_with_its_place(meshwright, plan, tmp_path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text('{"users": 400000}\n{"user": 1}\n[1]\n{"users": 1.5}\n{"users": "x\n' + "[" * 5000)
    code, out, err = meshwright("serve", plan, "--requests", str(path))
    assert (code, out) == (2, "")
    for said in (
        "asked.jsonl:1: `users`: id 400000 is not between 0 and 399999",
        "asked.jsonl:2: there is no table `user`; did you mean `users`?",
        "asked.jsonl:3: it is no object of tables and their ids",
        "asked.jsonl:4: `users`: ids are whole numbers, one or a list of them",
        "asked.jsonl:5: not valid JSON",
        "asked.jsonl:6: ",
    ):
        assert said in err
    wrong = ("--scale", "2", "--requests", str(path), "--synthetic", "5", "--weights", str(tmp_path))
    code, _, err = meshwright("serve", plan, *wrong)
    assert code == 2
    assert err.count("  --") == 3
    code, _, err = meshwright("serve", plan, "--batch", "1000000000")
    assert code == 2
    assert "error: a batch of 1000000000 should need" in err
    code, _, err = meshwright("serve", plan, "-o", str(tmp_path / "a.npz"))
    assert code == 2
    assert "-o writes the vectors of requests, and there are none" in err
    (tmp_path / "other.yaml").write_text(SMALL_MODEL)
    code, _, err = meshwright("serve", str(tmp_path / "other.yaml"))
    assert code == 2
    assert "serving-plan" in err
