"""The search over what overlaps: exact, opened by `--allow overlap` or `--fix overlap_dp` alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brute import everything
from effort import number
from questions import cluster_of, random_model, without_context
from small import small_question

from cost_models.axes.words import UNSAID
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.question import Question
from cost_models.specs.choices import OVERLAPS
from cost_models.specs.training import TrainingSpec
from planner.search.search import search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import enumerate_layouts

OPEN = parse_restrictions(allow=("overlap",))


def random_question(rng: np.random.Generator) -> Question:
    """A small question of a stack that overlaps some axes always, some when it is told to."""
    worlds = ((2, 1), (2, 2), (4, 1))
    cluster = cluster_of(rng, *worlds[int(rng.integers(len(worlds)))])
    training = TrainingSpec(global_batch=int(rng.choice([2, 4])), sequence_length=int(rng.choice([64, 256])))
    model = random_model(rng).model_copy(update={"further_tokens": 0})
    question = complete_question(model, cluster, training, stack="megatron-core")
    facts = {
        "overlaps": tuple(axis for axis in OVERLAPS if rng.integers(3)),
        "overlap_gradient_reduce": bool(rng.integers(2)),
        "overlap_parameter_gather": bool(rng.integers(2)),
        "overlap_pipeline_sends": bool(rng.integers(2)),
        "overlap_tensor_parallel": float(rng.choice([0.0, 0.6])),
        "overlaps_gradient_reduce_at": ((0, 1, 2, 3), (0, 1))[int(rng.integers(2))],
        "schedules": ("1f1b", "interleaved"),
        "reduces_chunks_in_turn": bool(rng.integers(2)),
        "broadcasts_every_batch": bool(rng.integers(2)),
    }
    return without_context(replace(question, stack=question.stack.model_copy(update=facts)))


@pytest.mark.parametrize("seed", range(number(2, 200)))
def test_search_is_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    while not (found := everything(random_question(rng), overlap=True)).placed:
        pass
    rows = np.flatnonzero(found.columns.tp % found.columns.etp == 0)
    peaks = np.concatenate([own.peak for own in found.placed])
    for most in (np.inf, float(np.quantile(peaks, 0.02)) * (1 + 1e-9)):
        wanted, _ = found.best(rows, 0b111, most)
        if not wanted:
            continue
        limits = replace(OPEN, max_memory=None if np.isinf(most) else most)
        answer = search(found.question, top=1, restrictions=limits)
        assert answer.certificate.gap == 0
        assert answer.best.step_seconds == pytest.approx(wanted[0], rel=1e-9)


def test_only_words_open_it() -> None:
    question = small_question(4)
    closed, opened = enumerate_layouts(question, Restrictions()), enumerate_layouts(question, OPEN)
    assert (closed.overlap_dp == UNSAID).all()
    assert len(closed) < len(opened)
    fixed = enumerate_layouts(question, parse_restrictions(("overlap_dp",)))
    assert len(fixed)
    assert set(fixed.overlap_dp.tolist()) == {1}
    assert (fixed.replicas > 1).all()
    apart = enumerate_layouts(question, parse_restrictions(("overlap_dp=0",), ("overlap_pp=1",)))
    assert set(apart.overlap_dp.tolist()) == {0}
    assert set(apart.overlap_pp.tolist()) == {0}


def test_words_that_contradict_one_another_are_told() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        parse_restrictions(forbid=("overlap",), allow=("overlap",))
    with pytest.raises(InputError, match="contradict"):
        parse_restrictions(("overlap_dp",), ("overlap_dp=1",))
    shut = parse_restrictions(forbid=("overlap",))
    assert (enumerate_layouts(small_question(2), shut).overlap_dp == UNSAID).all()
