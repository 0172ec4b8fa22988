"""`plan`: the table, the documents, replays, restrictions, and answers that are no."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from command_line import ASKED, BIG, QUICK

import meshwright as mw
from cost_models.errors import DoesNotFitError
from cost_models.risk import FITTING
from planner.plan import load_plan

SMALL = ("gpt2-small", "dgx-a100-80gb", "--global-batch", "64", "--sequence", "1024", *QUICK)
REPLAYED = {
    "restricted": (*ASKED, "--fix", "tp=2", "--forbid", "zero1", "--max-memory", "40GiB", "--top", "2"),
    "recommended": BIG,
    "sizes": (*SMALL, "--objective", "cost", "--tokens", "10B", "--price", "2.5", "--gpus", "4,8,16"),
    "precisions": (*ASKED, "--precision", "fp32,bf16"),
    "neutral": (*ASKED, "--risk", "neutral"),
}


@pytest.mark.parametrize("question", REPLAYED)
def test_a_plan_is_verified_and_replayed_to_the_same_bytes(question, meshwright, tmp_path) -> None:
    first, again = str(tmp_path / "plan.yaml"), str(tmp_path / "again.yaml")
    answer = meshwright.json("plan", *REPLAYED[question], *QUICK, "-o", first)
    replayed = meshwright.json("plan", "--replay", first, *QUICK, "-o", again)
    assert Path(again).read_bytes() == Path(first).read_bytes()
    assert len(replayed["plans"]) == len(answer["plans"])
    assert question == "recommended" or meshwright("verify", first).code == 0
    if question == "restricted":
        limits = {explained["plan"]["memory_limit"] for explained in (meshwright.json("explain", first),)}
        assert limits == {answer["plans"][0]["memory_limit"]}
        barred = meshwright("explain", first, "--why-not", "dp8 mbs8")
        assert "the plan's restrictions kept it out" in barred.said
    if question == "precisions":
        plan = load_plan(first)
        assert (plan.training.precision, plan.objective.precisions) == ("bf16", ("fp32", "bf16"))
    if question == "neutral":
        weighed, proof = [plan["weighed_seconds"] for plan in answer["plans"]], answer["certificate"]
        assert weighed == sorted(weighed)
        assert (proof["minimised"], proof["scenarios"], proof["gap"]) == ("neutral", 16, 0)
        assert proof["bound"] == pytest.approx(weighed[0])


def test_what_the_answer_passes_over_is_noted_everywhere(meshwright, tmp_path) -> None:
    path = tmp_path / "plan.yaml"
    said = "--max-memory 200.0 GiB limits nothing"
    answer = meshwright(
        "plan", *ASKED, *QUICK, "--max-memory", "200GiB", "--top", "1", "--json", "-o", str(path)
    )
    assert f"note: {said}" in answer.err
    assert json.loads(answer.out)["notes"][0].startswith(said)
    for words in (("explain", str(path)), ("plot", "memory", str(path), "-o", str(tmp_path / "x.png"))):
        answer = meshwright(*words, "--json")
        assert f"note: {said}" in answer.err
        assert json.loads(answer.out)["notes"][0].startswith(said)
    odd = (*ASKED[:-1], "2047", "--layout", "dp8 mbs1 zero0", "--json")
    notes = json.loads(meshwright("estimate", *odd).out)["notes"]
    assert notes[0].startswith("gpt2-small has 1,024 learned positions")
    assert notes[1].endswith("2,048 tokens do better")


def test_what_a_plan_proves_of_its_rivals_is_not_searched_again(meshwright, tmp_path, monkeypatch) -> None:
    def unsearched(*_: object, **__: object) -> None:
        raise AssertionError("rivals were searched again")

    path = str(tmp_path / "plan.yaml")
    meshwright.done("plan", *ASKED, *QUICK, "--pick", "fastest", "-o", path)
    monkeypatch.setattr("planner.explain.reasons.search_on", unsearched)
    explained = meshwright("explain", path, "--json")
    picture = meshwright("plot", "time", path, "--json", "-o", str(tmp_path / "time.png"))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    assert meshwright("explain", path, "--json") == explained
    assert picture.code == 0


def test_interrupting_says_the_best_so_far(meshwright, tmp_path, monkeypatch) -> None:
    """Exit code 130, the plan with its gap, and the file, whatever was asked to choose from."""
    from meshwright.terminal.progress import Reporter

    def interrupted(_self: object, _done: int, _total: int, best: float, _bound: float) -> None:
        if math.isfinite(best):
            raise KeyboardInterrupt

    monkeypatch.setattr(Reporter, "searching", interrupted)
    path = tmp_path / "plan.yaml"
    answer = meshwright("plan", *ASKED, "-o", str(path))
    assert answer.code == 130
    assert "stopped after " in answer.out
    assert path.is_file()
    assert "\ninterrupted: this is the best so far, and not proved\n" in answer.err
    assert "time" not in answer.err
    sizes = ("--gpus", "8,16", "--tokens", "1B", "--objective", "gpu-hours")
    answer = meshwright("plan", *ASKED[:2], *ASKED[4:], *sizes)
    assert answer.code == 130
    assert "note: no answer on 16 GPUs: interrupted\n" in answer.err


def test_what_would_fit_is_said_in_words_in_json_and_in_python(meshwright, monkeypatch) -> None:
    for limit in ("SECONDS_OF_REMEDIES", "SECONDS_OF_A_REMEDY"):
        monkeypatch.setattr(f"planner.answers.feasibility.{limit}", 60.0)
    asked = (*ASKED[:2], "--gpus", "1", *ASKED[4:], "--max-memory", "2200 MiB")
    answer = meshwright("plan", *asked)
    assert "\nwould fit:\n  without --max-memory: " in answer.err
    said = answer.err[answer.err.index("would fit:") :]
    assert max(len(line) for line in said.splitlines()) <= 80
    told = meshwright.json("plan", *asked)["error"]["would_fit"]
    assert told[0]["change"] == "without --max-memory"
    assert all(one["peak_bytes"] <= one["memory_limit"] for one in told)
    training = mw.TrainingSpec(global_batch=64, sequence_length=1024)
    with pytest.raises(DoesNotFitError, match="would fit: without --max-memory") as caught:
        mw.plan(*ASKED[:2], training, gpus=1, max_memory="2200 MiB")
    assert len(caught.value.would_fit) == len(told)


def test_assumptions_about_a_hugging_face_config_are_said(meshwright, tmp_path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4,'
        ' "intermediate_size": 512, "vocab_size": 1000}'
    )
    words = ("plan", str(config), *ASKED[1:], *QUICK, "--json")
    answer = meshwright.done(*words)
    assumed = json.loads(answer.out)["assumptions"]
    assert assumed
    assert [f"assumed: {one}" for one in assumed] == answer.err.splitlines()
    assert meshwright(*words, "--quiet").err == ""


def test_a_deadline_that_no_size_meets(meshwright) -> None:
    goal = ("--objective", "gpus", "--gpus", "32", "--tokens", "10B", "--deadline", "1min")
    refused = meshwright.refusal("plan", *SMALL, *goal, code=1)
    assert "error: no plan of gpt2-small trains on 10 B tokens within " in refused
    assert " 32 GPUs: at least " in refused


def test_the_plan_that_is_written_is_the_one_to_run(meshwright, tmp_path) -> None:
    first, paper = tmp_path / "plan.yaml", tmp_path / "paper.yaml"
    answer = meshwright("plan", *BIG, *QUICK, "--json", "-o", str(first))
    document = json.loads(answer.out)
    told = document["recommended"]
    assert load_plan(first).layout.brief in told["plan"]["layout"]
    assert told["fastest_on_paper"]["layout"] == document["plans"][0]["layout"]
    assert told["plan"]["step_seconds"] >= document["plans"][0]["step_seconds"]
    limits = {told["plan"]["memory_limit"], load_plan(first).prediction.memory_limit}
    assert len(limits) == 1  # one plan, one limit
    assert told["plan"]["fits_probability"] >= FITTING
    assert document["export"] == {"to": "megatron", "why_not": ""}
    answer = meshwright("plan", *BIG, *QUICK, "--pick", "fastest", "-o", str(paper))
    assert "recommended" not in answer.out
    assert str(load_plan(paper).layout) == document["plans"][0]["layout"]


def test_a_recommendation_that_time_did_not_allow_is_missed(meshwright, monkeypatch) -> None:
    monkeypatch.setattr("planner.answers.recommend.recommend", lambda *_: None)
    answer = meshwright.done("plan", *ASKED)
    assert "warning: time ran out before simpler layouts" in answer.err
    assert "warning: time ran out" not in meshwright("plan", *ASKED, "--pick", "fastest").err


ON_H100 = ("gpt2-small", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--sequence", "1024")


def test_exit_codes_when_time_runs_out(meshwright, tmp_path, monkeypatch) -> None:
    """Before anything is placed; then before the proof, and the plan is written all the same."""
    asked, file = ("plan", *ASKED, "--quiet"), tmp_path / "plan.yaml"
    assert meshwright(*asked, "--time-limit", "0.001").code == 3
    monkeypatch.setattr("meshwright.families.transformer.plan.PROVEN", -1.0)
    assert (meshwright(*asked, "-o", str(file)).code, file.exists()) == (3, True)


def test_the_stack_is_the_trainers_unless_another_is_named(meshwright) -> None:
    def stack(*words: str) -> str:
        out = meshwright.done("plan", *ON_H100, "--top", "1", "--json", *words).out
        return str(json.loads(out)["question"]["stack"])

    assert stack("--for", "torchtitan") == "torchtitan"
    assert stack("--for", "megatron", "--stack", "nemo") == "nemo"


def test_a_stack_with_a_name_of_its_own_goes_with_every_trainer(tmp_path, meshwright) -> None:
    path = tmp_path / "mine.yaml"
    for name, code in (("mine", 0), ("torchtitan", 2)):
        path.write_text(f"kind: stack\nname: {name}\n")
        flags = ("--for", "megatron", "--stack", str(path), "--layout", "dp8 mbs1 zero0")
        assert meshwright("estimate", *ON_H100, *flags)[0] == code
