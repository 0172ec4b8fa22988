"""`estimate`, `compare`, `explain` and `catalog`: what is said of one layout, of several, and of what is known."""

from __future__ import annotations

import re
from typing import Any

from command_line import ASKED

import meshwright as mw


def test_compare_names_what_was_asked_differently(meshwright, plan_file, tmp_path) -> None:
    other = tmp_path / "other.yaml"
    larger = ("gpt2-medium", *ASKED[1:3], "16", *ASKED[4:])
    assert meshwright("estimate", *larger, "--layout", "dp16 mbs2 zero1", "-o", str(other)).code == 0
    document = meshwright.json("compare", str(plan_file), str(other))
    differs = {one["what"]: one["values"] for one in document["differs"]}
    assert differs == {"model": ["gpt2-small", "gpt2-medium"], "GPUs": ["8", "16"]}
    assert document["same_work"] is False


def test_compare_says_what_the_model_can_tell(meshwright, plan_file) -> None:
    document = meshwright.json("compare", str(plan_file), "dp8 mbs8 zero1 shard4", "tp4 dp2 mbs1")
    near, far = document["against_first"]
    assert [one["clear"] for one in (near, far)] == [
        abs(one["ratio"] - 1) > one["error"] for one in (near, far)
    ]
    assert far["clear"]


def test_explain_of_a_layout_that_was_asked_for(meshwright, tmp_path) -> None:
    path = tmp_path / "asked.yaml"
    assert meshwright("estimate", *ASKED, "--layout", "tp4 dp2 mbs1 zero0", "-o", str(path)).code == 0
    said = " ".join(meshwright("explain", str(path)).out.split())
    assert "Given, not searched for: a search finds tp1 pp1 dp8" in said
    assert "restrictions" not in said
    document = meshwright.json("explain", str(path))
    assert document["searched"] is False
    assert {one["layout"] for one in document["what_if"]} == {document["plan"]["layout"]}
    assert all(one["as_it_is"]["step_seconds"] == one["step_seconds"] for one in document["what_if"])


def test_a_partial_layout_means_one_thing_in_every_verb(meshwright, plan_file) -> None:
    estimated = meshwright.json("estimate", *ASKED, "--layout", "tp4")
    against = meshwright.json("explain", str(plan_file), "--why-not", "tp4")
    compared = meshwright.json("compare", str(plan_file), "tp4")["plans"][1]
    planned = meshwright.json("plan", *ASKED, "--fix", "tp=4", "--top", "1")["plans"][0]
    layout = estimated["estimate"]["layout"]
    assert layout == against["read_as"] == compared["layout"] == planned["layout"]
    assert estimated["filled_in"] == against["filled_in"] == compared["filled_in"]
    assert estimated["filled_in"][:1] == ["pp1"]
    assert estimated["filled_in_gap"] == 0
    said = " ".join(meshwright("estimate", *ASKED, "--layout", "tp4").out.split())
    assert f"Filled in {' '.join(estimated['filled_in'])}: proved the fastest of" in said


def test_a_plan_of_other_costs_says_so(meshwright, plan_file, tmp_path) -> None:
    other = tmp_path / "other.yaml"
    text = re.sub(r"(prediction:\n  step_seconds: ).*", r"\g<1>1234.5", plan_file.read_text())
    other.write_text(text)
    answer = meshwright("explain", str(other), "--why-not", "dp8")
    assert answer.err.startswith(
        f"note: {other} was written with a step of 1234.5 s; this version prices it at "
    )
    assert meshwright("explain", str(plan_file), "--why-not", "dp8").err == ""


def test_parts_of_a_row_and_of_a_pool_are_those_of_their_fullest_rank() -> None:
    """The last rank, and of each pool the second, as most blocks are there."""
    job: dict[str, Any] = {"global_batch": 64, "sequence": 1024}
    answer = mw.estimate("gpt2-small", "dgx-a100-80gb", None, "pp2 dp4 mbs1 layers=1,11", gpus=8, **job)
    assert answer.estimate.fullest_rank == 1
    parts = answer.estimate.rank_memory[1]
    assert {part: answer.rows[0][f"{part}_bytes"] for part in parts} == dict(parts)
    pools = ("gpt2-small", "dgx-a100-80gb:8+dgx-h100:8", None, "pp4 dp4 mbs1 layers=1,5,1,5")
    mixed = mw.estimate(*pools, **job)
    memory = [rank.total for rank in mixed.estimate.rank_memory]
    peaks = [pool["peak_bytes"] for pool in mixed.record()["estimate"]["pools"]]
    assert peaks == [max(memory[:2]), max(memory[2:])] == [memory[1], memory[3]]
