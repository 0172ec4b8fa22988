"""Exact frontiers against all plans priced one by one, and cells of the heat map that share one space."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from asking import change
from every_plan import every_plan, few_layouts
from small import small_question
from test_objectives import SIZES, with_tokens

from planner.answers import frontier
from planner.answers.frontier import exact_frontier, frontier_frame, heatmap_frame, pareto_frame
from planner.objectives import Objective
from planner.search.search import Budget, search
from planner.space import space
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


def test_time_against_gpu_hours_has_the_fastest_of_each_size() -> None:
    question = with_tokens(small_question(memory="500 MiB"))
    found = exact_frontier(question, (TIME, HOURS), sizes=SIZES)
    each = [(resized(question, gpus), search(resized(question, gpus), top=1).best) for gpus in SIZES]
    pairs = [(one.step_seconds, HOURS.value(there, one)) for there, one in each]
    frame = pareto_frame(found)
    assert list(zip(frame["time"], frame["gpu-hours"], strict=True)) == unbeaten(pairs)
    assert frame["proven"].all()


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


def test_layouts_are_enumerated_once_for_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    question, limits = small_question(4, "220 MiB"), parse_restrictions(forbid=["zero3"])
    chosen = search(question, top=1, restrictions=limits).best.layout
    enumerated = Mock(wraps=space._legal_space)
    monkeypatch.setattr(space, "_legal_space", enumerated)
    cells = heatmap_frame(question, chosen, limits, Budget())
    assert enumerated.call_count == 1
    found = cells[cells["reason"] == ""]
    assert len(found) > 1
    for cell in found.itertuples():
        own = parse_restrictions([f"tp={cell.tp}", f"pp={cell.pp}"], ["zero3"])
        best = search(question, top=1, restrictions=own).best
        assert (cell.layout, cell.step_seconds) == (best.layout.brief, best.step_seconds)


def test_what_a_plan_is_not_searched_for_has_no_cell() -> None:
    """Tensor groups over slow links: no cell is better than the plan, unless the plan itself has such a group."""
    question = small_question(2, "2 GiB")
    links = question.cluster.links
    slow = links.model_copy(update={"inter_node": links.intra_node.faster(0.1)})  # type: ignore[union-attr]
    question = change(question, cluster={"nodes": 2, "links": slow})
    best = search(question, top=1).best
    cells = heatmap_frame(question, best.layout, Restrictions(), Budget())
    over_nodes = cells[cells["tp"] == 4]
    assert set(over_nodes["reason"]) == {"limit", "rule"}
    assert over_nodes["why"].iloc[0].startswith("`tp4` spreads tensor groups over nodes")
    assert cells["step_seconds"].min() == pytest.approx(best.step_seconds)
    asked = search(question, top=1, restrictions=parse_restrictions(["tp=4"])).best
    cells = heatmap_frame(question, asked.layout, Restrictions(), Budget())
    assert "" in set(cells.query("tp == 4")["reason"])
