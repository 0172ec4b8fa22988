"""`plan` over several clusters and over several pools: words, documents, files, Python, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from effort import some_of

import meshwright as mw
from meshwright.cli import main
from planner.plan import load_plan

CLUSTERS = "dgx-a100-80gb,dgx-h100"


@pytest.fixture(scope="module")
def best(tmp_path_factory) -> Path:
    """The best plan of both clusters."""
    path = tmp_path_factory.mktemp("offers") / "best.yaml"
    job: dict[str, Any] = {"global_batch": 64, "sequence": 1024, "tokens": "1B", "gpus": [4, 8]}
    fix = ("tp=1", "pp=1", "zero=1")
    planned = mw.plan("gpt2-small", CLUSTERS.split(","), **job, fix=fix, price=[1.5, 2.5])
    planned.save(path)
    alone = mw.plan("gpt2-small", "dgx-h100", **job, price=2.5, fix="tp=1")
    assert list(alone.to_frame().columns) == list(alone.rows[0])
    assert {"gpus", "objective"} <= set(alone.to_frame().columns)
    assert planned.to_frame()["cost"].is_monotonic_increasing
    assert len(planned.to_frame()) == 4
    assert all(one["certificate"]["gap"] == 0 for one in planned.record()["plans"])
    return path


def test_a_plan_of_several_clusters_replays_to_the_same_bytes(meshwright, best, tmp_path) -> None:
    again = tmp_path / "again.yaml"
    meshwright.done("plan", "--replay", str(best), "-o", str(again))
    assert again.read_bytes() == best.read_bytes()
    written = load_plan(best).objective
    assert written is not None
    assert [(one.cluster.name, one.gpus, one.price) for one in written.offers] == [
        ("dgx-a100-80gb", (4, 8), 1.5),
        ("dgx-h100", (4, 8), 2.5),
    ]


def test_its_frontier_is_drawn_with_the_same_question(meshwright, best, tmp_path) -> None:
    picture = tmp_path / "frontier.svg"
    answer = meshwright("plot", "frontier", str(best), "-o", str(picture), "--json")
    points = json.loads(answer.out)["points"]
    assert {(one["cluster"], one["gpus"]) for one in points} == {
        (cluster, gpus) for cluster in CLUSTERS.split(",") for gpus in (4, 8)
    }
    assert "dgx-a100-80gb" in picture.read_text()
    refused = meshwright("plot", "frontier", str(best), "--gpus", "8", "-o", str(picture))
    assert (refused.code, refused.err.splitlines()[-1]) == (2, "hint: leave out --gpus")


ON_POOLS = ("gpt2-xl", "dgx-a100-80gb:8+dgx-h100:8", "--global-batch", "256", "--sequence", "1024")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "mixed.yaml"
    with pytest.raises(SystemExit, match="0"):
        main(["plan", *ON_POOLS, "--top", "2", "--quiet", "-o", str(path)])
    return path


def test_a_plan_with_too_few_profiles_is_refused(meshwright, plan_file, tmp_path) -> None:
    broken = yaml.safe_load(plan_file.read_text("utf-8"))
    broken["hardware"] = broken["hardware"][:1]
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(broken, explicit_end=True), encoding="utf-8")
    code, _, err = meshwright("explain", str(path))
    assert code == 2
    assert "one profile for each pool" in err


@pytest.fixture(scope="module")
def replicas_file(tmp_path_factory) -> Path:
    """Few layouts, since an explanation searches them again for each change of hardware."""
    path = tmp_path_factory.mktemp("plans") / "replicas.yaml"
    fixed = (f"--fix={axis}" for axis in ("pp=1", "tp=1", "zero=1", "mbs=8,16", "recompute=none"))
    words = ["gpt2-small", *ON_POOLS[1:], "--allow", "replicas", *fixed, "--top", "1", "--quiet"]
    with pytest.raises(SystemExit, match="0"):
        main(["plan", *words, "-o", str(path)])
    return path


def test_replicas_are_planned_told_and_verified(meshwright, replicas_file) -> None:
    layout = load_plan(replicas_file).layout
    assert layout.replicas == ("dgx-a100-80gb",) * (layout.dp // 2) + ("dgx-h100",) * (layout.dp // 2)
    out = meshwright.done("explain", str(replicas_file), "--quiet").out
    assert "microbatches each" in out
    assert "double bandwidth between pools" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    out = meshwright.done("explain", str(replicas_file), "--why-not", "tp1 pp2 dp8 mbs1 zero1", "--quiet").out
    code, out, _ = meshwright("verify", str(replicas_file))
    assert (code, "Verified" in out) == (0, True)
    code, out, _ = meshwright("plan", "--replay", str(replicas_file), "--json")
    pools = json.loads(out)["plans"][0]["pools"]
    assert sum(sum(pool["microbatches"]) for pool in pools) * layout.mbs == 256
    assert pools[0]["microbatches"] < pools[1]["microbatches"]


def test_a_page_about_pools_has_the_pictures_that_there_are(
    meshwright, plan_file, replicas_file, tmp_path
) -> None:
    for plan in some_of((plan_file, replicas_file), replicas_file):
        meshwright.done("report", str(plan), "-o", str(tmp_path / "page.html"), "--quiet")
        page = (tmp_path / "page.html").read_text("utf-8")
        assert "One step" in page
        assert "All layouts" not in page
