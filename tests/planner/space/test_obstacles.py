"""When nothing is legal the rules in the way are told, and what an answer passes over is said."""

from __future__ import annotations

import re
from typing import Any

import pytest
from asking import change
from effort import number
from hypothesis import given, settings
from hypothesis import strategies as st
from small import every_axis, small_question

from cost_models.axes.layout import parse_layout
from cost_models.errors import InfeasibleError, InputError
from cost_models.question import Question
from cost_models.units import GIB
from planner.rules.legality import check
from planner.rules.stack import question_objections
from planner.search.search import search
from planner.space.obstacles import notes_of, nothing_legal, obstacles
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.sizes import resized
from planner.space.space import legal_space

QUESTION = small_question(8)


def test_the_rules_that_stand_in_the_way_are_told() -> None:
    for fix, trainer, why, hint in [
        (["tp=16"], None, ["`tp16` does not divide 8 GPUs"], "tp8 would"),
        (["zero=3"], None, ["software stack `megatron-core` cannot run `zero3`"], "it has zero0 or zero1"),
        (["tp=4", "dp=4"], None, ["`tp4 dp4` do not divide 8 GPUs"], "dp2 would"),
        (["mbs=3"], None, ["global batch 8 is not a multiple of dp1 x mbs3"], "6 and 9 are"),
        (["vpp=2", "schedule=1f1b"], None, ["`vpp=2` and `schedule=1f1b` exclude one another"], "loosen"),
        (["zero=3"], "megatron", ["Megatron's distributed optimizer shards"], "it has zero0"),
    ]:
        with pytest.raises(InfeasibleError, match="is legal with global batch 8") as caught:
            search(QUESTION, restrictions=parse_restrictions(fix, trainer=trainer))
        told = [problem.what for problem in caught.value.problems]
        for words in why:
            assert any(words in one for one in told), told
        assert hint in caught.value.hint
        named = " ".join(f"--fix {word}" for word in fix) + f" --for {trainer}" * (trainer is not None)
        assert caught.value.headline.endswith(f"under {named}")


@pytest.mark.parametrize(("gpus", "batch"), [(7, 8), (11, 8), (13, 6)])
def test_sizes_that_a_hint_names_are_legal(gpus: int, batch: int) -> None:
    question = small_question(gpus, global_batch=batch)
    hint = nothing_legal(question, parse_restrictions([])).hint
    sizes = re.findall(r"--(gpus|global-batch) (\d+)", hint)
    assert sizes, hint
    for flag, value in sizes:
        gpus_or_batch = (int(value), batch) if flag == "gpus" else (gpus, int(value))
        assert not obstacles(resized(question, *gpus_or_batch), parse_restrictions([])), hint


AXES = ("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "mbs", "shard", "zero")


@st.composite
def words(draw: st.DrawFn) -> str:
    axis = draw(st.sampled_from([*AXES, "schedule", "context", "order", "sp"]))
    if axis in AXES:
        return f"{axis}{draw(st.sampled_from(['=', '>=', '<=']))}{draw(st.integers(1, 3 if axis == 'zero' else 9))}"
    choices = {
        "schedule": ["1f1b", "gpipe", "interleaved", "zbv"],
        "context": ["ring", "all-to-all"],
        "order": ["tp-pp-cp-dp", "tp-cp-dp-pp"],
        "sp": ["0", "1"],
    }
    return f"{axis}={draw(st.sampled_from(choices[axis]))}"


@settings(deadline=None, max_examples=number(50, 150))
@given(st.lists(words(), min_size=1, max_size=4), st.lists(words(), max_size=2), st.booleans())
def test_an_empty_space_has_a_reason(fix: list[str], forbid: list[str], every: bool) -> None:
    asked = every_axis(QUESTION) if every else QUESTION
    try:
        limits = parse_restrictions(fix, forbid)
    except InputError:
        return
    if not len(legal_space(asked, limits)):
        assert obstacles(asked, limits)


def test_on_more_ranks_than_a_model_has_stages_the_obstacle_is_still_told() -> None:
    """A layout of 16,384 stages cannot even be written down."""
    question = change(small_question(8), cluster={"nodes": 1024})
    with pytest.raises(InfeasibleError, match="no layout"):
        search(question, restrictions=parse_restrictions(["cp=1"]))


def asked(positions: str = "rotary", stack: str = "megatron-core", **training: Any) -> Question:
    return change(small_question(4, stack=stack, **training), model={"positions": positions})


@pytest.mark.parametrize(
    ("length", "ranks", "better"),
    [(255, "2 or 4", "256"), (254, "4", "256"), (1001, "2 or 4", "1,000"), (3, "2 or 4", "8")],
)
def test_a_length_that_divides_badly_is_told_with_a_better_one(length: int, ranks: str, better: str) -> None:
    (note,) = notes_of(asked(sequence_length=length))
    assert f"cannot be shared by {ranks} ranks" in note
    assert note.endswith(f"; {better} tokens do better")
    whole = asked(sequence_length=int(better.replace(",", "")))
    assert notes_of(whole) == ()
    assert not check(whole, parse_layout("tp4 sp"))


def test_gradients_in_fp8_want_whole_sixteens() -> None:
    (note,) = notes_of(asked(sequence_length=248, precision="fp8"))
    assert "whole sixteens" in note
    assert notes_of(asked(sequence_length=256, precision="fp8")) == ()


def test_learned_positions_are_priced_longer_with_a_note_and_refused_where_they_would_be_trained() -> None:
    (note,) = notes_of(asked("learned", sequence_length=4096))
    assert note.startswith("small has 2,048 learned positions; sequences of 4,096 tokens need a longer table")
    assert "1.049 M more parameters" in note
    ours = asked("learned", stack="meshwright", sequence_length=4096)
    assert notes_of(ours) == ()
    (words,) = question_objections(ours)
    assert words.what == "`small` has 2,048 learned positions; sequences have 4,096 tokens"
    assert not question_objections(asked("learned", stack="meshwright", sequence_length=2048))
    assert not question_objections(asked("rotary", stack="meshwright", sequence_length=4096))


def test_a_memory_limit_beyond_the_device_is_told() -> None:
    (note,) = notes_of(asked(), Restrictions(max_memory=2 * GIB))
    assert note == "--max-memory 2.0 GiB limits nothing: a plan may fill 962.6 MiB of `small-gpu` at most"
