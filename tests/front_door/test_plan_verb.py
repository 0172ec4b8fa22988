"""`plan`: the table, the documents, replays, and answers that are no."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from command_line import ASKED, BIG, QUICK


def test_plan_in_words(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    answer = meshwright("plan", *BIG, *QUICK, "-o", str(path))
    assert answer.code == 0
    assert answer.out.startswith("gpt3-175b on 1024 x a100-sxm-80gb (128 nodes)")
    assert "Proved optimal: " in answer.out
    assert "gap 0 %" in answer.out
    assert max(len(line.rstrip()) for line in answer.out.splitlines()) <= 80
    assert answer.err == f"Wrote {path}. Next: meshwright explain {path}, meshwright run {path}\n"
    assert path.exists()


def test_plan_as_json_is_one_document(meshwright) -> None:
    answer = meshwright("plan", *ASKED, *QUICK, "--json", "--top", "3")
    document = json.loads(answer.out)
    assert document["schema"] == 1
    assert [plan["step_seconds"] for plan in document["plans"]] == sorted(
        plan["step_seconds"] for plan in document["plans"]
    )
    best = document["plans"][0]
    assert sum(best["parts"].values()) == pytest.approx(best["step_seconds"])
    assert max(sum(rank.values()) for rank in best["memory"]) == pytest.approx(best["peak_bytes"])
    assert {"layout", "mfu", "hfu", "peak_bytes", "fits", "trust"} <= set(best)
    certificate = document["certificate"]
    assert certificate["gap"] == 0
    counts = ("infeasible", "pruned", "solved", "undecided")
    assert certificate["layouts"] == sum(certificate[name] for name in counts)


def test_plan_as_csv(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    assert meshwright("plan", *ASKED, *QUICK, "--top", "2", "--csv", str(path)).code == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 2
    assert float(rows[0]["step_seconds"]) <= float(rows[1]["step_seconds"])


def test_a_plan_replays_to_the_same_bytes(meshwright, plan_file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.yaml"
    assert meshwright("plan", "--replay", str(plan_file), *QUICK, "-o", str(again)).code == 0
    assert again.read_bytes() == plan_file.read_bytes()


def test_a_replay_keeps_the_restrictions_and_the_number_of_plans(meshwright, tmp_path: Path) -> None:
    first, again = tmp_path / "plan.yaml", tmp_path / "again.yaml"
    limits = ("--fix", "tp=2", "--forbid", "zero1", "--max-memory", "40GiB", "--top", "2")
    assert meshwright("plan", *ASKED, *QUICK, *limits, "-o", str(first)).code == 0
    replayed = meshwright("plan", "--replay", str(first), "-o", str(again), "--json")
    assert len(json.loads(replayed.out)["plans"]) == 2
    assert again.read_bytes() == first.read_bytes()
    answer = meshwright("explain", str(first), "--why-not", "dp8 mbs8")
    assert "the plan's restrictions kept out" in answer.out


def test_fixed_axes_are_kept(meshwright) -> None:
    answer = meshwright("plan", *ASKED, *QUICK, "--fix", "tp=2", "--forbid", "zero1", "--json")
    for plan in json.loads(answer.out)["plans"]:
        assert "tp2 " in plan["layout"]
        assert "zero1" not in plan["layout"]


def test_interrupting_before_anything_is_known(meshwright, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.budget.search", interrupted)
    answer = meshwright("plan", *ASKED)
    assert (answer.code, answer.out, answer.err) == (130, "", "")


def test_restrictions_that_leave_nothing_are_named(meshwright) -> None:
    answer = meshwright("plan", *ASKED, "--fix", "tp=3", "--forbid", "zero3")
    assert answer.err == (
        "error: no layout of gpt2-small on 8 GPUs is legal with global batch 64 under --fix tp=3 --forbid zero=3\n\n"
        "hint: loosen --fix and --forbid\n"
    )
    assert answer.code == 1


def test_nothing_fits_is_an_answer_not_a_mistake(meshwright) -> None:
    answer = meshwright("plan", *BIG[:2], "--gpus", "16", "--global-batch", "16", "--sequence", "2048")
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.startswith("error: no layout of gpt3-175b fits ")
    assert "\nhint: " in answer.err


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
