"""What a search about a plan found is priced by the next verb, not searched again; what is spoilt is searched again."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import small_question

from planner import plan as module
from planner.explain import reasons
from planner.explain.reasons import Explanation, explain
from planner.plan import Plan, PlanCache, SearchedLayouts, cache_folder, make_plan, priced_again
from planner.search.search import search


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = search(small_question(memory="400 MiB"), top=1)
    return make_plan(small_question(memory="400 MiB"), found.best, found.certificate)


def explained(plan: Plan) -> Explanation:
    return explain(plan, priced_again(plan))


def unsearched(*_: object, **__: object) -> None:
    raise AssertionError("it was searched again")


def test_a_plan_is_explained_once(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    first = explained(plan)
    assert first.rival is not None
    monkeypatch.setattr(reasons, "search_on", unsearched)
    monkeypatch.setattr("planner.explain.reasons.faster_under", unsearched)
    assert explained(plan) == first


def test_another_version_another_question_and_a_spoilt_file_are_searched_again(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = explained(plan)
    (file,) = (cache_folder() or Path()).iterdir()
    monkeypatch.setattr(reasons, "search_on", unsearched)
    other = plan.model_copy(update={"confidence": 0.9})
    with pytest.raises(AssertionError, match="searched again"):
        explained(other)
    for text in ("{", "[]", '{"rivals": ["tp3"]}', '{"rivals": ["tp8 pp1 dp1"]}', '{"rivals": 1}', "\x00"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(AssertionError, match="searched again"):
            explained(plan)
    monkeypatch.setattr(module, "_version", lambda: "another")
    with pytest.raises(AssertionError, match="searched again"):
        explained(plan)
    monkeypatch.undo()
    assert explained(plan) == first


def test_what_is_not_proved_is_not_kept_and_no_folder_is_needed(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unproved() -> SearchedLayouts:
        return [plan.layout], False

    assert PlanCache(plan).layouts("rivals", unproved) == (plan.layout,)
    assert not [*tmp_path.rglob("*.json")]
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    PlanCache(plan).store("rivals", [plan.layout])
    monkeypatch.setattr(module, "cache_folder", lambda: None)
    assert PlanCache(plan).layouts("rivals", unproved) == (plan.layout,)


def test_the_oldest_files_are_removed(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 2)
    for confidence in (0.5, 0.6, 0.7):
        PlanCache(plan.model_copy(update={"confidence": confidence})).store("rivals", [])
    assert len([*(cache_folder() or Path()).iterdir()]) == 2
