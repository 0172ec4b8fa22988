"""Tests of the words that say what of a rank's blocks lives in host memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, Offload, parse_layout
from cost_models.axes.words import EVERY
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from planner.rules.legality import check


@pytest.mark.parametrize(
    ("words", "wanted", "ring"),
    [
        ("", Offload(), 2),
        ("offload=streamed:28/states:4 ring=4", Offload(states=4, streamed=28), 4),
        ("offload=parked", Offload(parked=EVERY), 2),
        ("offload=streamed:3/states", Offload(states=EVERY, streamed=3), 2),
        ("offload=activations", Offload(activations=EVERY), 2),
        ("offload=states/drive", Offload(states=EVERY, drive=EVERY), 2),
        ("offload=states ring=3", Offload(states=EVERY), 2),  # without streamed weights there is no ring
    ],
)
def test_words_are_read_written_and_kept_in_columns(words: str, wanted: Offload, ring: int) -> None:
    layout = parse_layout(f"dp2 zero1 {words}")
    assert (layout.offload, layout.ring) == (wanted, ring)
    assert parse_layout(str(layout)) == layout
    assert LayoutColumns.of([layout]).layout(0) == layout


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("offload=weights:3", "is not a part like those of"),
        ("offload=states:", "is not a part"),
        ("offload=states:1000000", "is not a part"),
        ("offload=states/streamed", "states and streamed of every block"),
        ("ring=0", "ring"),
    ],
)
def test_what_is_no_offload_is_said(word: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_layout(word)
    assert said in " ".join(str(problem) for problem in refused.value.problems)


def asked(*residencies: str) -> Question:
    """GPT-2 on two GPUs with a stack that has these."""
    training = TrainingSpec(global_batch=8, sequence_length=1024)
    question = complete_question(
        catalog.load_model("gpt2-small"), resolve_cluster("dgx-a100-80gb", 2), training
    )
    stack = question.stack.model_copy(update={"residencies": residencies})
    return replace(question, stack=stack)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("offload=streamed:13", "moves 13 blocks of every rank; `pp1` gives a rank 12"),
        ("offload=streamed:3 ring=4", "more buffers than the 3 blocks"),
        ("offload=activations:3", "of all blocks move, or of none"),
        ("offload=states", "cannot keep `states` of a block in host memory"),
    ],
)
def test_rules_name_what_a_rank_or_a_stack_has_not(words: str, said: str) -> None:
    question = asked("streamed", "activations")
    (problem,) = check(question, parse_layout(f"dp2 zero0 {words}"))
    assert said in problem.what
    assert not check(question, Layout(dp=2, offload=Offload(streamed=12, activations=EVERY)))
