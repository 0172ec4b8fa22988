"""A plan file that is true passes every check; one that was tampered with fails, with words."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from effort import few
from small import small_question

from cost_models.axes.layout import parse_layout
from cost_models.errors import RunError
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from planner.answers.optimum import optimise
from planner.objectives import Objective
from planner.plan import Plan, make_plan
from planner.search import search as search_module
from planner.search.branching import SearchResult, SearchSettings
from planner.search.search import place_layout, search, search_on
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.verify.plans import verify

LIMITS = parse_restrictions(["vpp=1"], ["zero=3"])


@pytest.fixture(scope="module")
def plan() -> Plan:
    question = small_question(memory="220 MiB")
    found = search(question, restrictions=LIMITS)
    return make_plan(question, found.best, found.certificate, LIMITS)


def failures(plan: Plan) -> dict[str, str]:
    """Name → words of the checks that did not pass."""
    return {one.name: one.what for one in verify(plan) if not one.passed}


def of_layout(plan: Plan, text: str) -> Plan:
    """The plan with another layout, priced truly, its certificate kept."""
    priced = estimate(plan.question, place_layout(plan.question, parse_layout(text)))
    return make_plan(plan.question, priced, plan.certificate, plan.restrictions.read)


def predicting(plan: Plan, **update: object) -> Plan:
    return plan.model_copy(update={"prediction": plan.prediction.model_copy(update=update)})


def certified(plan: Plan, **update: object) -> Plan:
    assert plan.certificate is not None
    return plan.model_copy(update={"certificate": plan.certificate.model_copy(update=update)})


def test_a_true_plan_passes_every_check(plan: Plan) -> None:
    checks = list(verify(plan))
    assert [one for one in checks if not one.passed] == []
    assert [one.name for one in checks] == [
        *("layout", "restrictions", "step", "time parts", "rank memory", "trust", "fits"),
        *("certificate", "spot check", "optimum", "proof", "program"),
    ]


def cut_short(monkeypatch: pytest.MonkeyPatch, fits: Callable[[int, Question], bool]) -> None:
    """Time runs out in the searches (numbered from 0) and questions that do not fit."""
    numbers = count()

    def limited(terms: SearchSettings, question: Question, limits: Restrictions) -> SearchResult:
        if not fits(next(numbers), question):
            raise RunError("time ran out")
        return search_on(terms, question, limits)

    monkeypatch.setattr(search_module, "search_on", limited)


def test_the_least_peak_so_far_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of three plans need not have the lesser peak, and the certificate is of no least peak."""
    question = small_question(memory="1 GiB")
    cut_short(monkeypatch, lambda number, _: number == 0)
    found = optimise(question, Objective(name="memory"), top=3)
    monkeypatch.undo()
    written = make_plan(found.question, found.result.best, found.result.certificate, None, found.for_file(4))
    assert found.value == found.result.best.peak_bytes < max(e.peak_bytes for e in found.result.estimates)
    assert failures(written) == {}


def test_a_precision_that_was_not_searched_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    question = small_question(memory="220 MiB")
    cut_short(monkeypatch, lambda _, asked: asked.training.precision == "fp32")
    found = optimise(question, Objective(), precisions=("fp32", "bf16"), top=1)
    monkeypatch.undo()
    certificate = found.result.certificate
    assert (found.gap, certificate.gap, certificate.bound) == (1, 1, 0)
    assert certificate.undecided == certificate.layouts - certificate.undecided > 0
    written = make_plan(found.question, found.result.best, certificate, None, found.for_file(4))
    checks = {one.name: one for one in verify(written)}
    assert all(one.passed for one in checks.values())
    assert "by no more than the plan leaves open" in checks["optimum"].what


@pytest.mark.parametrize("name", ["memory", "mfu", "gpu-hours"])
@few(2)
def test_a_true_plan_for_an_objective_passes_every_check(name: str) -> None:
    question = small_question(memory="500 MiB", tokens=1e9)
    objective = Objective(name=name)  # type: ignore[arg-type]
    few = parse_restrictions(["vpp=1", "schedule=1f1b", "cp=1", "zero=1", "mbs=1"], ["sp"])
    found = optimise(question, objective, sizes=(2, 4), restrictions=few)
    best = found.result.best
    plan = make_plan(found.question, best, found.result.certificate, few, found.for_file(4))
    assert failures(plan) == {}
    assert plan.objective is not None
    better = plan.model_copy(update={"objective": plan.objective.model_copy(update={"value": 1.0})})
    assert f"its `value` ({name}) says 1; it is" in failures(better)["certificate"]
    forged = plan.model_copy(update={"objective": plan.objective.model_copy(update={"bound": 1.0})})
    assert "the objective's `bound` says 1" in failures(forged)["proof"]


def test_what_was_asked_for_is_verified_as_a_price(plan: Plan) -> None:
    asked = of_layout(plan, "tp2 dp2 mbs1 zero1").model_copy(update={"certificate": None})
    checks = list(verify(asked))
    assert all(one.passed for one in checks)
    assert "optimum" not in [one.name for one in checks]


@pytest.mark.parametrize(
    ("update", "check", "said"),
    [
        ({"step_seconds": 1e-3}, "step", "`step_seconds` says 0.001, computed again it is"),
        ({"mfu": 0.9}, "step", "`mfu` says 0.9"),
        ({"peak_bytes": 1.0}, "rank memory", "`peak_bytes` says 1"),
        ({"memory_limit": 1e12}, "rank memory", "`memory_limit` says 1e+12"),
        ({"trust": "measured, no error"}, "trust", "says `measured, no error`; it is `"),
        ({"rank_memory": ()}, "rank memory", "`rank_memory.0.weights` says nothing"),
    ],
)
def test_edited_numbers(plan: Plan, update: dict[str, object], check: str, said: str) -> None:
    assert said in failures(predicting(plan, **update))[check]


def test_an_edited_part(plan: Plan) -> None:
    parts = {**plan.prediction.time, "compute": 1e-6, "magic": 1.0}
    said = failures(predicting(plan, time=parts))["time parts"]
    assert "`time.compute` says 1e-06" in said
    assert "`time.magic` says 1, computed again it is nothing" in said
    first, *others = plan.prediction.rank_memory
    ranks = ({**first, "weights": 7.0}, *others)
    assert "`rank_memory.0.weights` says 7" in failures(predicting(plan, rank_memory=ranks))["rank memory"]


def test_another_layout_under_the_same_numbers(plan: Plan) -> None:
    other = of_layout(plan, "tp2 pp1 dp2 mbs1 zero1")
    swapped = plan.model_copy(update={"layout": other.layout})
    failed = failures(swapped)
    assert {"step", "time parts", "optimum"} <= set(failed)
    assert "better than" in failed["optimum"]


def test_a_slower_layout_with_its_own_numbers_and_a_borrowed_proof(plan: Plan) -> None:
    failed = failures(of_layout(plan, "tp2 pp1 dp2 mbs1 zero1"))
    assert set(failed) == {"certificate", "spot check", "optimum", "program"}
    assert "which is less" in failed["spot check"]


def test_a_layout_that_breaks_its_restrictions(plan: Plan) -> None:
    failed = failures(of_layout(plan, "tp1 pp2 dp2 vpp2 mbs1 zero1"))
    assert failed["restrictions"] == "the layout breaks --fix vpp=1, --forbid zero=3"


def test_a_layout_that_cannot_run(plan: Plan) -> None:
    broken = plan.model_copy(update={"layout": parse_layout("tp3 pp2 layers=2*2")})
    checks = list(verify(broken))
    assert [one.passed for one in checks] == [False]
    assert "`tp3`" in checks[0].what


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"layouts": 10**6}, {"proof": "`layouts` says 1000000"}),
        ({"gap": 0.1}, {"certificate": "its `gap` is 0.1; bound and step say"}),
        ({"bound": 1e-9}, {"certificate": "its `gap` is 0;", "proof": "`bound` says 1e-09"}),
        ({"space": "everything"}, {"proof": "`space` names another"}),
        ({"minimised": "averse"}, {"proof": "`minimised` says averse"}),
        ({"scenarios": 3}, {"proof": "`scenarios` says 3"}),
    ],
)
def test_forged_certificates(plan: Plan, update: dict[str, object], said: dict[str, str]) -> None:
    failed = failures(certified(plan, **update))
    assert set(said) <= set(failed)
    for check, words in said.items():
        assert words in failed[check]


def test_a_certificate_for_what_was_never_searched(plan: Plan) -> None:
    """An uneven layout outside the covered space, made to look proven."""
    forged = of_layout(plan, "tp2 pp2 dp1 mbs1 zero0")
    forged = certified(forged, bound=forged.prediction.step_seconds)
    assert {"spot check", "optimum", "proof"} <= set(failures(forged))


def test_a_stopped_search_is_held_to_its_own_gap(plan: Plan) -> None:
    """Bound and gap are right and nothing better than the bound exists; the counts need not come out again."""
    assert plan.certificate is not None
    step = plan.prediction.step_seconds
    assert failures(certified(plan, gap=0.05, bound=step * 0.95)) == {}


def test_a_plan_that_does_not_fit(plan: Plan) -> None:
    assert "fits" in failures(of_layout(plan, "dp4 mbs2 zero0"))


def test_a_deadline_that_the_step_misses() -> None:
    question = small_question(memory="1 GiB", tokens=1e9)
    objective = Objective(name="gpu-hours", deadline=1e9)
    found = optimise(question, objective, top=1)
    plan = make_plan(found.question, found.result.best, found.result.certificate, None, found.for_file(4))
    assert plan.objective is not None
    assert failures(plan) == {}
    late = plan.model_copy(update={"objective": plan.objective.model_copy(update={"deadline": 1.0})})
    assert "it misses its deadline" in failures(late)["certificate"]
