"""`plan` over several clusters: words, documents, files, Python, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from effort import few

import meshwright as mw
from planner.plan import load_plan

CLUSTERS = "dgx-a100-80gb,dgx-h100"
ASKED = ("plan", "gpt2-small", CLUSTERS, "--global-batch", "64", "--sequence", "1024")
LIMITS = ("--fix", "tp=1", "--fix", "pp=1", "--fix", "zero=1")
GOAL = ("--gpus", "4,8", "--tokens", "1B", "--price", "1.5,$2.50")


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
    assert meshwright("plan", "--replay", str(best), "-o", str(again)).code == 0
    assert again.read_bytes() == best.read_bytes()
    written = load_plan(best).objective
    assert written is not None
    assert [(one.cluster.name, one.gpus, one.price) for one in written.offers] == [
        ("dgx-a100-80gb", (4, 8), 1.5),
        ("dgx-h100", (4, 8), 2.5),
    ]


@few(1)
@pytest.mark.parametrize("goal", [GOAL, ("--gpus", "8")], ids=["cost", "time"])
def test_its_page_has_every_chapter(goal: tuple[str, ...], meshwright, tmp_path) -> None:
    """Without prices or tokens the frontier is that of its own cluster."""
    plan, page = tmp_path / "best.yaml", tmp_path / "best.html"
    assert meshwright(*ASKED, *LIMITS, *goal, "-o", str(plan)).code == 0
    answer = meshwright("report", str(plan), "-o", str(page), "--json")
    assert answer.code == 0, answer.err
    chapters = json.loads(answer.out)["chapters"]
    assert {"Beside its rivals", "All layouts", "Memory", "One step"} <= set(chapters)
    assert "Not drawn" not in page.read_text("utf-8")


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
