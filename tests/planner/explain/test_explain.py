"""What explains an answer, and what advice is worth."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from asking import change
from brute import Everything
from effort import first_of
from questions import base, building_base
from small import every_axis, small_question

from cost_models.axes.layout import AXES, Layout, parse_layout
from cost_models.estimate import Estimate
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.pricing import estimate as price
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.bounds.cores import relaxed_bounds
from planner.explain.advice import LEAST_GAIN, MAX_CHANGES, Advice, advise, changed_words, trouble_between
from planner.explain.compare import compare, differences, same_work
from planner.explain.reasons import CHANGES, QUANTITIES, Change, faster_under, satisfies, seconds_to_beat
from planner.rules.legality import check
from planner.search.search import Budget, place_layout, search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import Space, legal_space

QUESTION = small_question()


def _with(**training: object) -> Question:
    return change(QUESTION, training=training)


HALVED = _with(sequence_length=128, global_batch=16)
"""Twice as many sequences of half the length."""


def test_what_differs_is_named() -> None:
    for other, told, same in [
        (QUESTION, {}, True),
        (small_question(8), {"GPUs": ("4", "8")}, True),
        (_with(global_batch=16), {"global batch": ("8", "16")}, False),
        (HALVED, {"global batch": ("8", "16"), "sequence": ("256", "128")}, True),
        (_with(precision="fp32"), {"precision": ("bf16", "fp32")}, True),
        (_with(dropout=0.1), {"dropout": ("0.0", "0.1")}, True),
        (_with(tokens=1e9, recompute=("full",)), {}, True),
        (small_question(stack="nemo"), {"stack": ("megatron-core", "nemo")}, True),
        (change(QUESTION, model={"num_layers": 8}), {"model num layers": ("4", "8")}, False),
        (change(QUESTION, model={"name": "other"}), {"model": ("small", "other")}, True),
    ]:
        found = differences([QUESTION, other])
        names = {one.what: one.values for one in found if one.what != "profile"}
        assert names == told
        assert same_work([QUESTION, other]) == same


def test_parts_of_different_work_are_shares_of_their_steps() -> None:
    other = _with(global_batch=16)
    estimates = [search(question, top=1).best for question in (QUESTION, other)]
    lines = compare(estimates, [QUESTION, other])
    for column in (0, 1):
        assert sum(line.values[column] for line in lines if line.group == "time") == pytest.approx(1.0)
    step = next(line for line in lines if line.name == "step")
    assert not step.comparable
    assert all(line.comparable for line in lines if line.unit == "share")


FREE = Restrictions()
EVERY_CHANGE = [
    *CHANGES.values(),
    *(Change(quantity, factor) for quantity in QUANTITIES for factor in (0.75, 8.0)),
]
LAYOUTS = 3
Bases = Callable[[int], Everything]


def _of(found: Everything) -> Question:
    """Its question under every recompute policy."""
    training = found.question.training.model_copy(update={"recompute": RECOMPUTE_POLICIES})
    return replace(found.question, training=training)


def _bounded(question: Question) -> Space:
    """The space of a question with all bounds of its cores known."""
    space = legal_space(question, FREE)
    relaxed_bounds(space, np.arange(len(space.cores)), _allowed(question), None)
    return space


def _allowed(question: Question) -> np.ndarray:
    return np.array([policy in FREE.recompute(question) for policy in RECOMPUTE_POLICIES])


def _fastest(question: Question, below: float) -> Estimate | None:
    return Budget().faster_than(below, question, FREE)


@pytest.mark.parametrize(("seed", "of"), [(1, base), (5, base), (0, building_base)])
def test_bounds_that_outlive_a_change_are_below_every_step(seed: int, of: Bases) -> None:
    question = _of(of(seed))
    rng, space = np.random.default_rng(0), _bounded(question)
    rows, core = space.all_rows(), np.repeat(np.arange(len(space.cores)), space.sizes)
    some = rng.choice(len(core), min(LAYOUTS, len(core)), replace=False).tolist()
    for what_if in EVERY_CHANGE:
        if (changed := what_if.apply(question)) is None:
            continue
        least = what_if.least_seconds(space, FREE)
        for row in some:
            priced = price(changed, place_layout(changed, rows.layout(row)))
            assert least[core[row]] <= priced.step_seconds * (1 + 1e-9), (what_if, priced.layout)


@pytest.mark.parametrize(("seed", "of"), [(1, base), (0, building_base)])
def test_a_search_from_known_bounds_agrees_with_the_whole_one(seed: int, of: Bases) -> None:
    question = _of(of(seed))
    space, plan = _bounded(question), search(question, top=1).best
    for what_if in CHANGES.values():
        if (changed := what_if.apply(question)) is not None:
            below = seconds_to_beat(price(changed, plan.layout)) * (1 - 1e-9)
            sparing = faster_under(what_if, (question, changed), FREE, below, space, Budget())
            whole = _fastest(changed, below)
            assert (sparing and sparing.step_seconds) == pytest.approx(whole and whole.step_seconds)


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


def test_changes_in_words() -> None:
    for before, after, words, trouble in [
        ("tp4 dp2 sp mbs1", "tp2 dp4 sp mbs1", "tp2 dp4", "re-sharding"),
        ("tp2 dp2 sp mbs1 zero1", "tp2 dp2 mbs2 zero2", "mbs2 zero2 no sp", "a flag"),
        ("pp2 mbs1 recompute=full", "pp2 vpp2 mbs1", "vpp2 recompute=none", "a flag"),
        ("pp2 vpp2 mbs1", "pp2 mbs1 schedule=gpipe", "vpp1 schedule=gpipe", "a flag"),
        ("cp2 mbs1", "cp2 mbs1 context=all-to-all", "context=all-to-all", "a flag"),
        ("dp4 zero1 mbs1", "dp4 zero1 shard2 mbs1", "shard2", "a flag"),
    ]:
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
