"""`estimate`, `compare`, `explain` and `catalog`: what is said of one layout, of several, and of what is known."""

from __future__ import annotations

import re
from pathlib import Path

from command_line import ASKED

from cost_models.units import format_seconds
from meshwright.render.words import percent


def test_compare_names_what_was_asked_differently(meshwright, plan_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    larger = ("gpt2-medium", *ASKED[1:3], "16", *ASKED[4:])
    assert meshwright("estimate", *larger, "--layout", "dp16 mbs2 zero1", "-o", str(other)).code == 0
    answer = meshwright("compare", str(plan_file), str(other))
    before, table = answer.out.split("\nstep", 1)
    assert re.search(r"^model +gpt2-small +gpt2-medium$", before, re.MULTILINE)
    assert re.search(r"^GPUs +8 +16$", before, re.MULTILINE)
    assert re.search(r"^  compute +\d+\.\d % +\d+\.\d % ", table, re.MULTILINE)
    document = meshwright.json("compare", str(plan_file), str(other))
    assert {one["what"]: one["values"] for one in document["differs"]} == {
        "model": ["gpt2-small", "gpt2-medium"],
        "GPUs": ["8", "16"],
    }
    assert document["same_work"] is False


def test_compare_says_the_expected_step_and_what_the_model_can_tell(meshwright, plan_file: Path) -> None:
    choices = ("compare", str(plan_file), "dp8 mbs8 zero1 shard4", "tp4 dp2 mbs1")
    text = " ".join(meshwright(*choices).out.split())
    document = meshwright.json(*choices)
    for plan in document["plans"]:
        low, high = plan["expected"]["step_seconds_90"]
        assert f"90 % interval {format_seconds(low)} to {format_seconds(high)}" in text
    for number, told in enumerate(document["against_first"], start=2):
        assert told["clear"] == (abs(told["ratio"] - 1) > told["error"])
        assert f"{number} is " in text
    far = document["against_first"][1]
    assert far["clear"]
    assert f"on paper), more than the model's error of {percent(far['error'])}" in text


def test_explain_of_a_layout_that_was_asked_for(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "asked.yaml"
    assert meshwright("estimate", *ASKED, "--layout", "tp4 dp2 mbs1 zero0", "-o", str(path)).code == 0
    said = " ".join(meshwright("explain", str(path)).out.split())
    assert "Given, not searched for: a search finds tp1 pp1 dp8" in said
    assert "restrictions" not in said
    document = meshwright.json("explain", str(path))
    assert document["searched"] is False
    assert {one["layout"] for one in document["what_if"]} == {document["plan"]["layout"]}
    assert all(one["as_it_is"]["step_seconds"] == one["step_seconds"] for one in document["what_if"])


def test_a_partial_layout_means_one_thing_in_every_verb(meshwright, plan_file: Path) -> None:
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


def test_a_plan_of_other_costs_says_so(meshwright, plan_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    text = re.sub(r"(prediction:\n  step_seconds: ).*", r"\g<1>1234.5", plan_file.read_text())
    other.write_text(text)
    answer = meshwright("explain", str(other), "--why-not", "dp8")
    assert answer.err.startswith(
        f"note: {other} was written with a step of 1234.5 s; this version prices it at "
    )
    assert meshwright("explain", str(plan_file), "--why-not", "dp8").err == ""
