"""Advice: every change is legal, fits and gains alone and together, and the path ends at the proven best."""

from __future__ import annotations

import re
from itertools import product

import pytest
from asking import change
from effort import first_of
from small import every_axis, small_question

from cost_models.axes.layout import AXES, Layout, parse_layout
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from planner.explain.advice import LEAST_GAIN, MAX_CHANGES, Advice, advise, changed_words, trouble_between
from planner.explain.reasons import satisfies
from planner.rules.legality import check
from planner.search.search import Budget, search
from planner.space.restrictions import Restrictions, parse_restrictions


def no_words(before: Question, after: Question, layout: Layout) -> str:
    """No trainer's words for a switch."""
    return ""


def advised(question: Question, layout: str, restrictions: Restrictions | None = None) -> Advice:
    return advise(question, parse_layout(layout), restrictions or Restrictions(), Budget(), no_words)


QUESTIONS = [
    (small_question(4, memory="160 MiB"), "tp2 pp2 mbs1 recompute=full"),
    (every_axis(small_question(8)), "tp2 pp2 cp2 mbs1 zero1 recompute=selective"),
    (small_question(4), "tp4 mbs1 sp recompute=full"),
    (small_question(4, stack="fsdp", memory="500 MiB"), "dp4 mbs1 zero3 recompute=full"),
    (small_question(4), "tp1 pp4 dp1 mbs1 recompute=full"),
]


@pytest.fixture(scope="module", params=first_of(3, QUESTIONS), ids=lambda one: one[1])
def answered(request: pytest.FixtureRequest) -> tuple[Question, Advice]:
    """A question and its advice."""
    question, layout = request.param
    return question, advised(question, layout)


def test_every_change_holds_alone_and_together(answered: tuple[Question, Advice]) -> None:
    question, advice = answered
    assert 1 <= len(advice.changes) <= MAX_CHANGES
    before = advice.today
    for one in advice.changes:
        for priced in (one.by_itself, one.with_earlier):
            assert not check(question, priced.layout)
            assert priced.fits
            again = estimate(question, priced.layout)
            assert again.step_seconds == pytest.approx(priced.step_seconds)
        assert one.by_itself.step_seconds < advice.today.step_seconds * (1 - LEAST_GAIN)
        assert one.with_earlier.step_seconds < before.step_seconds * (1 - LEAST_GAIN)
        assert one.words == changed_words(before.layout, one.with_earlier.layout)
        before = one.with_earlier
    assert advice.changes[0].by_itself.layout == advice.changes[0].with_earlier.layout


def test_the_path_ends_at_the_proven_best(answered: tuple[Question, Advice]) -> None:
    question, advice = answered
    best = search(question, top=1).best
    assert advice.result.certificate.gap <= 0
    assert advice.best.step_seconds == pytest.approx(best.step_seconds)
    assert advice.best.step_seconds <= advice.reached.step_seconds * (1 + 1e-9)


def test_the_first_change_is_the_best_flag_where_resharding_gains_less_than_twice() -> None:
    """By hand: recomputing everything costs a third of the compute, and one flag ends it."""
    advice = advised(small_question(4), "dp4 mbs2 zero1 recompute=full")
    assert (advice.changes[0].words, advice.changes[0].trouble) == ("recompute=none", "a flag")


def test_as_few_blocks_as_fit_are_recomputed() -> None:
    question = small_question(1, memory="600 MiB", sequence_length=2**12)
    advice = advised(question, "mbs1 recompute=full")
    (change,) = advice.changes
    kind, _, blocks = change.words.removeprefix("recompute=").partition(":")
    assert kind == "full"
    fewer = advice.today.layout.model_copy(update={"recompute": (f"full:{int(blocks) - 1}",)})
    assert not estimate(question, fewer).fits


def test_what_does_not_fit_today_is_made_to_fit() -> None:
    question = small_question(4, memory="250 MiB")
    advice = advised(question, "dp4 mbs2 zero0")
    assert not advice.today.fits
    assert all(one.by_itself.fits and one.with_earlier.fits for one in advice.changes)
    assert advice.changes
    assert advice.best.fits


def test_changes_keep_to_the_restrictions_of_the_plan() -> None:
    question, limits = small_question(4), parse_restrictions(["tp=2"], ["zero1", "recompute=none"])
    advice = advised(question, "tp2 dp2 mbs1 recompute=full", limits)
    for priced in (*(one.with_earlier for one in advice.changes), advice.best):
        assert satisfies(question, limits, priced.layout)


def test_twice_the_gpus_and_narrower_numerics_stand_apart() -> None:
    """A cluster of one node ends there; GPUs with an fp8 rate may be asked for it."""
    question = small_question(2)
    (narrow,) = advised(question, "dp2 mbs1").other_questions
    assert (narrow.words, narrow.trouble) == ("gradient_dtype: bf16 in --training FILE", "other numerics")
    peak = dict(question.cluster.gpu.peak) | {"fp8": 2e13}
    gpu = question.cluster.gpu.model_copy(update={"peak": peak})
    _, further = advised(change(question, cluster={"gpu": gpu}), "dp2 mbs1").other_questions
    assert (further.words, further.trouble) == ("--precision fp8", "other numerics")


@pytest.mark.parametrize(
    ("before", "after", "words", "trouble"),
    [
        ("tp4 dp2 sp mbs1", "tp2 dp4 sp mbs1", "tp2 dp4", "re-sharding"),
        ("tp2 dp2 sp mbs1 zero1", "tp2 dp2 mbs2 zero2", "mbs2 zero2 no sp", "a flag"),
        ("pp2 mbs1 recompute=full", "pp2 vpp2 mbs1", "vpp2 recompute=none", "a flag"),
        ("pp2 vpp2 mbs1", "pp2 mbs1 schedule=gpipe", "vpp1 schedule=gpipe", "a flag"),
        ("cp2 mbs1", "cp2 mbs1 context=all-to-all", "context=all-to-all", "a flag"),
        ("dp4 zero1 mbs1", "dp4 zero1 shard2 mbs1", "shard2", "a flag"),
    ],
)
def test_changes_in_words(before: str, after: str, words: str, trouble: str) -> None:
    layouts = parse_layout(before), parse_layout(after)
    assert changed_words(*layouts) == words
    assert trouble_between(*layouts) == trouble
    assert changed_words(layouts[0], layouts[0]) == ""


SAID = {
    "vpp": ("vpp2",),
    "shard": ("zero1 shard2",),
    "ep": ("ep2", "ep2 etp1"),
    "schedule": ("schedule=gpipe", "vpp2 schedule=zbv"),
    "order": ("order=tp-cp-pp-dp",),
    "context": ("context=ring", "context=all-to-all"),
    "recompute": ("recompute=full", "recompute=full:1"),
    "offload": ("offload=states:3", "offload=streamed/drive", "offload=streamed/activations ring=4"),
    "overlap": ("overlap=none", "overlap=tp", "overlap=tp,pp,dp"),
}


@pytest.mark.parametrize("axis", SAID)
def test_every_value_of_an_axis_is_written_or_said_to_be_left_out(axis: str) -> None:
    """From any to any: words that are written are read again, and what is left out is named."""
    layouts = [parse_layout(f"tp2 pp2 cp2 dp2 sp mbs1 {words}") for words in ("", *SAID[axis])]
    for before, after in product(layouts, repeat=2):
        words = changed_words(before, after)
        assert bool(words) == (before != after)
        for word in re.sub(r"(?<!\S)(no|usual) ", r"\1_", words).split():
            left_out, _, name = word.rpartition("_")
            assert name in AXES if left_out in ("no", "usual") else parse_layout(word), words
