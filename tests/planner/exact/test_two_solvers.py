"""The search and one integer program over the whole question have the same answer: where they differ one is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from effort import number
from questions import STACKS, cluster_of, random_model, without_context
from several_pools import mixed_question, pool
from small import every_axis, small_question
from weighed_brute import weighed_base

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.stages import RECOMPUTE_POLICIES
from cost_models.defaults import complete_question
from cost_models.errors import InfeasibleError, InputError, NothingPlacedError, RunError
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
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

QUESTIONS = number(10, 500)
MOST_LAYOUTS = number(400, 1500)
"""Of one question; axes are fixed until it has no more."""
WORLDS = ((1, 1), (2, 1), (4, 1), (2, 2), (8, 1), (4, 2), (8, 2), (3, 2))
"""(GPUs of a node, nodes)."""


def random_training(rng: np.random.Generator) -> dict[str, Any]:
    policies = [policy for policy in RECOMPUTE_POLICIES if rng.random() < 0.8] or list(RECOMPUTE_POLICIES)
    return {
        "global_batch": int(rng.choice([2, 4, 8, 16, 24])),
        "sequence_length": int(rng.choice([32, 64, 256])),
        "recompute": tuple(policies),
    }


def random_question(rng: np.random.Generator) -> tuple[Question, Restrictions]:
    """Two to thirteen blocks on one to sixteen GPUs, of one kind or two, with any stack, axes opened now and then."""
    blocks = int(rng.integers(2, 14))
    stack = STACKS[int(rng.integers(len(STACKS)))]
    named = "meshwright" if stack == "every axis" else stack
    if rng.random() < 0.25:
        sizes, speed = [f"{rng.choice([200, 400, 1000])} MiB" for _ in range(2)], float(rng.choice([1.5, 3]))
        pools = (pool("old", memory=sizes[0]), pool("new", memory=sizes[1], speed=speed))
        question: Question = mixed_question(*pools, layers=blocks, **random_training(rng))
    else:
        cluster = cluster_of(rng, *WORLDS[int(rng.integers(len(WORLDS)))])
        host = {"host_memory": float(rng.choice([1e8, 1e12])), "host_memory_bandwidth": 1e11}
        cluster = cluster.model_copy(update=host)
        model = random_model(rng)
        mixture = {"num_moe_layers": blocks - int(rng.integers(2))} if model.has_experts else {}
        model = type(model).model_validate(model.model_dump() | {"num_layers": blocks} | mixture)
        training = TrainingSpec(**random_training(rng))
        question = without_context(complete_question(model, cluster, training, stack=named))
        question = every_axis(question) if stack == "every axis" else question
    allow = [] if rng.random() < 0.7 else [str(rng.choice(["offload", "overlap"]))]
    trainer = str(rng.choice(["megatron", "torchtitan"])) if rng.random() < 0.1 else None
    memory = float(rng.choice([3e7, 8e7, 2e8])) if rng.random() < 0.4 else None
    return _few(rng, question, allow=allow, trainer=trainer, max_memory=memory)


def _few(rng: np.random.Generator, question: Question, **said: Any) -> tuple[Question, Restrictions]:
    """Axes fixed one by one until few layouts are left."""
    fix: list[str] = []
    for axis in rng.permutation(
        ["tp", "pp", "cp", "dp", "zero", "mbs", "order=tp-pp-cp-dp", "vpp<5"]
    ).tolist():
        limits = parse_restrictions(fix, **said)
        if count_layouts(question, limits) <= MOST_LAYOUTS:
            break
        told = axis if "=" in axis or "<" in axis else f"{axis}={rng.choice([1, 2, 2, 3])}"
        if count_layouts(question, parse_restrictions([*fix, told], **said)):
            fix.append(told)
    return question, parse_restrictions(fix, **said)


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
    for seed in range(QUESTIONS):
        rng = np.random.default_rng(seed)
        question, limits = random_question(rng)
        answers = both(question, limits, int(rng.choice([1, 1, 3])))
        met["layouts"] += count_layouts(question, limits)
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
    assert min(met[kind] for kind in ("pipelines", "recompute", "uneven", "pools")) >= QUESTIONS // 20


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


@pytest.mark.parametrize("reports", [1, 2, 3])
def test_interrupted_the_program_returns_the_best_so_far_with_its_gap(reports: int) -> None:
    question, seen = small_question(8, "150 MiB", global_batch=16), 0

    def interrupt(_done: int, _total: int, _best: float, _bound: float) -> None:
        nonlocal seen
        seen += 1
        if seen == reports:
            raise KeyboardInterrupt

    whole = search(question, proof="ilp", top=3)
    part = search(question, proof="ilp", top=3, on_progress=interrupt, keep_on_interrupt=True)
    assert part.interrupted
    proof = part.certificate
    assert proof.layouts == proof.infeasible + proof.pruned + proof.solved + proof.undecided
    assert proof.bound <= whole.best.step_seconds <= part.best.step_seconds
    with pytest.raises(NothingPlacedError, match="time ran out"):
        search(question, proof="ilp", time_limit=0.0)


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
