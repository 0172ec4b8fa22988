"""Host memory in the answers: what offloading layouts keep there, what they may, and no word of it elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import InputError
from cost_models.memory.device import USABLE
from meshwright import estimate, plan
from planner.plan import plan_text

JOB: dict[str, Any] = {"gpus": 1, "global_batch": 8, "sequence": 2048}
STREAMED = "mbs1 zero0 offload=streamed:28/states:4"


def priced(host_memory: str | None = None, layout: str = STREAMED) -> Any:
    return estimate(
        "llama2-13b", "hgx-h200", None, layout, stack="stronghold", host_memory=host_memory, **JOB
    )


def test_an_estimate_says_what_each_host_keeps() -> None:
    found = priced().estimate
    assert found.host_limit == pytest.approx(USABLE * 2 * 2**40)
    assert "host memory 163.1 GiB of 1.8 TiB on each host" in repr(priced())
    assert found.verdict == "fits"
    assert priced().record()["estimate"]["host_bytes"] == found.host_bytes


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


def test_a_plan_on_a_tight_host_fits_the_terminal() -> None:
    answer = plan(
        "llama2-13b", "hgx-h200", allow=["offload"], stack="meshwright", host_memory="125GiB", top=1, **JOB
    )
    text = "\n".join(map(str, answer.text))
    assert "\nhost memory   " in text
    assert "tight: measured peaks have been off" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_what_offloads_nothing_does_not_speak_of_hosts() -> None:
    answer = priced(layout="mbs1 zero0")
    assert "host" not in answer.record()["estimate"].keys() - {"parts"}
    assert not {"host_bytes", "host_limit"} & answer.rows[0].keys()
    assert "host memory" not in repr(answer)
    assert "host_bytes" not in answer.plan.prediction.model_dump(exclude_none=True)


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
