"""What of ZeRO-3's gathers a pass hides: those of stacks that fetch one matrix ahead and wait, and of all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.files import catalog
from cost_models.measured.calibration.profile_fits import under_nearest
from cost_models.measured.calibration.step_time_fit import errors_of
from cost_models.measured.runs.cases import timed_cases
from cost_models.pipeline import seconds
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.seconds import SLICE_SECONDS, Pieces, exposed_gathers_forward
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec


def asked(model: str = "gpt3-175b", gpus: int = 64, **facts: Any) -> Question:
    """Nothing slows down what overlaps."""
    hardware = catalog.load_profile("datasheet-gpu").model_copy(update={"overlap_slowdown": 0.0})
    return Question(
        model=catalog.load_model(model),
        cluster=catalog.load_cluster("dgx-a100-80gb").model_copy(update={"nodes": gpus // 8}),
        training=TrainingSpec(global_batch=gpus, sequence_length=2048),
        stack=catalog.load_stack("deepspeed-v0.5").model_copy(update=facts),
        hardware=hardware,
    )


def test_each_matrix_hides_the_gather_of_the_next_and_no_other() -> None:
    """Of 12 h² weights the four matrices have 3, 1, 4 and 4; what is gathered for the next outlasts some."""
    question = asked()
    pieces = Pieces(question, LayoutColumns.of([parse_layout("dp64 zero3")]), True)
    gather, window = float(pieces.links.block.gather[0]), float(pieces.forward_window[0])
    products, core = float(pieces.block.matrices_forward[0]), float(pieces.block.core_forward[0])
    compute = np.array([3, 1, 4, 4]) / 12 * (window - core) + [core, 0, 0, 0]
    assert products > 0.8 * (window - core)
    wanted = 4 * 64 * SLICE_SECONDS + np.maximum(0, gather * np.array([1, 4, 4, 3]) / 12 - compute).sum()
    shown, hidden = exposed_gathers_forward(pieces)
    assert shown[0] == pytest.approx(wanted, rel=0.05)
    assert shown[0] + hidden[0] == pytest.approx(gather + 4 * 64 * SLICE_SECONDS)
    at_once, _ = exposed_gathers_forward(Pieces(asked(zero3_waits_for_device=False), pieces.columns, True))
    assert at_once[0] == pytest.approx(max(0.0, gather - window))


@pytest.mark.parametrize(("model", "gathers"), [("gpt3-175b", 2 + 8 / 12), ("llama2-7b", 2)])
def test_what_is_recomputed_is_gathered_again_unless_it_was_kept(model: str, gathers: float) -> None:
    """Of GPT-3 the last matrix alone is used again before 1e9 parameters pass, of 7B everything is."""
    question = asked(model, zero3_waits_for_device=False)
    moved = []
    for policy in ("none", "full"):
        priced = estimate(question, parse_layout(f"dp64 zero3 recompute={policy}"))
        moved.append(priced.time["dp_comm"] + priced.hidden_comm["dp_comm"])
    block = Pieces(question, LayoutColumns.of([parse_layout("dp64 zero3")]), True).links.block
    more = question.model.num_layers * float(block.gather[0]) * (gathers - 2)
    assert moved[1] - moved[0] == pytest.approx(more, rel=1e-4, abs=1e-9)


def test_zero3_of_2021_collapses_with_few_tokens_a_gpu() -> None:
    """Table 2 of Narayanan et al. 2021: half the tokens a GPU on twice the GPUs take as long."""
    cases = [one for one in timed_cases() if one.question.stack.name == "deepspeed-v0.5"]
    assert len(cases) == 6
    errors = errors_of(under_nearest([catalog.load_profile("a100-deepspeed")], cases))
    assert np.median(np.abs(errors)) < 0.1
    assert np.abs(errors).max() < 0.2


@pytest.mark.parametrize("layout", ["dp64 zero2", "dp64 zero1 recompute=full", "tp8 dp8"])
def test_other_stages_wait_for_nothing_more(layout: str) -> None:
    waits, does_not = (
        estimate(asked(zero3_waits_for_device=way), parse_layout(layout)).step_seconds
        for way in (True, False)
    )
    assert waits == pytest.approx(does_not)


def test_blocks_without_attention_hide_gathers_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Jamba's blocks one in eight has attention: the others' matrices are gathered behind all else that they run."""
    question = asked("jamba-52b")
    priced = estimate(question, parse_layout("dp64 zero3 recompute=full"))
    monkeypatch.setattr(seconds, "SLICE_SECONDS", 0.0)
    free = estimate(question, parse_layout("dp64 zero3 recompute=full"))
    assert priced.step_seconds > free.step_seconds
    assert free.hidden_comm["dp_comm"] > 0
