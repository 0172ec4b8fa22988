"""Plans: saved, read, verified."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import yaml
from calling import refusal
from effort import few
from small import small_question
from tables import unnamed

from cost_models.axes.layout import parse_layout
from cost_models.errors import InputError, RunError
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from planner import plan as module
from planner.answers.optimum import optimise
from planner.explain import reasons
from planner.explain.reasons import Explanation, explain
from planner.objectives import Certificate, Objective
from planner.plan import (
    UNSAVED,
    Plan,
    PlanCache,
    PlanRestrictions,
    SearchedLayouts,
    cache_folder,
    load_plan,
    make_plan,
    plan_text,
    priced_again,
    save_plan,
)
from planner.search import search as search_module
from planner.search.branching import SearchResult, SearchSettings
from planner.search.search import place_layout, search, search_on
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.verify.plans import verify


@pytest.fixture(scope="module")
def plan() -> Plan:
    question = small_question(memory="220 MiB")
    result = search(question)
    return make_plan(question, result.best, result.certificate)


@pytest.fixture
def file(plan: Plan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    save_plan(plan, path)
    return path


def test_a_plan_reads_back_as_it_was(plan: Plan, file: Path) -> None:
    written = Certificate(**plan.certificate.model_dump(exclude=UNSAVED))
    assert load_plan(file) == plan.model_copy(update={"certificate": written})
    assert not UNSAVED & {line.strip().partition(":")[0] for line in file.read_text("utf-8").splitlines()}


def test_how_earlier_versions_came_by_a_proof_is_passed_over(plan: Plan, file: Path) -> None:
    """What nobody can check is not told again."""
    before = load_plan(file)
    document = yaml.safe_load(file.read_text("utf-8"))
    document["certificate"] |= {"top": 5, "infeasible": 7, "pruned": -1, "settled": {"solver": "highs"}}
    file.write_text(yaml.safe_dump(document, explicit_end=True), "utf-8")
    assert load_plan(file) == before


def test_earlier_names_of_parts_are_read(plan: Plan, file: Path) -> None:
    before, mark, parts = file.read_text("utf-8").partition("rank_memory:")
    assert "fragmentation:" in parts
    file.write_text(before + mark + parts.replace("fragmentation:", "holes:", 1), encoding="utf-8")
    assert load_plan(file).prediction.rank_memory == plan.prediction.rank_memory


def test_the_same_query_gives_the_same_bytes(plan: Plan, file: Path) -> None:
    question = small_question(memory="220 MiB")
    again = search(question)
    assert plan_text(make_plan(question, again.best, again.certificate)) == file.read_text("utf-8")
    assert plan_text(load_plan(file)) == file.read_text("utf-8")


def test_restrictions_are_written_as_the_command_line_reads_them(plan: Plan, tmp_path: Path) -> None:
    fix, forbid = ["tp=1,2", "schedule=1f1b"], ["zero=3", "sp=0", "recompute=full"]
    restrictions = parse_restrictions(fix, forbid, max_memory=0.1)
    written = plan.model_copy(update={"restrictions": PlanRestrictions.of(restrictions)})
    save_plan(written, tmp_path / "plan.yaml")
    read = load_plan(tmp_path / "plan.yaml")
    assert read.restrictions.read == restrictions
    assert priced_again(read).memory_limit == restrictions.max_memory < priced_again(plan).memory_limit
    assert set(written.restrictions.fix) == set(fix)
    assert set(written.restrictions.forbid) == set(forbid)


def test_restrictions_that_cannot_be_read_are_refused(file: Path) -> None:
    file.write_text(file.read_text("utf-8").replace("  fix: []", "  fix: [tp=three]"), "utf-8")
    with pytest.raises(InputError, match=r"a restriction cannot be read\n  .*plan.yaml:\d+  restrictions: "):
        load_plan(file)


def test_a_plan_cut_short_anywhere_is_refused(file: Path, tmp_path: Path) -> None:
    text = file.read_text("utf-8")
    cut = tmp_path / "cut.yaml"
    whole = len(text) - len("...\n")
    for end in (*range(0, whole, max(1, len(text) // 40)), whole):
        cut.write_text(text[:end], "utf-8")
        with pytest.raises(InputError):
            load_plan(cut)


def test_another_schema_version(file: Path) -> None:
    file.write_text(file.read_text("utf-8").replace("schema_version: 1", "schema_version: 2"), "utf-8")
    with pytest.raises(InputError, match=r"has schema_version 2; this Meshwright \(.*\) reads 1") as caught:
        load_plan(file)
    assert "plan again" in caught.value.hint


def test_what_is_not_a_plan(tmp_path: Path) -> None:
    for text, complaint in [
        ("", "is empty"),
        ("just words\n", "holds no `field: value` pairs"),
        ("kind: cluster\n", "a `plan` is needed here"),
        ("kind: plan\n", "does not say its schema_version"),
        ("- 1\n- 2\n", "holds no `field: value` pairs"),
    ]:
        path = tmp_path / "other.yaml"
        path.write_text(text, "utf-8")
        with pytest.raises(InputError, match=re.escape(complaint)):
            load_plan(path)


def test_hostile_plans_run_no_code(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tag in ["!!python/object/apply:os.system ['touch hacked']", "!!python/name:os.system"]:
        monkeypatch.chdir(tmp_path)
        text = re.sub(r"meshwright_version: .*", f"meshwright_version: {tag}", file.read_text("utf-8"))
        file.write_text(text, "utf-8")
        with pytest.raises(InputError):
            load_plan(file)
        assert not (tmp_path / "hacked").exists()


def test_wrong_fields_are_told_with_their_lines(file: Path) -> None:
    text = file.read_text("utf-8").replace("global_batch: 8", "global_batch: -8").replace("mfu:", "mfoo:")
    file.write_text(text, "utf-8")
    told = refusal(load_plan, file)
    line = 1 + text[: text.index("global_batch")].count("\n")
    assert f"plan.yaml:{line}" in told
    assert "mfoo" in told


def test_a_layout_that_does_not_go_with_its_model(file: Path) -> None:
    document = yaml.safe_load(file.read_text("utf-8"))
    document["layout"] = "tp3 pp2 zero1"
    file.write_text(yaml.safe_dump(document, explicit_end=True), "utf-8")
    assert unnamed(refusal(load_plan, file), "`tp3`", "does not place its blocks") == []


@pytest.fixture
def cached_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = search(small_question(memory="400 MiB"), top=1)
    return make_plan(small_question(memory="400 MiB"), found.best, found.certificate)


def explained(cached_plan: Plan) -> Explanation:
    return explain(cached_plan, priced_again(cached_plan))


def unsearched(*_: object, **__: object) -> None:
    raise AssertionError("it was searched again")


def test_a_plan_is_explained_once(cached_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    first = explained(cached_plan)
    assert first.rival is not None
    monkeypatch.setattr(reasons, "search_on", unsearched)
    monkeypatch.setattr("planner.explain.reasons.faster_under", unsearched)
    assert explained(cached_plan) == first


def test_what_differs_or_is_spoilt_is_searched_again(
    cached_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = explained(cached_plan)
    (file,) = (cache_folder() or Path()).iterdir()
    monkeypatch.setattr(reasons, "search_on", unsearched)
    other = cached_plan.model_copy(update={"confidence": 0.9})
    with pytest.raises(AssertionError, match="searched again"):
        explained(other)
    for text in ("{", "[]", '{"rivals": ["tp3"]}', '{"rivals": ["tp8 pp1 dp1"]}', '{"rivals": 1}', "\x00"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(AssertionError, match="searched again"):
            explained(cached_plan)
    monkeypatch.setattr(module, "_version", lambda: "another")
    with pytest.raises(AssertionError, match="searched again"):
        explained(cached_plan)
    monkeypatch.undo()
    assert explained(cached_plan) == first


def test_the_unproved_is_not_kept(cached_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unproved() -> SearchedLayouts:
        return [cached_plan.layout], False

    assert PlanCache(cached_plan).layouts("rivals", unproved) == (cached_plan.layout,)
    assert not [*tmp_path.rglob("*.json")]
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    PlanCache(cached_plan).store("rivals", [cached_plan.layout])
    monkeypatch.setattr(module, "cache_folder", lambda: None)
    assert PlanCache(cached_plan).layouts("rivals", unproved) == (cached_plan.layout,)


LIMITS = parse_restrictions(["vpp=1"], ["zero=3"])


@pytest.fixture(scope="module")
def sound() -> Plan:
    question = small_question(memory="220 MiB")
    found = search(question, restrictions=LIMITS)
    return make_plan(question, found.best, found.certificate, LIMITS)


def failures(sound: Plan) -> dict[str, str]:
    """Name → words of the checks that did not pass."""
    return {one.name: one.what for one in verify(sound) if not one.passed}


def of_layout(sound: Plan, text: str) -> Plan:
    """The plan with another layout, priced truly, its certificate kept."""
    priced = estimate(sound.question, place_layout(sound.question, parse_layout(text)))
    return make_plan(sound.question, priced, sound.certificate, sound.restrictions.read)


def predicting(sound: Plan, **update: object) -> Plan:
    return sound.model_copy(update={"prediction": sound.prediction.model_copy(update=update)})


def certified(sound: Plan, **update: object) -> Plan:
    return sound.model_copy(update={"certificate": sound.certificate.model_copy(update=update)})


def test_a_true_plan_passes_every_check(sound: Plan) -> None:
    checks = list(verify(sound))
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
    sound = make_plan(found.question, best, found.result.certificate, few, found.for_file(4))
    assert failures(sound) == {}
    better = sound.model_copy(update={"objective": sound.objective.model_copy(update={"value": 1.0})})
    assert f"its `value` ({name}) says 1; it is" in failures(better)["certificate"]
    forged = sound.model_copy(update={"objective": sound.objective.model_copy(update={"bound": 1.0})})
    assert "the objective's `bound` says 1" in failures(forged)["proof"]


def test_what_was_asked_for_is_verified_as_a_price(sound: Plan) -> None:
    asked = of_layout(sound, "tp2 dp2 mbs1 zero1").model_copy(update={"certificate": None})
    checks = list(verify(asked))
    assert all(one.passed for one in checks)
    assert "optimum" not in [one.name for one in checks]


def test_edited_numbers(sound: Plan) -> None:
    for update, check, said in [
        ({"step_seconds": 1e-3}, "step", "`step_seconds` says 0.001, computed again it is"),
        ({"mfu": 0.9}, "step", "`mfu` says 0.9"),
        ({"peak_bytes": 1.0}, "rank memory", "`peak_bytes` says 1"),
        ({"memory_limit": 1e12}, "rank memory", "`memory_limit` says 1e+12"),
        ({"trust": "measured, no error"}, "trust", "says `measured, no error`; it is `"),
        ({"rank_memory": ()}, "rank memory", "`rank_memory.0.weights` says nothing"),
    ]:
        assert said in failures(predicting(sound, **update))[check]


def test_an_edited_part(sound: Plan) -> None:
    parts = {**sound.prediction.time, "compute": 1e-6, "magic": 1.0}
    said = failures(predicting(sound, time=parts))["time parts"]
    assert "`time.compute` says 1e-06" in said
    assert "`time.magic` says 1, computed again it is nothing" in said
    first, *others = sound.prediction.rank_memory
    ranks = ({**first, "weights": 7.0}, *others)
    assert "`rank_memory.0.weights` says 7" in failures(predicting(sound, rank_memory=ranks))["rank memory"]


def test_another_layout_under_the_same_numbers(sound: Plan) -> None:
    other = of_layout(sound, "tp2 pp1 dp2 mbs1 zero1")
    swapped = sound.model_copy(update={"layout": other.layout})
    failed = failures(swapped)
    assert {"step", "time parts", "optimum"} <= set(failed)
    assert "better than" in failed["optimum"]


def test_a_slower_layout_with_its_own_numbers_and_a_borrowed_proof(sound: Plan) -> None:
    failed = failures(of_layout(sound, "tp2 pp1 dp2 mbs1 zero1"))
    assert set(failed) == {"certificate", "spot check", "optimum", "program"}
    assert "which is less" in failed["spot check"]


def test_a_layout_that_breaks_its_restrictions(sound: Plan) -> None:
    failed = failures(of_layout(sound, "tp1 pp2 dp2 vpp2 mbs1 zero1"))
    assert failed["restrictions"] == "the layout breaks --fix vpp=1, --forbid zero=3"


def test_a_layout_that_cannot_run(sound: Plan) -> None:
    broken = sound.model_copy(update={"layout": parse_layout("tp3 pp2 layers=2*2")})
    checks = list(verify(broken))
    assert [one.passed for one in checks] == [False]
    assert "`tp3`" in checks[0].what


def test_forged_certificates(sound: Plan) -> None:
    for update, said in [
        ({"layouts": 10**6}, {"proof": "`layouts` says 1000000"}),
        ({"gap": 0.1}, {"certificate": "its `gap` is 0.1; bound and step say"}),
        ({"bound": 1e-9}, {"certificate": "its `gap` is 0;", "proof": "`bound` says 1e-09"}),
        ({"space": "everything"}, {"proof": "`space` names another"}),
        ({"minimised": "averse"}, {"proof": "`minimised` says averse"}),
        ({"scenarios": 3}, {"proof": "`scenarios` says 3"}),
    ]:
        failed = failures(certified(sound, **update))
        assert set(said) <= set(failed)
        for check, words in said.items():
            assert words in failed[check]


def test_a_certificate_for_what_was_never_searched(sound: Plan) -> None:
    """An uneven layout outside the covered space, made to look proven."""
    forged = of_layout(sound, "tp2 pp2 dp1 mbs1 zero0")
    forged = certified(forged, bound=forged.prediction.step_seconds)
    assert {"spot check", "optimum", "proof"} <= set(failures(forged))


def test_a_stopped_search_is_held_to_its_own_gap(sound: Plan) -> None:
    """Bound and gap are right and nothing better than the bound exists; the counts need not come out again."""
    assert sound.certificate is not None
    step = sound.prediction.step_seconds
    assert failures(certified(sound, gap=0.05, bound=step * 0.95)) == {}


def test_a_plan_that_does_not_fit(sound: Plan) -> None:
    assert "fits" in failures(of_layout(sound, "dp4 mbs2 zero0"))


def test_a_deadline_that_the_step_misses() -> None:
    question = small_question(memory="1 GiB", tokens=1e9)
    objective = Objective(name="gpu-hours", deadline=1e9)
    found = optimise(question, objective, top=1)
    sound = make_plan(found.question, found.result.best, found.result.certificate, None, found.for_file(4))
    assert failures(sound) == {}
    late = sound.model_copy(update={"objective": sound.objective.model_copy(update={"deadline": 1.0})})
    assert "it misses its deadline" in failures(late)["certificate"]
