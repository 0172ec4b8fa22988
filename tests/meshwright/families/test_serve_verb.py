"""`serve`: lookups of a planned cache, from the command line and from Python."""

from __future__ import annotations

import json

import numpy as np
import pytest

import meshwright as mw

MODEL = """\
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
    (tmp_path / "shop.yaml").write_text(MODEL)
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
    code, text, _ = meshwright(*asked[:2], "--synthetic", "500", "--scale", "0.1", "--batch", "16")
    assert code == 0
    assert "shop served on cpu: 3 tables of 1.7 MiB, 0.1 of the plan's rows" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_requests_of_a_file_get_their_vectors(meshwright, plan, tmp_path) -> None:
    lines = ['{"users": 0, "items.0": [3, 3, 79999]}', "", '{"users": [399999], "items.1": 2}', "{}"]
    (tmp_path / "asked.jsonl").write_text("\n".join(lines))
    asked = ("serve", plan, "--requests", str(tmp_path / "asked.jsonl"), "-o", str(tmp_path / "found.npz"))
    code, _, err = meshwright(*asked)
    assert code == 0
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
    (tmp_path / "other.yaml").write_text(MODEL)
    code, _, err = meshwright("serve", str(tmp_path / "other.yaml"))
    assert code == 2
    assert "serving-plan" in err
