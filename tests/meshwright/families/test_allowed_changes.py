"""`--allow` opens what changes the mathematics: never unasked, said in the plan, its text and its JSON."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw
from cost_models.errors import InputError
from meshwright.render.goals import count_sentence, flops_counted
from planner.plan import load_plan

JOB: dict[str, Any] = {"gpus": 2, "global_batch": 8, "sequence": 64, "precision": "fp32", "top": 1}
ALL = ["parallel-block,window=16", "lamb"]


def planned(**asked: Any) -> mw.Planned:
    return mw.plan("llama-nano", "local", **(JOB | asked))


def words_of(answer: mw.Planned) -> str:
    return " ".join(" ".join(str(part) for part in answer.text).split())


def test_what_is_allowed_is_planned_and_said(tmp_path) -> None:
    answer = planned(allow=ALL)
    answer.save(tmp_path / "plan.yaml")
    kept = load_plan(tmp_path / "plan.yaml")
    assert (kept.model.parallel_block, kept.model.attention_window) == (True, 16)
    assert kept.training.optimizer == "lamb"
    assert kept.model.changed == ("parallel-block", "window=16")
    text = words_of(answer)
    assert "llama-nano with `parallel-block`, `window=16` and `lamb` is another model than that" in text
    record = answer.record()
    assert record["question"]["changed"] == ["parallel-block", "window=16", "lamb"]
    without = record["step_seconds_without"]
    assert without["parallel-block"] > answer.best.step_seconds
    assert without["lamb"] < answer.best.step_seconds
    assert "without `lamb`" in text


def test_nothing_is_changed_unasked() -> None:
    answer = planned()
    assert answer.plan.model.changed == ()
    assert answer.plan.training.optimizer == "adamw"
    assert "changed" not in words_of(answer)
    assert answer.record()["question"]["changed"] == []
    assert "step_seconds_without" not in answer.record()


@pytest.mark.parametrize(
    ("model", "allow", "said"),
    [
        ("llama-nano", "window=64", "hides nothing of sequences of 64 tokens"),
        ("llama-nano", "window", "a window is written `window=1024`"),
        ("llama-nano", "window=0", "a window is written `window=1024`"),
        ("llama-nano", "window=8,window=16", "there are several windows"),
        ("llama-nano", "lamp", "parallel-block, window=N, lamb; did you mean `lamb`?"),
        ("gemma2-2b", "window=16", "`gemma2-2b` has windows of 4,096 tokens of its own"),
        ("gemma2-2b", "parallel-block", "a parallel_block has its norms before"),
        ("gpt-neox-20b", "parallel-block", "`gpt-neox-20b` has parallel blocks already"),
    ],
)
def test_what_cannot_be_allowed_is_refused(model: str, allow: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        mw.plan(model, "local", **(JOB | {"allow": [allow]}))
    assert said in str(raised.value)


def test_mfu_counts_what_is_within_windows() -> None:
    """By hand: 12 l·h FLOPs for each key that a query no longer attends to, forward and backward."""
    plain, windowed = (planned(allow=allow).question for allow in ([], ["window=16"]))
    counts = flops_counted(windowed, 1)
    model = windowed.model
    assert counts["without_windows"] - counts["mfu"] == 12 * model.num_layers * model.query_size * (64 - 16)
    assert counts["without_windows"] == flops_counted(plain, 1)["mfu"]
    assert "attention within windows, on average 16 of 64 keys a token" in " ".join(
        count_sentence(windowed, 1).split()
    )
    assert "attention without the causal mask" in " ".join(count_sentence(plain, 1).split())
