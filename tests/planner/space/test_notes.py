"""What an answer passes over is said: odd lengths, learned positions, limits that limit nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small import small_question

from cost_models.axes.layout import parse_layout
from cost_models.question import Question
from cost_models.units import GIB
from planner.rules.legality import check
from planner.rules.stack import question_objections
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions


def asked(positions: str = "rotary", stack: str = "megatron-core", **training: Any) -> Question:
    question = small_question(4, stack=stack, **training)
    return replace(question, model=question.model.model_copy(update={"positions": positions}))


def test_an_ordinary_question_has_none() -> None:
    assert notes_of(asked(), Restrictions(max_memory=0.5 * GIB)) == ()


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
