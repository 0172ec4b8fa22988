"""`plan`: the table, the documents, replays, and answers that are no."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from calling import CommandLine
from command_line import ASKED, BIG, QUICK

import meshwright as mw
from cost_models.errors import DoesNotFitError
from cost_models.risk import FITTING
from cost_models.units import format_bytes
from planner.plan import load_plan

PADDED = "assumed: `megatron-core` pads the vocabulary of 50,257 to a multiple of 128 x tp: 50,304 at tp1\n"

SMALL = ("gpt2-small", "dgx-a100-80gb", "--global-batch", "64", "--sequence", "1024", *QUICK)


def require_same_replay(meshwright: CommandLine, plan: Path) -> None:
    """Its question is answered by a file of the same bytes."""
    again = plan.with_name("again.yaml")
    assert meshwright("plan", "--replay", str(plan), *QUICK, "-o", str(again)).code == 0
    assert again.read_bytes() == plan.read_bytes()


def test_a_replay_keeps_the_restrictions_and_the_number_of_plans(meshwright, tmp_path: Path) -> None:
    first, again = tmp_path / "plan.yaml", tmp_path / "again.yaml"
    limits = ("--fix", "tp=2", "--forbid", "zero1", "--max-memory", "40GiB", "--top", "2")
    assert meshwright("plan", *ASKED, *QUICK, *limits, "-o", str(first)).code == 0
    replayed = meshwright("plan", "--replay", str(first), "-o", str(again), "--json")
    assert len(json.loads(replayed.out)["plans"]) == 2
    assert again.read_bytes() == first.read_bytes()
    answer = meshwright("explain", str(first), "--why-not", "dp8 mbs8")
    assert "the plan's restrictions kept it out" in " ".join(answer.out.split())


def test_what_the_answer_passes_over_is_noted_everywhere(meshwright, tmp_path: Path) -> None:
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


def test_what_a_plan_proves_of_its_rivals_is_not_searched_again(
    meshwright, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsearched(*_: object, **__: object) -> None:
        raise AssertionError("rivals were searched again")

    path = str(tmp_path / "plan.yaml")
    assert meshwright("plan", *ASKED, *QUICK, "--pick", "fastest", "-o", path).code == 0
    monkeypatch.setattr("planner.explain.reasons.search_on", unsearched)
    explained = meshwright("explain", path, "--json")
    picture = meshwright("plot", "time", path, "--json", "-o", str(tmp_path / "time.png"))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    assert meshwright("explain", path, "--json") == explained
    assert picture.code == 0


def test_interrupting_before_anything_is_known(meshwright, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.search.search.search_on", interrupted)
    answer = meshwright("plan", *ASKED)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.startswith(f"{PADDED}error: interrupted")


def test_interrupting_says_the_best_so_far(
    meshwright, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_restrictions_that_leave_nothing_are_named(meshwright) -> None:
    answer = meshwright("plan", *ASKED, "--fix", "tp=3", "--forbid", "zero3")
    assert answer.err == (
        f"{PADDED}error: no layout of gpt2-small on 8 GPUs is legal with global batch 64 under"
        " --fix tp=3 --forbid zero=3\n"
        "  `tp3` does not divide 8 GPUs\n\n"
        "hint: tp2 or tp4 would\n"
    )
    assert answer.code == 1


def test_what_would_fit_is_said_in_words_in_json_and_in_python(
    meshwright, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_assumptions_about_a_hugging_face_config_are_said(meshwright, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4,'
        ' "intermediate_size": 512, "vocab_size": 1000}'
    )
    words = ("plan", str(config), *ASKED[1:], *QUICK, "--json")
    answer = meshwright(*words)
    assert answer.code == 0
    assumed = json.loads(answer.out)["assumptions"]
    assert assumed
    assert [f"assumed: {one}" for one in assumed] == answer.err.splitlines()
    assert meshwright(*words, "--quiet").err == ""


def test_the_cheapest_of_several_sizes(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    goal = ("--objective", "cost", "--tokens", "10B", "--price", "2.5", "--gpus", "4,8,16")
    answer = meshwright("plan", *SMALL, *goal, "-o", str(path), "--top", "2")
    assert answer.code == 0
    assert re.search(r"^# +GPUs +layout +step +MFU +cost +peak mem +bound by", answer.out, re.MULTILINE)
    words = " ".join(answer.out.split())
    assert "10 B tokens in 152,588 steps: " in words
    assert " at $2.50 each" in words
    assert " is proved the lowest over 4, 8 and 16 GPUs: " in words
    assert max(len(line.rstrip()) for line in answer.out.splitlines()) <= 80
    require_same_replay(meshwright, path)
    document = meshwright.json("plan", *SMALL, *goal)["objective"]
    assert (document["name"], document["unit"], document["gpus"]) == ("cost", "money", [4, 8, 16])
    assert document["value"] == document["bound"]


def test_fewest_gpus(meshwright) -> None:
    goal = ("--objective", "gpus", "--gpus", "32", "--tokens", "10B", "--deadline", "12h")
    answer = meshwright("plan", *SMALL, *goal)
    assert answer.code == 0
    words = " ".join(answer.out.split())
    assert re.search(
        r" \d+ GPUs are proved the lowest over 8, 16 and 32 GPUs( \(\d+: at least .*\))?: ", words
    )
    never = meshwright("plan", *SMALL, *goal[:-1], "1min")
    assert never.code == 1
    assert never.err.startswith(f"{PADDED}error: no plan of gpt2-small trains on 10 B tokens within ")
    assert "\n  32 GPUs: at least " in never.err


def test_a_cluster_of_a_file_ends_where_it_says(meshwright, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        "kind: cluster\nname: two-nodes\ngpu: a100-sxm-80gb\ngpus_per_node: 8\nnodes: 2\nlinks:\n"
        "  intra_node: {kind: nvlink, bandwidth: 300 GB/s, latency: 3 us}\n"
        "  inter_node: {kind: infiniband, bandwidth: 200 Gb/s, latency: 5 us}\n"
    )
    answer = meshwright("plan", SMALL[0], str(cluster), *SMALL[2:], "--gpus", "8..32")
    assert answer.err.startswith("error: 32 GPUs are more than cluster `two-nodes` has, 16\n")


def test_a_choice_of_precisions_is_kept_in_the_plan(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    answer = meshwright("plan", *ASKED, *QUICK, "--precision", "fp32,bf16", "-o", str(path))
    assert answer.code == 0
    assert answer.err.startswith(f"{PADDED}note: in fp32 the best is ")
    assert "proved optimal under the cost model in " in answer.out
    plan = load_plan(path)
    assert (plan.training.precision, plan.objective.precisions) == ("bf16", ("fp32", "bf16"))
    require_same_replay(meshwright, path)
    assert meshwright("verify", str(path)).code == 0


def test_the_plan_that_is_written_is_the_one_to_run(meshwright, tmp_path: Path) -> None:
    first, paper = tmp_path / "plan.yaml", tmp_path / "paper.yaml"
    answer = meshwright("plan", *BIG, *QUICK, "--json", "-o", str(first))
    document = json.loads(answer.out)
    told = document["recommended"]
    assert load_plan(first).layout.brief in told["plan"]["layout"]
    assert told["fastest_on_paper"]["layout"] == document["plans"][0]["layout"]
    assert told["plan"]["step_seconds"] >= document["plans"][0]["step_seconds"]
    require_same_replay(meshwright, first)
    explained = meshwright("explain", str(first))
    assert "Recommended: " in explained.out
    limits = {
        format_bytes(one["memory_limit"]) for one in (told["plan"], load_plan(first).prediction.model_dump())
    }
    assert len(limits) == 1
    assert f"of {limits.pop()}" in " ".join(explained.out.split())  # one plan, one limit
    assert told["plan"]["fits_probability"] >= FITTING
    assert document["export"] == {"to": "megatron", "why_not": ""}
    answer = meshwright("plan", *BIG, *QUICK, "--pick", "fastest", "-o", str(paper))
    assert "recommended" not in answer.out
    assert str(load_plan(paper).layout) == document["plans"][0]["layout"]


def test_a_recommendation_that_time_did_not_allow_is_missed(
    meshwright, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.answers.recommend.recommend", lambda *_: None)
    answer = meshwright("plan", *ASKED)
    assert answer.code == 0
    assert "warning: time ran out before simpler layouts" in answer.err
    assert "warning: time ran out" not in meshwright("plan", *ASKED, "--pick", "fastest").err


def test_a_plan_of_before_has_no_recommendation(meshwright, plan_file: Path, tmp_path: Path) -> None:
    old, again = tmp_path / "old.yaml", tmp_path / "again.yaml"
    assert meshwright("plan", *ASKED, *QUICK, "--pick", "fastest", "-o", str(old)).code == 0
    text = old.read_text("utf-8")
    assert "recommendation: null\n" in text
    old.write_text(text.replace("recommendation: null\n", ""), "utf-8")
    assert meshwright("plan", "--replay", str(old), *QUICK, "-o", str(again)).code == 0
    assert load_plan(again) == load_plan(old)


def test_the_expected_step_is_minimised_verified_and_replayed(meshwright, tmp_path: Path) -> None:
    first = tmp_path / "first.yaml"
    answer = meshwright("plan", *ASKED, *QUICK, "--risk", "neutral", "--json", "-o", str(first))
    document = json.loads(answer.out)
    weighed = [plan["weighed_seconds"] for plan in document["plans"]]
    assert weighed == sorted(weighed)
    proof = document["certificate"]
    assert (proof["minimised"], proof["scenarios"], proof["gap"]) == ("neutral", 16, 0)
    assert proof["bound"] == pytest.approx(weighed[0])
    require_same_replay(meshwright, first)
    assert meshwright("verify", str(first)).code == 0
