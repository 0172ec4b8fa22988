"""`--confidence`: plans that fit with at least so much chance, the same limit for every part of the search."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from command_line import ASKED, QUICK

import meshwright as mw
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.risk import confident_share
from cost_models.specs.training import TrainingSpec
from meshwright.render.estimates import estimate_text
from planner.formats.trainers import refusals
from planner.plan import load_plan
from planner.search.search import search

FULL = ("llama2-7b", "dgx-a100-80gb", "--gpus", "8", "--global-batch", "64", "--sequence", "4096")


@pytest.mark.parametrize("clusters", ["dgx-a100-80gb:8", "dgx-a100-80gb:8+dgx-h100:8"])
def test_it_is_a_search_with_so_much_less_memory(clusters: str) -> None:
    """A share of the device kept free by the cluster finds the same plans as the confidence that leaves that share."""
    confidence = 0.9

    def asked(reserve: float, sure: float) -> Question:
        pools = resolve_cluster(clusters, None)
        less = {"memory_reserve": reserve}
        parts = tuple(pool.model_copy(update=less) for pool in pools.pools) if hasattr(pools, "pools") else ()
        cluster = pools.model_copy(update={"pools": parts} if parts else less)
        training = TrainingSpec(global_batch=64, sequence_length=4096)
        question = complete_question(catalog.load_model("llama2-7b"), cluster, training, stack="nanotron")
        return replace(question, confidence=sure)

    share = confident_share(confidence, catalog.load_stack("nanotron").memory_error)
    sure = search(asked(0.1, confidence), top=3)
    room = search(asked(1 - 0.9 * share, 0.5), top=3)
    assert [one.layout for one in sure.estimates] == [one.layout for one in room.estimates]
    assert sure.certificate.infeasible == room.certificate.infeasible
    for one in sure.estimates:
        assert one.fits_probability >= confidence - 1e-9


def test_a_plan_file_keeps_it(meshwright, tmp_path) -> None:
    path = tmp_path / "plan.yaml"
    answer = meshwright("plan", *FULL, "--confidence", "99%", "--top", "1", "--json", "-o", str(path))
    document = json.loads(answer.out)
    assert document["question"]["confidence"] == 0.99
    assert document["plans"][0]["fits_probability"] >= 0.99
    assert load_plan(path).confidence == 0.99
    again = meshwright("plan", "--replay", str(path), "--json")
    assert json.loads(again.out)["plans"] == document["plans"]
    meshwright.done("verify", str(path))


def test_it_holds_below_a_limit_of_ones_own(meshwright) -> None:
    """The chance is that of staying below `--max-memory`."""
    flags = ("--max-memory", "40 GiB", "--confidence", "95%", "--top", "1", "--json")
    best = json.loads(meshwright("plan", *FULL, *flags).out)["plans"][0]
    assert best["memory_limit"] < 40 * 2**30
    assert best["fits_probability"] >= 0.95


@pytest.mark.parametrize("confidence", [None, 0.7, 0.95])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.98, 0.999, 1.003, 1.02, 2.0])
def test_words_verdict_and_chance_say_the_same(share: float, confidence: float | None) -> None:
    """One rule, wherever the limit lies: what is said to fit has the confidence asked for, and nothing else has."""
    training = TrainingSpec(global_batch=64, sequence_length=4096)
    asked = ("llama2-7b", "dgx-a100-80gb", training, "tp1 pp1 dp8 mbs1 zero1 recompute=full")
    answer = mw.estimate(*asked, gpus=8, confidence=confidence)
    least = answer.document()["question"]["confidence"]
    left = confident_share(confidence or 0.5, answer.estimate.trust.memory_error)
    priced = answer.estimate.within(answer.estimate.peak_bytes / share * left)
    text = " ".join(estimate_text(priced).split())
    assert priced.fits == (priced.fits_probability >= least)
    assert ("does not fit" in text) == (priced.verdict == "does not fit") == (not priced.fits)
    assert ("less than the" in text) == (not priced.fits and priced.fits_probability >= 0.5)
    assert (", tight" in text) == (priced.verdict == "tight")


@pytest.mark.parametrize("said", ["9", "50%", "100%", "sure", "nan"])
def test_what_is_no_confidence_is_refused(said: str) -> None:
    with pytest.raises(InputError, match=r"is not a probability from 54\.8% to 99"):
        mw.plan(*ASKED[:2], gpus=8, global_batch=64, sequence=1024, confidence=said)


def test_without_it_something_may_fit(meshwright) -> None:
    """One of the remedies where nothing fits with so much chance."""
    asked = (*ASKED[:2], "--gpus", "1", *ASKED[4:], "--max-memory", "2600 MiB")
    meshwright.done("plan", *asked, *QUICK)
    assert "without --confidence: " in meshwright.refusal(
        "plan", *asked, *QUICK, "--confidence", "99%", code=1
    )


@pytest.mark.parametrize(
    "goal", ["--price 2.5 --tokens 1T --deadline 400d", "--objective mfu", "--objective memory"]
)
def test_the_best_for_an_objective_can_be_trained_with(meshwright, tmp_path, goal: str) -> None:
    """Its stack's trainer runs it and it fits with 90 %; `--pick fastest` takes the best of all."""
    asked = ("llama3-70b", "dgx-h100", "--gpus", "64", "--global-batch", "512", "--sequence", "8192")
    file = str(tmp_path / "p.yaml")
    held = meshwright.done("plan", *asked, *goal.split(), "--json", "-o", file)
    assert "best of the layouts that Megatron can run and that fit with 90 %" in " ".join(held.err.split())
    first, plan = json.loads(held.out)["plans"][0], load_plan(file)
    assert first["fits_probability"] >= 0.9
    assert not refusals("megatron", plan.question, plan.layout)
    assert "Verified" in meshwright.done("verify", file).out
    best = meshwright.json("plan", *asked, *goal.split(), "--pick", "fastest")["plans"][0]
    assert best["step_seconds"] < first["step_seconds"] or "memory" in goal
