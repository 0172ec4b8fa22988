"""Host memory, drives and changes of the mathematics in the answers: said where they are, and no word elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw
from cost_models.errors import InputError
from cost_models.memory.device import USABLE
from meshwright import estimate, plan
from meshwright.render.goals import count_sentence, flops_counted
from planner.plan import load_plan, plan_text

JOB: dict[str, Any] = {"gpus": 1, "global_batch": 8, "sequence": 2048}
STREAMED = "mbs1 zero0 offload=streamed:28/states:4"


def priced(host_memory: str | None = None, layout: str = STREAMED) -> Any:
    return estimate(
        "llama2-13b", "hgx-h200", None, layout, stack="stronghold", host_memory=host_memory, **JOB
    )


def test_a_host_too_small_is_a_verdict() -> None:
    answer = priced("128GiB")
    assert answer.estimate.verdict == "does not fit: host"
    assert not answer.estimate.fits
    assert "does not fit: 47.9 GiB too many" in repr(answer)
    assert answer.estimate.step_seconds == priced().estimate.step_seconds


def test_a_host_may_be_tight() -> None:
    """Where it holds what is offloaded with less to spare than peaks have been missed by."""
    needs = priced().estimate.host_bytes / USABLE
    close, wide = (priced(f"{share * needs / 2**30:.2f}GiB") for share in (1.001, 2.0))
    assert close.estimate.fits
    assert close.estimate.verdict == close.record()["estimate"]["verdict"] == "tight"
    (line,) = [one for one in repr(close).replace("\n  ", " ").splitlines() if one.startswith("host memory")]
    assert "tight: measured peaks have been off" in line
    assert wide.estimate.verdict == "fits"


def test_forbidding_what_is_closed_changes_nothing() -> None:
    default, forbidden = (plan("llama2-7b", "hgx-h200", forbid=words, **JOB) for words in ([], ["offload"]))
    assert plan_text(default.plan) == plan_text(forbidden.plan)
    assert "host_bytes" not in plan_text(default.plan)


def test_words_that_open_and_shut_contradict_one_another() -> None:
    with pytest.raises(InputError) as refused:
        plan("llama2-7b", "hgx-h200", forbid=["offload"], allow=["offload"], fix=["offload_states=2"], **JOB)
    told = "--forbid offload: is opened by `--allow offload` and `--fix offload_states=2`"
    assert told in [str(problem) for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("said", "why"),
    [("12x", "is not a size"), ("4 KiB", "is no memory of a host"), ("2000 TB", "is no memory of a host")],
)
def test_a_host_memory_that_is_none_is_refused(said: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        priced(said)


CHANGED_JOB: dict[str, Any] = {"gpus": 2, "global_batch": 8, "sequence": 64, "precision": "fp32", "top": 1}
ALL = ["parallel-block,window=16", "lamb"]


def planned(**asked: Any) -> mw.Planned:
    return mw.plan("llama-nano", "local", **(CHANGED_JOB | asked))


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
        mw.plan(model, "local", **(CHANGED_JOB | {"allow": [allow]}))
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
