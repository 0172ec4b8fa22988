"""How far intervals reach: as sources left out of every fit needed on either side, judged by the others alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.estimate import half_width
from cost_models.expected import Reach
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.measured.validation.scores import LeftOutRun, coverage_by_source, reach_of
from cost_models.pipeline.pricing import estimate, step_deviation, step_interval
from cost_models.question import Question
from cost_models.specs.hardware import TimedRuns
from cost_models.specs.training import TrainingSpec


def runs(source: str, logs: np.ndarray) -> list[LeftOutRun]:
    """Runs that took exp(`logs`) times as long as predicted, each with a deviation of a tenth."""
    return [LeftOutRun(source=source, error=float(np.expm1(-log)), deviation=0.1) for log in logs]


def skewed(sources: int, *, seed: int = 0) -> list[LeftOutRun]:
    """Sources of fifty runs with a deviation of 5 % towards faster steps and of 30 % towards slower ones."""
    draw = np.random.default_rng(seed).standard_normal((sources, 50))
    return [run for n, own in enumerate(draw) for run in runs(f"s{n}", np.where(own > 0, 0.3, 0.05) * own)]


def test_intervals_reach_as_far_as_either_side_needs() -> None:
    reach = reach_of(skewed(20))
    assert reach.slower == pytest.approx(3.0, rel=0.1)
    assert reach.faster == pytest.approx(0.5, rel=0.1)
    held = [-reach.faster <= run.needed <= reach.slower for run in skewed(20)]
    assert np.mean(held) == pytest.approx(0.9, abs=0.005)


def test_a_long_table_weighs_as_the_root_of_its_runs() -> None:
    """Of a hundred runs without error and a source of one run each way, the two take a sixth of the weight."""
    exact = runs("long", np.zeros(100))
    assert reach_of([*exact, *runs("a", np.array([1.0])), *runs("b", np.array([-1.0]))]).slower > 5
    assert reach_of([*exact, *runs("long", np.array([1.0, -1.0]))]) == Reach(faster=0.0, slower=0.0)


def test_a_source_is_judged_by_the_reach_of_all_others() -> None:
    """A source far from the others is not held, however far its own runs would have the interval reach."""
    assert not any(coverage_by_source([*skewed(20), *runs("odd", np.full(400, 3.0))])["odd"])
    drawn = coverage_by_source(skewed(20))
    assert np.mean([np.mean(own) for own in drawn.values()]) == pytest.approx(0.9, abs=0.01)


def test_without_a_deviation_nothing_is_claimed() -> None:
    known = skewed(4)
    unknown = LeftOutRun(source="silent", error=3.0, deviation=None)
    assert reach_of([*known, unknown]) == reach_of(known)
    assert "silent" not in coverage_by_source([*known, unknown])


@pytest.fixture(scope="module")
def question() -> Question:
    return complete_question(
        catalog.load_model("llama2-7b"),
        resolve_cluster("dgx-a100-80gb", 8),
        TrainingSpec(global_batch=64, sequence_length=4096),
    )


def timed_on(
    question: Question, *, gpu: str = "a100-sxm-80gb", stack: str = "megatron-core", **axes: str
) -> Question:
    runs_known = TimedRuns(
        source="lab", gpu=gpu, stack=stack, runs=9, median_error=0.05, fewest_gpus=8, most_gpus=64, axes=axes
    )  # fmt: skip
    hardware = question.hardware.model_copy(update={"timed": (runs_known,), "pair_error": 0.06})
    return replace(question, hardware=hardware)


def test_what_nobody_timed_is_less_sure(question: Question) -> None:
    layout = parse_layout("tp2 dp4 mbs1 zero1")

    def deviation(asked: Question) -> float:
        found = step_deviation(asked, layout, estimate(question, layout).step_seconds)
        assert found is not None
        return found

    known = deviation(timed_on(question, tp="1 2", zero="1"))
    an_axis = 0.06 / half_width(0.5)
    for other in (
        timed_on(question, zero="1"),
        timed_on(question, tp="1 2", zero="1", gpu="a100-pcie-80gb"),
        timed_on(question, tp="1 2", zero="1", stack="nemo"),
    ):
        assert deviation(other) == pytest.approx(np.hypot(known, an_axis))


def test_an_interval_reaches_further_towards_slower_steps(question: Question) -> None:
    told = question.hardware.scenarios
    assert told is not None
    sided = told.model_copy(update={"faster": 0.5, "slower": 2.0})
    asked = replace(question, hardware=question.hardware.model_copy(update={"scenarios": sided}))
    layout = parse_layout("dp8 mbs1 zero1")
    found = step_interval(asked, layout, 1.0, 0.9)
    deviation = step_deviation(asked, layout, 1.0)
    assert found is not None
    assert deviation is not None
    assert np.log(found) == pytest.approx(half_width(0.9) * deviation * np.array([-0.5, 2.0]))
    assert LeftOutRun(source="a", error=1 / found[1] - 1, deviation=deviation).needed == pytest.approx(2.0)
