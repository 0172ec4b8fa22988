"""Windows of attention: what queries see, by counting it, and what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files.catalog import load_model
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.operators.flops import forward_flops
from cost_models.pipeline.pricing import estimate
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.rules.stack import require_runnable

SMALL = {"num_layers": 8, "hidden_size": 64, "num_heads": 4, "vocab_size": 256, "attention_window": 10}


def spec(**change: object) -> TransformerSpec:
    return TransformerSpec.model_validate(SMALL | change)


@pytest.mark.parametrize("length", [7, 10, 25, 40])
@pytest.mark.parametrize("kind", ["sliding", "chunked"])
def test_what_a_query_sees_is_counted(kind: str, length: int) -> None:
    """Up to the diagonal's half, which the field counts as half of a square."""
    first = {"sliding": lambda at: max(0, at - 9), "chunked": lambda at: at - at % 10}[kind]
    by_counting = sum(at - first(at) + 0.5 for at in range(length)) / length
    assert spec(window_kind=kind).unmasked(length) == pytest.approx(by_counting, abs=0.5)
    assert spec(window_kind=kind).attended(length) == min(10, length)


def test_blocks_take_turns() -> None:
    """[window, window, full] over eight blocks: full are the third and the sixth."""
    model = spec(window_pattern=["window", "window", "full"])
    windows = [model.window_of(layer) for layer in range(8)]
    assert windows == [10, 10, None, 10, 10, None, 10, 10]
    assert model.windowed_share == 6 / 8
    assert model.attended(40) == (6 * 10 + 2 * 40) / 8
    attention = 4 * 40 * model.attended(40) * model.query_size
    assert forward_flops(model, 40).block_attention == attention


def test_a_step_of_blocks_in_turns_lies_between_all_and_none() -> None:
    """Seconds and FLOPs are the means over the blocks, so that half of them saves half of what all do."""
    question = complete_question(
        load_model("llama3-8b"),
        resolve_cluster("dgx-h100", 8),
        TrainingSpec(global_batch=8, sequence_length=32768),
    )
    compute = []
    for change in (
        {},
        {"attention_window": 4096, "window_pattern": ("window", "full")},
        {"attention_window": 4096},
    ):
        model = question.model.model_copy(update=change)
        compute.append(estimate(replace(question, model=model), Layout(dp=8, zero=3)).time["compute"])
    none, half, every = compute
    assert none > half > every
    assert none - half == pytest.approx(half - every)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"attention_window": None, "window_pattern": ["window"]}, "window_pattern is for windows"),
        ({"attention_window": None, "window_kind": "chunked"}, "window_kind is for windows"),
        ({"window_pattern": ["full"] * 9}, "names 9 blocks, and num_layers is 8"),
    ],
)
def test_windows_that_contradict_themselves(change: dict[str, object], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        spec(**change)


def test_mistral_has_its_window() -> None:
    assert resolve_model("mistral-7b").spec.attended(32768) == 4096
    assert resolve_model("mistral-7b").assumptions == ()


def test_a_model_that_is_more_than_its_spec_is_priced_and_not_run() -> None:
    model = load_model("llama3-8b").model_copy(update={"left_out": ("attention sinks", "soft-capped scores")})
    question = complete_question(
        model, resolve_cluster("dgx-h100", 8), TrainingSpec(global_batch=8, sequence_length=4096)
    )
    with pytest.raises(InputError, match="no attention sinks or soft-capped scores: it would train another"):
        require_runnable(question, Layout(dp=8))
