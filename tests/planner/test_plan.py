"""Plan files: the same bytes for the same query, whole or not at all, no code when read; what is kept beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from small import small_question

from cost_models.errors import InputError
from planner import plan as module
from planner.explain import reasons
from planner.explain.reasons import Explanation, explain
from planner.objectives import Certificate
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
from planner.search.search import search
from planner.space.restrictions import parse_restrictions


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
    assert plan.certificate is not None
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


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("just words\n", "holds no `field: value` pairs"),
        ("kind: cluster\n", "a `plan` is needed here"),
        ("kind: plan\n", "does not say its schema_version"),
        ("- 1\n- 2\n", "holds no `field: value` pairs"),
    ],
)
def test_what_is_not_a_plan(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError, match=re.escape(complaint)):
        load_plan(path)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system ['touch hacked']", "!!python/name:os.system"]
)
def test_hostile_plans_run_no_code(
    tag: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = re.sub(r"meshwright_version: .*", f"meshwright_version: {tag}", file.read_text("utf-8"))
    file.write_text(text, "utf-8")
    with pytest.raises(InputError):
        load_plan(file)
    assert not (tmp_path / "hacked").exists()


def test_wrong_fields_are_told_with_their_lines(file: Path) -> None:
    text = file.read_text("utf-8").replace("global_batch: 8", "global_batch: -8").replace("mfu:", "mfoo:")
    file.write_text(text, "utf-8")
    with pytest.raises(InputError) as caught:
        load_plan(file)
    told = str(caught.value)
    line = 1 + text[: text.index("global_batch")].count("\n")
    assert f"plan.yaml:{line}" in told
    assert "mfoo" in told


def test_a_layout_that_does_not_go_with_its_model(file: Path) -> None:
    document = yaml.safe_load(file.read_text("utf-8"))
    document["layout"] = "tp3 pp2 zero1"
    file.write_text(yaml.safe_dump(document, explicit_end=True), "utf-8")
    with pytest.raises(InputError) as caught:
        load_plan(file)
    assert any("`tp3`" in problem.what for problem in caught.value.problems)
    assert any("does not place its blocks" in problem.what for problem in caught.value.problems)


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
