"""What holds for every price, whatever is asked: parts add up, nothing is negative, better hardware is never slower."""

from __future__ import annotations

import pytest
from fuzz_budget import inputs
from fuzz_questions import Asked, all_rates, asked, changed, faster_constants, linked
from hypothesis import given
from hypothesis import strategies as st

from cost_models.pipeline.pricing import estimate
from cost_models.question import Question

ROUNDING = 1e-9


@inputs(0.06)
@given(drawn=asked())
def test_parts_add_up_and_none_is_negative(drawn: Asked) -> None:
    priced = estimate(drawn.question, drawn.layout)
    assert priced.time.total == pytest.approx(priced.step_seconds, rel=ROUNDING)
    assert priced.step_seconds > 0
    for part, seconds in (*priced.time.items(), *priced.hidden_comm.items()):
        assert seconds >= 0, part
    for rank in priced.rank_memory:
        assert rank.total == pytest.approx(sum(rank.values()))
        for part, size in rank.items():
            assert size >= 0, part
    assert priced.peak_bytes == max(rank.total for rank in priced.rank_memory)
    assert 0 < priced.mfu <= priced.hfu < 1
    tokens = drawn.question.training.tokens_per_step
    assert priced.tokens_per_second * priced.step_seconds == pytest.approx(tokens)


@inputs(0.05)
@given(
    drawn=asked(),
    what=st.sampled_from(
        ["peak", "memory_bandwidth", "intra_node", "inter_node", "intra_latency", "inter_latency", "memory"]
    ),
    factor=st.floats(1.01, 4.0),
)
def test_more_of_anything_is_never_slower(drawn: Asked, what: str, factor: float) -> None:
    before = estimate(drawn.question, drawn.layout)
    after = estimate(_better(drawn.question, what, factor), drawn.layout)
    assert after.step_seconds <= before.step_seconds * (1 + ROUNDING)
    if what == "memory":
        assert after.step_seconds == before.step_seconds
        assert after.memory_limit > before.memory_limit
        assert after.fits >= before.fits


def _better(question: Question, what: str, factor: float) -> Question:
    gpu = question.cluster.gpu
    match what:
        case "peak":
            return changed(question, gpu={"peak": {name: rate * factor for name, rate in gpu.peak.items()}})
        case "memory_bandwidth" | "memory":
            return changed(question, gpu={what: getattr(gpu, what) * factor})
        case "intra_node" | "inter_node":
            return linked(question, factor, bandwidth=True, which=what)
        case _:
            which = what.replace("latency", "node")
            return linked(question, factor, bandwidth=False, which=which)


@inputs(0.04)
@given(drawn=asked(), factor=st.sampled_from([2.0, 0.5, 3.0]))
def test_all_rates_twice_is_half_the_time(drawn: Asked, factor: float) -> None:
    """No constant of time hides in the code: every second of a step comes from a rate or a time that somebody wrote,
    or from one of the few that are named here."""
    before = estimate(drawn.question, drawn.layout)
    with faster_constants(factor):
        after = estimate(all_rates(drawn.question, factor), drawn.layout)
    assert after.step_seconds * factor == pytest.approx(before.step_seconds, rel=ROUNDING)
    for (part, seconds), (_, then) in zip(after.time.items(), before.time.items(), strict=True):
        assert seconds * factor == pytest.approx(then, rel=1e-6, abs=before.step_seconds * ROUNDING), part
    assert after.rank_memory == before.rank_memory
