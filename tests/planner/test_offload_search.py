"""The search over what host memory holds: exact, opened by `--allow offload` alone, within the hosts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brute import Everything, everything
from effort import number
from questions import cluster_of, random_model, without_context
from small import small_question

from cost_models.defaults import complete_question
from cost_models.errors import DoesNotFitError, InfeasibleError
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from planner.answers.remedies import remedies_told
from planner.search.search import search
from planner.space.layouts import enumerate_layouts
from planner.space.restriction_words import parse_restrictions
from planner.space.restrictions import Restrictions

OPEN = parse_restrictions(allow=("offload",))
EVERY_RESIDENCY = ("states", "parked", "streamed", "activations")


def random_question(rng: np.random.Generator) -> Question:
    """A small question on GPUs with a slow or a quick host of little or much memory."""
    worlds = ((1, 1), (2, 1), (2, 2), (4, 1))
    cluster = cluster_of(rng, *worlds[int(rng.integers(len(worlds)))])
    gpu = cluster.gpu.model_copy(update={"host_bandwidth": float(rng.choice([1e8, 1e10]))})
    host = {"gpu": gpu, "host_memory": float(rng.choice([1e8, 1e9, 1e12]))}
    host["host_memory_bandwidth"] = rng.choice([None, 1e9, 1e11])
    model = random_model(rng).model_copy(update={"further_tokens": 0})
    training = TrainingSpec(
        global_batch=int(rng.choice([1, 2, 4])), sequence_length=int(rng.choice([64, 256]))
    )
    question = complete_question(model, cluster.model_copy(update=host), training, stack="deepspeed")
    facts = {
        "residencies": EVERY_RESIDENCY[: int(rng.integers(1, 5))],
        "overlaps_host": bool(rng.integers(2)),
        "offloads_ends": bool(rng.integers(2)),
    }
    return without_context(replace(question, stack=question.stack.model_copy(update=facts)))


def drawn(seed: int) -> Everything:
    rng = np.random.default_rng(seed)
    while not (found := everything(random_question(rng), offload=True)).placed:
        pass
    return found


@pytest.mark.parametrize("seed", sorted({*range(number(10, 320)), 61, 152}))
def test_search_is_brute_force(seed: int) -> None:
    found = drawn(seed)
    peaks = np.concatenate([own.peak for own in found.placed])
    for most in (np.inf, float(np.quantile(peaks, 0.02)), 0.99 * float(peaks.min())):
        rows = np.flatnonzero(found.columns.tp % found.columns.etp == 0)
        wanted, _ = found.best(rows, 0b111, most)
        limits = replace(OPEN, max_memory=None if np.isinf(most) else most)
        if not wanted:
            with pytest.raises(InfeasibleError):
                search(found.question, top=1, restrictions=limits)
            continue
        answer = search(found.question, top=1, restrictions=limits)
        assert answer.certificate.gap == 0
        assert answer.best.step_seconds == pytest.approx(wanted[0], rel=1e-9)


def asked() -> Question:
    question = small_question(1, stack="deepspeed")
    return replace(question, cluster=question.cluster.model_copy(update={"host_memory": 1e12}))


def test_only_allow_opens_it() -> None:
    closed, opened = enumerate_layouts(asked(), Restrictions()), enumerate_layouts(asked(), OPEN)
    assert not closed.offload_states.any()
    assert len(closed) < len(opened)
    fixed = enumerate_layouts(asked(), parse_restrictions(("offload_states=1",)))
    assert set(fixed.offload_states.tolist()) == {1}


def test_the_search_stays_within_the_host() -> None:
    """A host that holds nothing leaves what the device holds alone."""
    nothing = replace(asked(), cluster=asked().cluster.model_copy(update={"host_memory": 1.0}))
    assert not enumerate_layouts(nothing, OPEN).offload_states.any()


def test_where_nothing_fits_the_host_is_offered() -> None:
    question = asked()
    roomy = search(question, top=1, restrictions=Restrictions()).best.peak_bytes
    tight = Restrictions(max_memory=0.6 * roomy)
    assert search(question, top=1, restrictions=replace(OPEN, max_memory=0.6 * roomy)).best.fits
    with pytest.raises(DoesNotFitError) as refused, remedies_told(question, tight):
        search(question, top=1, restrictions=tight)
    assert "--allow offload" in [one.change for one in refused.value.would_fit]
