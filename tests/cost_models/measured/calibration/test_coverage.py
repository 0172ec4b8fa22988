"""What of a layout no run of its profile had."""

from __future__ import annotations

from dataclasses import replace

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.estimate import words_beyond_runs
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.hardware import TimedRuns
from cost_models.specs.training import TrainingSpec


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
    assert words_beyond_runs(question(), parse_layout("tp8 pp8 dp16")) == ()


def test_what_no_run_of_the_profile_had_is_named() -> None:
    asked = question(runs("far", tp="1 2"), runs("near", tp="1 8", pp="1 16", most_gpus=64))
    assert words_beyond_runs(asked, parse_layout("tp8 pp8 cp2 dp8 recompute=full")) == (
        "cp2",
        "recompute=full",
    )
