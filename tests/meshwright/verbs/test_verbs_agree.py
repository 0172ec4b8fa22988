"""One plan file, asked by every verb: the same step, expected step, interval, memory, limit, chance to fit and MFU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from command_line import SHOP

Ask = Callable[..., Mapping[str, Any]]
"""The JSON of a call."""
PRICES = ("layout", "step_seconds", "mfu", "causal_mfu", "peak_bytes", "memory_limit", "fits_probability")
STEPS = ("step_seconds", "step_seconds_90", "nearest", "borrowed")
DENSE = ("gpt2-medium", "dgx-h100", "--gpus", "16", "--global-batch", "64", "--sequence", "1024")
EXPERTS = ("qwen3-30b-a3b", "dgx-h100", "--gpus", "32", "--global-batch", "256", "--sequence", "4096")
TOKENS = ("--tokens", "100B", "--operations", "llama3", "--price", "2.5/gpu-hour", "--start", "2027-01-04")


@pytest.fixture
def ask(meshwright) -> Ask:
    def told(*words: str) -> Mapping[str, Any]:
        answer = meshwright.done(*words, "--json")
        found: Mapping[str, Any] = json.loads(answer.out)
        return found

    return told


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch) -> None:
    """A page's pictures are searched for; what agrees here are its figures."""
    monkeypatch.setattr("meshwright.families.transformer.pictures.pictures", lambda *_: iter(()))


@pytest.mark.parametrize(
    "question",
    [(*DENSE, "--fix", "tp=2", "--fix", "mbs=2"), (*EXPERTS, "--fix", "ep=8", "--fix", "tp=1")],
    ids=["several nodes", "experts"],
)
def test_verbs_say_the_same_of_a_transformer(ask, tmp_path, question) -> None:
    file = str(tmp_path / "plan.yaml")
    planned = ask("plan", *question, "-o", file)["recommended"]
    own, expected = _some(planned["plan"], PRICES), _some(planned["expected"], STEPS)
    words = question[: question.index("--fix")]
    estimated = ask("estimate", *words, "--layout", own["layout"])
    compared = ask("compare", file, own["layout"])
    reported = ask("report", file, *TOKENS, "-o", str(tmp_path / "page.html"))
    answers = {
        "estimate": (estimated["estimate"], estimated["expected"]),
        "compare": (compared["plans"][0], compared["plans"][0]["expected"]),
        "compared layout": (compared["plans"][1], compared["plans"][1]["expected"]),
        "report": (reported["plan"], reported["expected"]),
    }
    for verb in ("explain", "verify"):
        answer = ask(verb, file)
        answers[verb] = answer["plan"], answer["expected"]
        faster = answer.get("bottleneck", {}).get("faster_plan")
        assert faster is None or faster["memory_limit"] == own["memory_limit"]
    for verb, (price, step) in answers.items():
        assert _some(price, PRICES) == own, verb
        assert _some(step, STEPS) == expected, verb
    ends = ask("forecast", file, *TOKENS)
    assert ends == reported["forecast"]
    assert _some(ends["expected"], STEPS) == expected
    assert ends["job"]["step_seconds_on_paper"] == own["step_seconds"]
    assert ask("advise", file, "--time-limit", "5")["today"]["step_seconds"] == own["step_seconds"]
    (same,) = compared["against_first"]
    assert (same["ratio"], same["clear"]) == (1.0, False)


def test_verbs_say_the_same_of_a_recommender(ask, tmp_path) -> None:
    file, model = str(tmp_path / "plan.yaml"), tmp_path / "shop.yaml"
    model.write_text(SHOP)
    question = (str(model), "dgx-h100", "--gpus", "2", "--global-batch", "8K")
    planned = ask("plan", *question, "-o", file)
    own = planned["estimate"]
    assert ask("estimate", *question, "--layout", planned["layout"])["estimate"] == own
    assert [one["estimate"] for one in ask("compare", file, file)["plans"]] == [own, own]
    page = str(tmp_path / "page.html")
    for words in (("explain", file), ("verify", file), ("report", file, "-o", page)):
        assert ask(*words)["estimate"] == own, words[0]


def test_a_price_changes_neither_the_layout_nor_its_step(ask) -> None:
    plain = ask("plan", *EXPERTS)["recommended"]["plan"]
    for more in (("--price", "2.5"), ("--objective", "gpu-hours")):
        assert ask("plan", *EXPERTS, "--tokens", "1T", *more)["recommended"]["plan"] == plain


def test_what_training_costs_is_said_alike_by_plan_forecast_and_report(ask, tmp_path) -> None:
    file, page = str(tmp_path / "plan.yaml"), str(tmp_path / "page.html")
    words = ("--objective", "cost", "--tokens", "100B", "--price", "2.5", "--operations", "llama3")
    planned = ask("plan", *DENSE, "--fix", "tp=1", "--fix", "pp=1", *words, "-o", file)["training"]
    ends = ask("forecast", file)
    reported = ask("report", file, "-o", page)["forecast"]
    assert (ends["ends_seconds"], ends["costs"]) == (planned["ends_seconds"], planned["costs"])
    assert (reported["ends_seconds"], reported["costs"]) == (planned["ends_seconds"], planned["costs"])
    assert planned["cost_on_paper"] < planned["costs"]["p95"]


def _some(record: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: record[name] for name in names}
