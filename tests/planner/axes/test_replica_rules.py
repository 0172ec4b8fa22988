"""What layouts with whole replicas in several pools must keep to: each refusal in words, with what would do."""

from __future__ import annotations

import pytest
from several_pools import mixed_question, pool

from cost_models.axes.layout import parse_layout
from cost_models.errors import InputError
from cost_models.question import Question
from planner.rules.legality import check, require_legal
from planner.search.search import place_layout


def question(batch: int = 24, **training: object) -> Question:
    return mixed_question(pool("old", gpus=4), pool("new", gpus=2, speed=2.0), global_batch=batch, **training)


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("tp1 replicas=old*3,new*3", "is not how replicas of 1 GPU divide", "dp6 replicas=old*4,new*2"),
        (
            "tp4 pp1 dp2 replicas=old,new",
            "a replica of 4 GPUs (tp x cp x pp) does not divide pool",
            "all GPUs",
        ),
        ("replicas=old*4,new*2 zero2", "`zero2` may communicate after each", "use zero1"),
        ("pp2 vpp2 replicas=old*2,new", "`vpp2` runs in whole rounds of them", "1f1b or gpipe"),
        ("pp2 replicas=old*2,new order=tp-cp-dp-pp", "spreads each replica", "order=tp-cp-pp-dp"),
        ("replicas=old*4,new*2 mbs5", "global batch 24 is not a multiple of mbs5", "another mbs"),
        (
            "replicas=old*4,new*2 mbs6",
            "4 microbatches of 6 are too few for 6 replicas, each with 1",
            "smaller mbs",
        ),
        ("pp2 replicas=old*2,new mbs6", "4 microbatches of 6 are too few for 3 replicas, each with 2", "mbs"),
    ],
)
def test_what_replicas_cannot_do_is_told_with_a_hint(text: str, told: str, hint: str) -> None:
    asked = question()
    layout = parse_layout(text)
    assert any(told in problem.what for problem in check(asked, layout)), check(asked, layout)
    if len(check(asked, layout)) == 1:
        with pytest.raises(InputError) as refused:
            require_legal(asked, layout)
        assert hint in (refused.value.hint or "")


def test_uneven_shares_are_legal() -> None:
    asked = question(batch=25)
    assert not check(asked, parse_layout("replicas=old*4,new*2 zero1"))
    plain = "global batch 25 is not a multiple of dp6 x mbs1"
    assert plain in [problem.what for problem in check(asked, parse_layout("dp6 zero1"))]


def test_stages_and_replicas_are_one_or_the_other() -> None:
    with pytest.raises(InputError, match="one of them") as refused:
        parse_layout("pp2 dp2 pools=old,new replicas=old,new")
    assert "where whole replicas do" in str(refused.value.problems[0])
    with pytest.raises(InputError, match="is not a layout"):
        parse_layout("dp3 replicas=old,new")
    assert parse_layout("tp2 pp2 replicas=old*4,new*2").dp == 6


def test_trainers_give_every_replica_as_much() -> None:
    told = [problem.what for problem in check(question(), parse_layout("replicas=old*4,new*2"), "megatron")]
    assert any("gives every replica as many microbatches" in what for what in told)


def test_replicas_are_placed_where_all_pools_are_quickest() -> None:
    asked = mixed_question(pool("old", gpus=4), pool("new", gpus=2, speed=2.0), layers=5, global_batch=24)
    placed = place_layout(asked, parse_layout("pp2 replicas=old*2,new zero1"))
    assert sorted(placed.layers) == [2, 3]
    assert placed.replicas == ("old", "old", "new")
