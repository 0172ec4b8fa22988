"""What timed runs say of one layout: the nearest of them, and what nobody timed."""

from __future__ import annotations

from dataclasses import replace

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.hardware import TimedRuns
from cost_models.specs.training import TrainingSpec
from cost_models.uncertainty import coverage_of


def question(*timed: TimedRuns) -> Question:
    training = TrainingSpec(global_batch=1536, sequence_length=2048)
    asked = complete_question(
        catalog.load_model("gpt3-175b"), resolve_cluster("dgx-a100-80gb", 1024), training
    )
    return replace(asked, hardware=asked.hardware.model_copy(update={"timed": timed}))


def runs(source: str, stack: str = "megatron-2021", most_gpus: int = 4096, **axes: str) -> TimedRuns:
    return TimedRuns(
        source=source, gpu="a100-sxm-80gb", stack=stack, runs=9, median_error=0.05,
        fewest_gpus=8, most_gpus=most_gpus, axes=axes,
    )  # fmt: skip


def test_a_profile_without_runs_says_nothing() -> None:
    assert coverage_of(question(), parse_layout("tp8 pp8 dp16")) is None


def test_the_nearest_runs_leave_least_untried() -> None:
    asked = question(runs("far", tp="1 2"), runs("near", tp="1 8", pp="1 16", most_gpus=64))
    found = coverage_of(asked, parse_layout("tp8 pp8 cp2 dp8 recompute=full"))
    assert found is not None
    assert found.nearest.source == "near"
    assert found.uncovered == ("cp2", "recompute=full")
    assert found.beyond_nearest == ("cp2", "recompute=full", "1,024 GPUs")


def test_of_runs_alike_those_under_its_stack_are_nearer() -> None:
    asked = question(runs("other", tp="8"), runs("own", stack="megatron-core", tp="8"))
    found = coverage_of(asked, parse_layout("tp8 dp128"))
    assert found is not None
    assert found.nearest.source == "own"
    assert found.uncovered == ()
