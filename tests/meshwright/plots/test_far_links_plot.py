"""`plot far-links`: the best layout over the bandwidth between buildings, beside one building."""

from __future__ import annotations

from dataclasses import replace

import pytest
from effort import few

import meshwright as mw
from cost_models.files.catalog import load_cluster
from cost_models.specs.cluster import BuildingsSpec, LinkSpec
from meshwright.verbs.plot import plot
from planner.answers.frontier import far_links_frame
from planner.search.search import Budget
from planner.space.restrictions import Restrictions

LINK = LinkSpec(kind="ethernet", bandwidth="25 Gb/s", latency="60 us")
BUILDINGS = {"nodes": 4, "buildings": BuildingsSpec(nodes=2, link=LINK)}
TRAINING = mw.TrainingSpec(global_batch=64, sequence_length=1024)


@few(0)
def test_more_bandwidth_between_buildings_is_never_slower(tmp_path) -> None:
    cluster = load_cluster("dgx-h100").model_copy(update=BUILDINGS)
    planned = mw.plan("gpt2-small", cluster, TRAINING, fix=("tp=1", "zero=1"))
    assert "Between buildings (3.125 GB/s per GPU): " in planned.explain()
    assert "half bandwidth between buildings" in planned.explain()
    crossing = planned.record()["plans"][0]["crossing"]
    assert crossing["level"] == "campus"
    assert {one["axis"] for one in crossing["axes"]}.isdisjoint(crossing["stay"])
    planned.save(tmp_path / "plan.yaml")
    drawn = plot("far-links", tmp_path / "plan.yaml").drawing
    frame = drawn.frame
    assert sorted(frame["domains"].unique()) == [1, 2, 4]
    alone = float(frame[frame["domains"] == 1]["step_seconds"].iloc[0])
    for _, line in frame[frame["domains"] > 1].groupby("domains"):
        seconds = line.sort_values("bandwidth")["step_seconds"].tolist()
        assert seconds == sorted(seconds, reverse=True)
        assert seconds[-1] >= alone * (1 - 1e-9)
    assert (frame["gap"] == 0).all()
    assert "4 buildings at 25 Gb/s a GPU" in drawn.title
    drawn.save(tmp_path / "far.png")


def test_every_point_has_an_even_share_of_the_time_left(question, monkeypatch) -> None:
    question = replace(question, cluster=question.cluster.model_copy(update=BUILDINGS))
    shares = list[float]()
    monkeypatch.setattr(Budget, "search", lambda budget, *_, seconds, **__: shares.append(seconds))
    far_links_frame(question, Restrictions(), Budget(time_limit=600))
    assert shares == pytest.approx([600 / (len(shares) - done) for done in range(len(shares))], rel=0.02)
    assert len(shares) > 10
