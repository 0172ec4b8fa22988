"""Exact frontiers against all plans priced one by one."""

from __future__ import annotations

import time
from itertools import count

import pytest
from every_plan import every_plan, few_layouts
from small import small_question
from test_objectives import SIZES, interrupt_after, with_tokens

from cost_models.errors import InputError, RunError
from planner.answers import frontier
from planner.answers.frontier import exact_frontier, frontier_frame, pareto_frame
from planner.answers.optimum import optimise
from planner.objectives import Objective
from planner.search.search import Budget, search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.sizes import resized

TIME, MEMORY, HOURS = Objective(name="time"), Objective(name="memory"), Objective(name="gpu-hours")


def unbeaten(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other beats, the first rising."""
    kept: list[tuple[float, float]] = []
    for pair in sorted(pairs):
        if not kept or pair[1] < kept[-1][1] * (1 - 1e-9):
            if kept and pair[0] <= kept[-1][0] * (1 + 1e-9):
                kept.pop()
            kept.append(pair)
    return kept


def test_time_against_memory_is_the_frontier_of_all_plans() -> None:
    question, few = few_layouts()
    found = exact_frontier(question, (TIME, MEMORY), points=None, restrictions=few)
    fitting = [plan for plan in every_plan(question, few) if plan.fits]
    expected = unbeaten([(plan.step_seconds, plan.peak_bytes) for plan in fitting])
    walked = [(point.estimate.step_seconds, point.estimate.peak_bytes) for point in found.points]
    assert found.complete
    assert len(walked) == len(expected) > 3
    for mine, right in zip(walked, expected, strict=True):
        assert mine == pytest.approx(right, rel=1e-8)


def test_a_few_points_are_some_of_all_with_both_ends() -> None:
    question, few = few_layouts()
    everything = exact_frontier(question, (TIME, MEMORY), points=None, restrictions=few)
    some = exact_frontier(question, (TIME, MEMORY), points=4, restrictions=few)
    layouts = [str(point.estimate.layout) for point in everything.points]
    chosen = [layouts.index(str(point.estimate.layout)) for point in some.points]
    assert not some.complete
    assert len(chosen) <= 5
    assert (chosen[0], chosen[-1]) == (0, len(layouts) - 1)


def test_a_search_that_found_nothing_in_its_time_is_not_blamed_on_the_limit() -> None:
    budget = Budget(time_limit=600.0)
    assert budget.search(small_question(), Restrictions(), seconds=1e-6) is None
    with pytest.raises(RunError, match=r"no layout was placed in .*, which is what each search") as caught:
        raise budget.nothing_found()
    assert "time-limit" not in caught.value.hint
    with pytest.raises(RunError, match="time ran out before any layout was placed"):
        exact_frontier(small_question(), (TIME, MEMORY), budget=Budget(time_limit=1e-7))


def test_points_are_those_of_a_quick_machine_on_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that runs a minute at each look ends every search that is limited in seconds."""
    question, few = few_layouts()
    usual = exact_frontier(question, (TIME, MEMORY), points=4, restrictions=few)
    minutes = count(step=60.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(minutes))
    slow = exact_frontier(question, (TIME, MEMORY), points=4, restrictions=few)
    assert [one.estimate for one in slow.points] == [one.estimate for one in usual.points]
    assert [one.gap for one in slow.points] == [one.gap for one in usual.points]
    assert slow.complete == usual.complete


def test_time_against_gpu_hours_has_the_fastest_of_each_size() -> None:
    question = with_tokens(small_question(memory="500 MiB"))
    found = exact_frontier(question, (TIME, HOURS), sizes=SIZES)
    each = [(resized(question, gpus), search(resized(question, gpus), top=1).best) for gpus in SIZES]
    pairs = [(one.step_seconds, HOURS.value(there, one)) for there, one in each]
    frame = pareto_frame(found)
    assert list(zip(frame["time"], frame["gpu-hours"], strict=True)) == unbeaten(pairs)
    assert frame["proven"].all()


def test_memory_against_gpus_has_the_least_of_each_size() -> None:
    question = small_question(memory="220 MiB")
    few = parse_restrictions(["vpp=1", "schedule=1f1b", "mbs=1", "cp=1", "zero=1", "pp=1"])
    found = exact_frontier(question, (MEMORY, Objective(name="gpus")), sizes=(2, 4), restrictions=few)
    least = [optimise(resized(question, gpus), MEMORY, restrictions=few).value for gpus in (4, 2)]
    assert [point.estimate.peak_bytes for point in found.points] == least


def test_an_interrupt_keeps_the_points_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    question, few = few_layouts()
    interrupt_after(4, monkeypatch)
    budget = Budget(keep_on_interrupt=True)
    found = exact_frontier(question, (TIME, MEMORY), points=None, restrictions=few, budget=budget)
    assert found.points
    assert not found.complete


def test_a_frontier_needs_two_objectives() -> None:
    with pytest.raises(InputError, match="not `time` twice"):
        exact_frontier(small_question(), (TIME, TIME))


def test_the_exact_frame_is_never_below_the_even_one() -> None:
    question, few = few_layouts()
    chosen = search(question, top=1, restrictions=few).best
    frame = frontier_frame(question, chosen, few, Budget(), exact=True)
    line = frame[frame["pareto"]].sort_values("peak_bytes")
    assert line["tokens_per_second"].is_monotonic_increasing
    even = frontier_frame(question, chosen, few, Budget())
    for _, row in even[even["pareto"]].iterrows():
        reached = line.loc[line["peak_bytes"] <= row["peak_bytes"] * (1 + 1e-9), "tokens_per_second"]
        assert reached.max() >= row["tokens_per_second"] * 0.98


def test_no_layout_of_the_cloud_lies_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that look better are priced in full; of more than there is time for none is shown."""
    question, few = few_layouts()
    chosen = search(question, top=1, restrictions=few).best
    for most in (frontier.MAX_PRICED, 0):
        monkeypatch.setattr(frontier, "MAX_PRICED", most)
        frame = frontier_frame(question, chosen, few, Budget(), exact=True, points=2)
        fits = frame[frame["fits"]]
        line = fits[fits["pareto"]]
        for row in fits[~fits["pareto"]].itertuples():
            as_small = line[line["peak_bytes"] <= row.peak_bytes]
            assert (as_small["step_seconds"] <= row.step_seconds).any(), row
        assert line["proven"].any()
        assert most == 0 or not line["proven"].all()
