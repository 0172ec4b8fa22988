"""The search and one integer program over the whole question have the same answer, and solvers write nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import count, islice

import numpy as np
import pytest
from agreeing import weighed_base
from drawn_questions import drawn
from effort import number
from small import mixed_question, pool, small_question

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.errors import InfeasibleError, InputError, RunError
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import Question
from planner.objectives import Proof
from planner.placement.leaf import TOLERANCE
from planner.plan import make_plan
from planner.search import program
from planner.search.branching import SearchResult
from planner.search.candidates import UniformCandidates
from planner.search.pools import count_layouts
from planner.search.search import Budget, search
from planner.space import space
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.verify.plans import verify

QUESTIONS = number(16, 500)
MOST_LAYOUTS = number(100, 600)
"""Of one question; those with more are passed over."""


def both(question: Question, limits: Restrictions, top: int) -> tuple[SearchResult, SearchResult] | None:
    """Both answers; None where nothing fits, by both."""
    try:
        found = search(question, top=top, restrictions=limits)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            search(question, top=top, restrictions=limits, proof="ilp")
        return None
    return found, search(question, top=top, restrictions=limits, proof="ilp")


def agree(found: SearchResult, solved: SearchResult) -> None:
    """The same times, and proofs of as many layouts."""
    seconds = [[one.step_seconds for one in result.estimates] for result in (found, solved)]
    assert seconds[1] == pytest.approx(seconds[0], rel=10 * TOLERANCE)
    one, other = found.certificate, solved.certificate
    assert (other.layouts, other.space, other.gap, other.undecided) == (one.layouts, one.space, 0, 0)
    assert other.bound == pytest.approx(one.bound, rel=10 * TOLERANCE)
    assert other.layouts == other.infeasible + other.pruned + other.solved
    assert all(estimate.fits for estimate in solved.estimates)


@pytest.mark.timeout(3600)
def test_both_solvers_agree_on_random_questions() -> None:
    met: Counter[str] = Counter()
    questions = (drawn(seed, pools=seed % 4 == 0) for seed in count())
    few = (one for one in questions if count_layouts(one.question, one.limits) <= MOST_LAYOUTS)
    taken = (one for one in few if "replicas" not in one.limits.allowed)  # which the program does not take
    for seed, (question, limits, *_) in enumerate(islice(taken, QUESTIONS)):
        answers = both(question, limits, (1, 1, 3)[seed % 3])
        if answers is None:
            met["infeasible"] += 1
            continue
        agree(*answers)
        layout = answers[0].best.layout
        met["pipelines"] += layout.pp > 1
        met["recompute"] += set(layout.recompute) != {"none"}
        met["uneven"] += len(set(layout.layers)) > 1
        met["pools"] += question.has_pools
    print(dict(met))
    assert met["infeasible"] < QUESTIONS / 2
    assert min(met[kind] for kind in ("pipelines", "recompute", "uneven", "pools")) >= QUESTIONS // 40


def test_a_bound_that_is_too_high_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program shares no bound with the search, so an error in one of them is a disagreement."""
    question, limits = small_question(memory="220 MiB"), parse_restrictions()
    found, solved = _answers(question, limits)
    agree(found, solved)
    bounds, best = UniformCandidates.bounds, found.best.layout.mbs

    def too_high(candidates: UniformCandidates, columns: LayoutColumns, costs: StageCosts) -> Array:
        return bounds(candidates, columns, costs) * np.where(columns.mbs == best, 2, 1)

    monkeypatch.setattr(UniformCandidates, "bounds", too_high)
    with pytest.raises(AssertionError):
        agree(*_answers(question, limits))


def test_layouts_that_the_space_lacks_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's layouts are an enumerator's, so an error in the search's space is a disagreement."""
    cores = space.candidate_cores

    def lacking(question: Question, limits: Restrictions) -> LayoutColumns:
        every = cores(question, limits)
        return every.rows(np.flatnonzero(every.tp > 1))

    monkeypatch.setattr(space, "candidate_cores", lacking)
    with pytest.raises(
        RunError, match=r"the search leaves out `tp1 .*`, which an enumerator of layouts covers"
    ):
        search(small_question(), proof="ilp")


def _answers(question: Question, limits: Restrictions) -> tuple[SearchResult, SearchResult]:
    found = both(question, limits, 5)
    assert found is not None
    return found


def test_questions_that_the_program_does_not_take_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    question = small_question()
    monkeypatch.setattr(program, "MOST_LAYOUTS", 100)
    with pytest.raises(InputError, match="up to 100 layouts; this one has 259") as caught:
        search(question, proof="ilp")
    assert "--fix an axis" in caught.value.hint
    assert search(question, proof="ilp", restrictions=parse_restrictions(["pp=2", "tp=1"])).best.fits
    pools = mixed_question(pool("old"), pool("new", speed=2.0))
    with pytest.raises(InputError, match="replicas"):
        search(pools, proof="ilp", restrictions=parse_restrictions(allow=("replicas",)))
    with pytest.raises(InputError, match="without scenarios"):
        search(weighed_base(0).question, proof="ilp")


@pytest.mark.parametrize(("made", "again"), [("search", "ilp"), ("ilp", "search"), ("ilp", "ilp")])
def test_a_plan_of_either_is_verified_by_the_other(made: Proof, again: Proof) -> None:
    question, limits = small_question(memory="220 MiB"), parse_restrictions(["dp=2"])
    result = search(question, restrictions=limits, proof=made)
    plan = make_plan(question, result.best, result.certificate, limits)
    assert ("proved_by" in plan.model_dump(mode="json")["certificate"]) == (made == "ilp")
    checks = list(verify(plan, Budget(proof=again)))
    assert all(check.passed for check in checks)
    optimum = next(check for check in checks if check.name == "optimum")
    assert ("an integer program" in optimum.what) == (again == "ilp")
    wrong = result.certificate.model_copy(update={"bound": result.certificate.bound * 0.9, "gap": 0.0})
    checks = list(verify(make_plan(question, result.best, wrong, limits), Budget(proof=again)))
    assert not next(check for check in checks if check.name == "proof").passed


ASK = [
    "plan", "gpt2-small", "dgx-a100-80gb", "--gpus", "8", "--sequence", "1024", "--global-batch", "64",
    "--json",
]  # fmt: skip


def test_the_output_of_a_plan_is_its_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *ASK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "plans" in json.loads(done.stdout)
