"""`forecast`: what it prints, what it leaves as JSON and as a picture, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from cost_models.files.catalog import load_operations
from meshwright import Forecasted, InputError, estimate, forecast
from meshwright.verbs.forecast.forecasted import steps_between_checkpoints
from meshwright.verbs.plot import PlotOptions, plot
from planner.plan import load_plan


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("forecast") / "plan.yaml"
    estimate(
        "gpt3-175b", "dgx-h100", None, "tp8 pp16 dp64 mbs1 zero1", gpus=8192, global_batch=3072, sequence=2048
    ).save(path)
    return path


def test_dates_and_money_have_the_interval_of_the_step(plan) -> None:
    answer = forecast(plan, "3T", price="2.5/gpu-hour", start="2027-01-04")
    record, text = answer.record(), " ".join(" ".join(map(str, answer.text)).split())
    low, high = record["expected"]["step_seconds_90"]
    ends, costs, dates = record["ends_seconds"], record["costs"], record["dates"]
    assert ends["p95"] / ends["p5"] == pytest.approx(high / low, rel=0.1)
    assert costs["expected"] == pytest.approx(2.5 * 8192 * ends["expected"] / 3600)
    assert "2027-01-04" < dates["p5"] < dates["expected"] < dates["p95"]
    assert f"Ends on {dates['expected']}, 90 % interval {dates['p5']} to {dates['p95']}" in text
    assert "at $2.50 a GPU-hour" in text


def test_plan_and_forecast_say_the_same_of_a_run(tmp_path) -> None:
    """How our own executor starts, and that it reads a checkpoint twice, counts in both: here for 300 s of training."""
    asked = {"gpus": 8, "global_batch": 64, "sequence": 1024, "fix": ["tp=1", "pp=1", "mbs=4"], "top": 1}
    planned = mw.plan(
        "gpt2-medium", "dgx-h100", None, **asked, tokens="100M", operations="rsc1", stack="meshwright"
    )
    planned.save(tmp_path / "plan.yaml")
    said = forecast(tmp_path / "plan.yaml").record()
    assert planned.record()["training"]["ends_seconds"] == pytest.approx(said["ends_seconds"])
    assert said["parts"]["starting"] > 5


def test_the_curve_has_its_least_at_the_answer(plan) -> None:
    drawn = plot("forecast", plan, options=PlotOptions(tokens="3T", operations="llama3")).drawing
    curve = drawn.frame[drawn.frame["what"] == "interval"]
    (own,) = curve[curve["chosen"]].to_dict(orient="records")
    assert own["seconds"] == curve["seconds"].min()
    assert (curve["early_seconds"] < curve["late_seconds"]).all()
    assert "Saving every" in drawn.title
    assert isinstance(forecast(plan, "3T"), Forecasted)


def test_a_run_saves_as_often_as_the_forecast_finds_best(plan) -> None:
    loaded = load_plan(plan)
    every, known = steps_between_checkpoints(loaded, 100_000, "rsc1")
    tokens = 100_000 * loaded.training.tokens_per_step
    assert (every, known) == (forecast(plan, tokens, operations="rsc1").outlook.interval, "rsc1")


def test_a_run_that_nothing_starts_again_has_no_best_interval(plan) -> None:
    """Neither a spare node nor --restarts: the first failure is the end."""
    loaded = load_plan(plan)
    none = load_operations("llama3").model_copy(update={"spares": 0})
    with pytest.raises(InputError, match="the first failure ends the run"):
        steps_between_checkpoints(loaded, 100_000, none, restarts=0)
    assert steps_between_checkpoints(loaded, 100_000, none, restarts=3)[0] > 0
    assert steps_between_checkpoints(loaded, 100_000, "llama3", restarts=0)[0] > 0
