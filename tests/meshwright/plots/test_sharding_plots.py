"""Pictures of shardings: the data is that of the plan, titles say what binds, and other families' kinds are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import SHOP

from cost_models.recommender.options import STAGES
from cost_models.recommender.prices import estimate
from meshwright.verbs.plot import PlotOptions, plot
from planner.plan import load_any_plan

LAYOUT = "table:0=column2@0,3/host table:1=hot(0.1)+whole@2 table:2=row table:3=copy"


@pytest.fixture
def plan(meshwright, tmp_path) -> Path:
    (tmp_path / "shop.yaml").write_text(SHOP)
    asked = ("dgx-h100", "--gpus", "4", "--global-batch", "8K", "--layout", LAYOUT)
    done = meshwright("estimate", str(tmp_path / "shop.yaml"), *asked, "-o", str(tmp_path / "plan.yaml"))
    assert done.code == 0, done.err
    return tmp_path / "plan.yaml"


def test_pictures_hold_what_the_plan_has(plan) -> None:
    loaded = load_any_plan(plan)
    priced = estimate(loaded.question, loaded.sharding)
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
    assert own["step_seconds"] <= estimate(loaded.question, loaded.sharding).step_seconds
    assert f"on 8 the {frame.iloc[2]['longest']} takes" in drawn.title
    drawn.save(tmp_path / "scaling.svg")
    refused = meshwright("plot", "scaling", str(plan), "--kind", "wide")
    assert refused.code == 2
    assert "`wide` is not one of `strong` and `weak`" in " ".join(refused.err.split())
