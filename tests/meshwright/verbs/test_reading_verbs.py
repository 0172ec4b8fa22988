"""`estimate`, `compare`, `explain`, `verify` and `reshard`: layouts and files that they read, and where they write."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import ASKED

import meshwright as mw
from cost_models.flags import flags_of
from meshwright.cli import VERBS, command_of
from meshwright.terminal.output import Output


def test_compare_names_what_was_asked_differently(meshwright, plan_file, tmp_path) -> None:
    other = tmp_path / "other.yaml"
    larger = ("gpt2-medium", *ASKED[1:3], "16", *ASKED[4:])
    meshwright.done("estimate", *larger, "--layout", "dp16 mbs2 zero1", "-o", str(other))
    document = meshwright.json("compare", str(plan_file), str(other))
    differs = {one["what"]: one["values"] for one in document["differs"]}
    assert differs == {"model": ["gpt2-small", "gpt2-medium"], "GPUs": ["8", "16"]}
    assert document["same_work"] is False


def test_explain_of_a_layout_that_was_asked_for(meshwright, tmp_path) -> None:
    path = tmp_path / "asked.yaml"
    meshwright.done("estimate", *ASKED, "--layout", "tp4 dp2 mbs1 zero0", "-o", str(path))
    said = meshwright("explain", str(path)).said
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
    said = meshwright("estimate", *ASKED, "--layout", "tp4").said
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
    record = answer.record()["estimate"]
    assert 8 * record["tokens_per_second_per_gpu"] == pytest.approx(record["tokens_per_second"])
    pools = ("gpt2-small", "dgx-a100-80gb:8+dgx-h100:8", None, "pp4 dp4 mbs1 layers=1,5,1,5")
    mixed = mw.estimate(*pools, **job)
    memory = [rank.total for rank in mixed.estimate.rank_memory]
    peaks = [pool["peak_bytes"] for pool in mixed.record()["estimate"]["pools"]]
    assert peaks == [max(memory[:2]), max(memory[2:])] == [memory[1], memory[3]]


def failed_checks(meshwright, path: Path) -> list[str]:
    """Names of the checks that a plan does not pass."""
    return [check["check"] for check in meshwright.json("verify", str(path))["checks"] if not check["passed"]]


def test_a_layout_that_was_asked_for(meshwright, tmp_path) -> None:
    """Its price is checked; one that is too large fails in that alone."""
    path, large = tmp_path / "asked.yaml", ("gpt2-xl", "gce-g2", *ASKED[2:], "--layout", "dp8 mbs2 zero0")
    meshwright.done("estimate", *ASKED, "--layout", "tp2 dp4 mbs2 zero0", "-o", str(path))
    answer = meshwright.done("verify", str(path))
    assert "Verified as a price: " in answer.out
    assert meshwright("estimate", *large, "-o", str(path)).code == 1
    assert failed_checks(meshwright, path) == ["fits"]


JOB = ("--gpus", "16", "--global-batch", "16", "--sequence", "1024", "--stack", "meshwright")


@pytest.fixture
def plan(tmp_path, meshwright) -> str:
    found = str(tmp_path / "a.yaml")
    assert (
        meshwright(
            "estimate", "gpt2-medium", "dgx-h100", *JOB, "--layout", "dp16 mbs1 zero3", "-o", found
        ).code
        == 0
    )
    return found


def test_a_layout_to_generate_with(plan: str, meshwright) -> None:
    found = meshwright.json("reshard", plan, "tp4 dp4 mbs1 zero0")
    moved = [rank["received_inside_bytes"] + rank["received_bytes"] for rank in found["ranks"]]
    assert found["extra_bytes"] == max(moved)
    assert found["seconds"]["total"] == max(found["seconds"]["network"], found["seconds"]["inside_node"])
    same, states = ("reshard", plan, "dp16 mbs1 zero1"), ("--states",)
    ranks = [meshwright.json(*same, *words)["ranks"] for words in (states, ())]
    for one, other in zip(
        *ranks, strict=True
    ):  # 2 bytes of weights, 12 of states, which lie where they are needed
        assert one["there_bytes"] == pytest.approx(7 * other["there_bytes"])
        assert one["received_bytes"] == pytest.approx(other["received_bytes"])


def test_what_is_not_one_model_is_refused(plan: str, tmp_path, meshwright) -> None:
    other, layout = str(tmp_path / "b.yaml"), ("--layout", "dp16 mbs1 zero3")
    meshwright.done("estimate", "gpt2-small", "dgx-h100", *JOB, *layout, "-o", other)
    assert "different models: gpt2-medium and gpt2-small" in meshwright.refusal("reshard", plan, other)
    assert meshwright("reshard", plan, "tp3 dp5").code == 2
    meshwright.done("estimate", "gpt2-medium", "dgx-a100-80gb", *JOB, *layout, "-o", other)
    assert "on different nodes" in meshwright("reshard", plan, other).err


LONG = "tp2 pp1 dp4 mbs1 zero1 layers=" + ",".join(["12"] + ["0"] * 120)
"""A name that no file can have."""


@pytest.mark.parametrize("verb", ["compare", "reshard"])
def test_a_layout_is_no_file(verb: str, meshwright, plan_file, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = meshwright.done(verb, str(plan_file), "tp2")
    (tmp_path / "tp2").mkdir()
    assert meshwright(verb, str(plan_file), "tp2") == expected
    (tmp_path / "tp2").rmdir()
    shutil.copy(plan_file, tmp_path / "tp2")
    assert meshwright(verb, str(plan_file), "tp2") == expected
    meshwright.done(verb, str(plan_file), "./tp2")
    shutil.copy(plan_file, tmp_path / "mine")
    meshwright.done(verb, str(plan_file), "mine")
    for word, said in ((LONG, "layers"), ("x" * 300, "is not a layout"), ("absent.yaml", "no such file")):
        answer = meshwright.refusal(verb, str(plan_file), word)
        assert said in answer
        assert "too long" not in answer


ELSEWHERE = {"run", "tokens"}
"""Their -o is a folder that they make."""
WORDS: dict[str, tuple[str, ...]] = {
    "plan": ASKED,
    "estimate": (*ASKED, "--layout", "tp2"),
    "compare": ("PLAN", "tp2"),
    "reshard": ("PLAN", "tp2"),
    "plot": ("memory", "PLAN"),
    "cluster": ("--template",),
    "doctor": (),
    "export": ("PLAN", "--to", "megatron"),
    "import": ("PLAN", "gpt2-small", "dgx-a100-80gb"),
    "tokens": ("PLAN", "-o", "tokens"),
    "calibrate": ("--quick",),
    "validate": (),
    "catalog": ("models",),
    "serve": ("PLAN",),
    "report": ("PLAN",),
}
"""What each is asked; of others a plan alone."""
CASES = [
    (verb.name, flag)
    for verb in map(command_of, VERBS)
    for flag in ("--csv", "-o")
    if (flag == "--csv" and "csv" in verb.shows)
    or (flag == "-o" and (verb.out or "out" in flags_of(verb.options)) and verb.name not in ELSEWHERE)
]


@pytest.mark.parametrize(("verb", "flag"), CASES)
def test_a_place_is_tried_before_the_work(verb, flag, meshwright, plan_file, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(plan_file) if word == "PLAN" else word for word in WORDS.get(verb, ("PLAN",))]
    answer = meshwright(verb, *words, flag, "/proc/x.svg")
    assert answer.code == 2, answer.err
    assert "cannot be written\n" in answer.err
    assert f"{flag} /proc/x.svg: no such file or directory" in answer.err
    assert not answer.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("quiet", [False, True])
def test_warnings_of_losses_are_always_shown(quiet: bool, capsys) -> None:
    output = Output(quiet=quiet)
    output.note("warning: the trace could not be written to x: no space left on device")
    output.note("Wrote y")
    assert ("Wrote y" in (err := capsys.readouterr().err)) != quiet
    assert "the trace could not be written" in err
