"""A session on several pools at the command line: plan, explain, estimate, replay, and what is refused.

What `plan`, `explain` and `compare` print of pools is among the frozen answers (`tests/golden`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from effort import some_of

from meshwright.cli.frame import main
from planner.plan import load_plan

ASKED = ("gpt2-xl", "dgx-a100-80gb:8+dgx-h100:8", "--global-batch", "256", "--sequence", "1024")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "mixed.yaml"
    with pytest.raises(SystemExit, match="0"):
        main(["plan", *ASKED, "--top", "2", "--quiet", "-o", str(path)])
    return path


def test_json_has_the_pools(meshwright, plan_file) -> None:
    code, out, _ = meshwright("plan", *ASKED, "--top", "1", "--json")
    answer = json.loads(out)
    assert code == 0
    assert [pool["gpu"] for pool in answer["question"]["pools"]] == ["a100-sxm-80gb", "h100-sxm"]
    assert answer["question"]["gpu"] is None
    best = answer["plans"][0]
    assert sum(sum(pool["blocks"]) for pool in best["pools"]) == 48
    assert [rank for pool in best["pools"] for rank in pool["ranks"]] == list(range(len(best["memory"])))
    assert all(pool["peak_bytes"] <= pool["memory_limit"] for pool in best["pools"])
    assert best["layout"] == str(load_plan(plan_file).layout)


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
    words = ["gpt2-small", *ASKED[1:], "--allow", "replicas", *fixed, "--top", "1", "--quiet"]
    with pytest.raises(SystemExit, match="0"):
        main(["plan", *words, "-o", str(path)])
    return path


def test_replicas_are_planned_told_and_verified(meshwright, replicas_file) -> None:
    layout = load_plan(replicas_file).layout
    assert layout.replicas == ("dgx-a100-80gb",) * (layout.dp // 2) + ("dgx-h100",) * (layout.dp // 2)
    code, out, _ = meshwright("explain", str(replicas_file), "--quiet")
    assert code == 0
    assert "microbatches each" in out
    assert "double bandwidth between pools" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    code, out, _ = meshwright("explain", str(replicas_file), "--why-not", "tp1 pp2 dp8 mbs1 zero1", "--quiet")
    assert code == 0
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
        code, _out, err = meshwright("report", str(plan), "-o", str(tmp_path / "page.html"), "--quiet")
        assert code == 0, err
        page = (tmp_path / "page.html").read_text("utf-8")
        assert "One step" in page
        assert "All layouts" not in page
