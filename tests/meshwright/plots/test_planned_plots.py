"""Plots of a plan: maps, ladders, windows, links and shardings say what the search says."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from command_line import QUICK, sharded_shop

import meshwright as mw
from cost_models.errors import InputError
from cost_models.files.loading import resolve_cluster
from cost_models.recommender.options import STAGES
from cost_models.recommender.prices import estimate as price_sharding
from cost_models.specs.cluster import BuildingsSpec, ClusterSpec, LinkSpec
from meshwright import Estimated, estimate
from meshwright.plots.drawing import Drawing, PictureRequest, PlotOptions
from meshwright.plots.pictures import draw_topology, pictures_of
from meshwright.verbs.plot import plot
from planner.answers.frontier import far_links_frame, heatmap_frame
from planner.plan import load_any_plan
from planner.search.search import Budget, search
from planner.space.restrictions import Restrictions, parse_restrictions


@cache
def planned() -> mw.Plan:
    job = mw.TrainingSpec(global_batch=64, sequence_length=2048)
    found = mw.plan("llama3-8b", "dgx-a100-80gb", job, gpus=16, pick="fastest")
    assert isinstance(found, mw.Planned)
    return found.plan


@cache
def drawn(picture: str, **options: str) -> Drawing:
    request = PictureRequest(plans=[planned()], options=PlotOptions(**options), budget=Budget())  # type: ignore[arg-type]
    return pictures_of(mw.Plan)[picture](request)


def test_cells_are_the_best_of_their_pair() -> None:
    frame = drawn("heatmap").frame
    assert set(frame["tp"]) == {1, 2, 4, 8, 16}
    assert set(frame["pp"]) == {1, 2, 4, 8, 16}
    best = frame.loc[frame["mfu"].idxmax()]
    assert best["step_seconds"] == pytest.approx(planned().prediction.step_seconds)
    assert bool(best["chosen"])
    assert frame["chosen"].sum() == 1
    cell = frame[(frame["tp"] == 2) & (frame["pp"] == 2)].iloc[0]
    alone = search(planned().question, top=1, restrictions=parse_restrictions(["tp=2", "pp=2"], ())).best
    assert (cell["layout"], cell["mfu"]) == (alone.layout.brief, alone.mfu)


def test_holes_say_why() -> None:
    frame = drawn("heatmap").frame.set_index(["tp", "pp"])
    assert set(frame.loc[16]["reason"]) == {"rule"}
    assert "`tp16` splits 8 key/value heads" in frame.loc[(16, 1), "why"]
    assert "do not divide 16 GPUs" in frame.loc[(8, 8), "why"]
    assert frame.loc[(1, 1), "reason"] in ("", "memory")
    holes = frame[frame["reason"] != ""]
    assert holes["mfu"].isna().all()
    assert (holes["why"] != "").all()
    tight = planned().question
    small = tight.cluster.gpu.model_copy(update={"memory": 24 * 2.0**30})
    asked = replace(tight, cluster=tight.cluster.model_copy(update={"gpu": small}))
    cells = heatmap_frame(asked, planned().layout, Restrictions(), Budget()).set_index(["tp", "pp"])
    lacking = cells[cells["reason"] == "memory"]
    assert len(lacking)
    assert (lacking["peak_bytes"] > 0.8 * small.memory).all()
    assert cells["chosen"].sum() == 1


def test_a_drawn_map_has_a_cell_for_each_row(tmp_path) -> None:
    picture = drawn("heatmap")
    (axes,) = picture.figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4", "8", "16"]
    assert len(axes.texts) == len(picture.frame)
    (mesh,) = axes.collections
    assert np.ma.count_masked(mesh.get_array()) == (picture.frame["reason"] != "").sum()
    for suffix in ("png", "svg", "pdf"):
        picture.save(tmp_path / f"map.{suffix}")
        assert (tmp_path / f"map.{suffix}").stat().st_size > 1000


LAYOUT = "tp8 pp4 vpp2 dp2 mbs1 zero1 sp"


def saved(tmp_path: Path, stack: str) -> Path:
    path = tmp_path / f"{stack}.yaml"
    training = mw.TrainingSpec(global_batch=64, sequence_length=2048)
    mw.estimate("llama3-70b", "dgx-h100", training, LAYOUT, gpus=64, stack=stack).save(path)
    return path


def test_a_plan_that_has_all_of_it_stands_on_the_last_rung(tmp_path) -> None:
    path = saved(tmp_path, "megascale")
    frame = plot("ladder", path).drawing.frame
    assert frame["has"].all()
    assert frame["step_seconds"].iloc[-1] == pytest.approx(
        mw.load_plan(path).prediction.step_seconds, rel=1e-6
    )


def priced(layout: str, stack: str = "meshwright") -> Estimated:
    asked = {"gpus": 1, "global_batch": 8, "sequence": 2048, "stack": stack, "host_memory": "64GiB"}
    return estimate("llama2-7b", "hgx-h200", None, layout, **asked)  # type: ignore[arg-type]


def test_a_stack_without_offload_has_no_window() -> None:
    with pytest.raises(InputError, match="keeps no states of blocks in host memory"):
        priced("mbs1 zero0", "jax").plot("window")


LINK = LinkSpec(kind="ethernet", bandwidth="25 Gb/s", latency="60 us")
BUILDINGS = {"nodes": 4, "buildings": BuildingsSpec(nodes=2, link=LINK)}


def test_every_point_has_an_even_share_of_the_time_left(question, monkeypatch) -> None:
    question = replace(question, cluster=question.cluster.model_copy(update=BUILDINGS))
    shares = list[float]()
    monkeypatch.setattr(Budget, "search", lambda budget, *_, seconds, **__: shares.append(seconds))
    far_links_frame(question, Restrictions(), Budget(time_limit=600))
    assert shares == pytest.approx([600 / (len(shares) - done) for done in range(len(shares))], rel=0.02)
    assert len(shares) > 10


CLUSTERS = {
    ("dgx-h100", 1024): {"node", "network", "× 126"},
    ("pcie-a40-pairs", 8): {"pair", "box", "joins 4 × pair; 64 GB/s out of each"},
    ("gb200-nvl72-64", 128): {"rack", "× 56", "joins 64 × GPU, 2 times"},
    ("two-buildings", 8192): {"campus", "pod", "× 127", "joins 2 × building; 3.2 TB/s out of each"},
    ("local", 1): {"node"},
}


@pytest.mark.parametrize(("cluster", "gpus"), CLUSTERS)
def test_a_picture_names_every_level_and_what_it_leaves_out(cluster: str, gpus: int) -> None:
    found = resolve_cluster(cluster, gpus)
    assert isinstance(found, ClusterSpec)
    drawing = draw_topology(found)
    texts = {text.get_text() for axes in drawing.figure.axes for text in axes.texts}
    assert CLUSTERS[cluster, gpus] <= texts
    levels = set(drawing.frame["level"])
    assert levels <= texts
    assert {line.split()[0] for line in drawing.table.splitlines()[1:]} == levels
    assert max(map(len, drawing.table.splitlines())) <= 80


def test_a_plan_says_which_axis_uses_which_links(meshwright, plan_file, tmp_path) -> None:
    answer = meshwright("plot", "topology", "dgx-h100", str(plan_file), "-o", str(tmp_path / "x.png"))
    assert answer.code == 2
    assert "is a plan for `dgx-a100-80gb`, not for `dgx-h100`" in answer.err
    training = mw.TrainingSpec(global_batch=64, sequence_length=1024)
    drawing = mw.estimate("gpt2-small", "dgx-h100", training, "dp16 mbs4 zero1", gpus=16).plot("topology")
    assert drawing.title.startswith("The fullest links are those of the network: busy")
    assert set(drawing.frame["axis"]) == {"dp"}
    assert drawing.frame["share"].between(0, 1, inclusive="left").all()


def test_unconnected_nodes_do_not_scale(meshwright, tmp_path) -> None:
    path = tmp_path / "small.yaml"
    small = ("gpt2-tiny", "local", "--gpus", "2", "--global-batch", "8", "--sequence", "128")
    meshwright.done("plan", *small, *QUICK, "-o", str(path))
    answer = meshwright("plot", "scaling", str(path), "--gpus", "1,4,6", "-o", str(tmp_path / "x.png"))
    assert answer.code == 2
    assert (
        "\n  4 GPUs are more than a node, and nodes are not connected; a node has 2\n  6 GPUs" in answer.err
    )


@pytest.mark.parametrize("between", ["time,gpu-hours", "cost,mfu"])
def test_frontier_of_any_two_objectives(meshwright, plan_file, tmp_path, between: str) -> None:
    path = tmp_path / "frontier.svg"
    money = ("--price", "2.5") if "cost" in between else ()
    words = ("--gpus", "4,8", "--between", between, "--tokens", "1B", *money, "-o", str(path), "--json")
    answer = meshwright.done("plot", "frontier", str(plan_file), *words)
    points = json.loads(answer.out)["points"]
    assert points
    assert {*between.split(","), "gpus", "layout", "gap"} <= set(points[0])
    assert all(point["proven"] for point in points)
    assert path.read_text().startswith("<?xml")


def test_a_curve_that_is_interrupted_keeps_its_points(meshwright, plan_file, tmp_path, monkeypatch) -> None:
    from planner.search import search as search_module

    left, search = [2], search_module.search_on

    def interrupted(*args: object, **kwargs: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return search(*args, **kwargs)

    monkeypatch.setattr(search_module, "search_on", interrupted)
    words = ("--gpus", "2,4,8", "--kind", "strong", "-o", str(tmp_path / "x.png"), "--json")
    answer = meshwright("plot", "scaling", str(plan_file), *words)
    assert answer.code == 130
    assert [point["gpus"] for point in json.loads(answer.out)["points"]] == [2, 4]
    assert answer.err == "interrupted: not every point was searched\n"


SHARDING = "table:0=column2@0,3/host table:1=hot(0.1)+whole@2 table:2=row table:3=copy"


@pytest.fixture
def plan(meshwright, tmp_path) -> Path:
    return sharded_shop(meshwright, tmp_path, SHARDING, "--gpus 4 --global-batch 8K")


def test_pictures_hold_what_the_plan_has(plan) -> None:
    loaded = load_any_plan(plan)
    priced = price_sharding(loaded.question, loaded.sharding)
    time, memory, sharding = (plot(kind, plan).drawing for kind in ("time", "memory", "sharding"))
    frame = time.frame
    assert frame[frame["gpu"] == 0]["stage_seconds"].sum() == pytest.approx(priced.step_seconds)
    assert (frame["busy_seconds"] <= frame["stage_seconds"] * (1 + 1e-9)).all()
    ends = frame[frame["waits"]]
    assert len(ends) > 0
    assert list(ends["busy_seconds"]) == pytest.approx(list(ends["stage_seconds"]))
    assert list(memory.frame["tier"]) == ["device"] * 4 + ["host"]
    parts = memory.frame[list(priced.device_parts)].sum(axis=1).to_numpy()
    assert parts == pytest.approx([*priced.device_bytes, priced.host_bytes[0]])
    places = sharding.frame.groupby("name")["gpu"].apply(list).to_dict()
    both = [0, 1, 2, 3]
    assert places == {"user": [0, 3], "item": [2], "shelf.0": both, "shelf.1": both}
    titles = ("GPUs wait most for GPU", "host 0 is", "1 table as `column2/host` has")
    for drawing, words in zip((time, memory, sharding), titles, strict=True):
        assert words in drawing.title
        drawing.save(plan.with_suffix(".svg"))


def test_scaling_has_the_stages_of_every_step_and_says_which_binds(meshwright, plan, tmp_path) -> None:
    """On 4 GPUs the point is the plan's own question; 3 GPUs, of which its batch is no multiple, have none."""
    drawn = plot("scaling", plan, options=PlotOptions(gpus="2,3,4,8")).drawing
    frame = drawn.frame
    assert [(one.kind, one.gpus) for one in frame.itertuples()] == [
        *(("strong", gpus) for gpus in (2, 4, 8)),
        *(("weak", gpus) for gpus in (2, 3, 4, 8)),
    ]
    assert list(frame["global_batch"]) == [8192] * 3 + [4096, 6144, 8192, 16384]
    assert frame[list(STAGES)].sum(axis=1).to_numpy() == pytest.approx(frame["step_seconds"].to_numpy())
    loaded = load_any_plan(plan)
    own = frame[(frame["kind"] == "strong") & (frame["gpus"] == 4)].iloc[0]
    assert own["step_seconds"] <= price_sharding(loaded.question, loaded.sharding).step_seconds
    assert f"on 8 the {frame.iloc[2]['longest']} takes" in drawn.title
    drawn.save(tmp_path / "scaling.svg")
    refused = meshwright("plot", "scaling", str(plan), "--kind", "wide")
    assert refused.code == 2
    assert "`wide` is not one of `strong` and `weak`" in " ".join(refused.err.split())
