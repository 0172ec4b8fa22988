"""Cells of the heat map: they share one space, and a slow machine draws the same ones."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from unittest.mock import Mock

import pandas as pd
import pytest
from small import small_question

from planner.answers.frontier import heatmap_frame
from planner.search.search import Budget, search
from planner.space import space
from planner.space.restrictions import Restrictions, parse_restrictions


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
    cluster = question.cluster.model_copy(update={"nodes": 2, "links": slow})
    question = replace(question, cluster=cluster)
    best = search(question, top=1).best
    cells = heatmap_frame(question, best.layout, Restrictions(), Budget())
    over_nodes = cells[cells["tp"] == 4]
    assert set(over_nodes["reason"]) == {"limit", "rule"}
    assert over_nodes["why"].iloc[0].startswith("`tp4` spreads tensor groups over nodes")
    assert cells["step_seconds"].min() == pytest.approx(best.step_seconds)
    asked = search(question, top=1, restrictions=parse_restrictions(["tp=4"])).best
    cells = heatmap_frame(question, asked.layout, Restrictions(), Budget())
    assert "" in set(cells.query("tp == 4")["reason"])


def test_a_slow_machine_draws_the_same_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that runs a minute at each look ends every search that is limited in seconds."""
    question = small_question(4, "220 MiB")
    chosen, minutes = search(question, top=1).best.layout, count(step=60.0)
    usual = heatmap_frame(question, chosen, Restrictions(), Budget())
    monkeypatch.setattr(time, "monotonic", lambda: next(minutes))
    pd.testing.assert_frame_equal(heatmap_frame(question, chosen, Restrictions(), Budget()), usual)
