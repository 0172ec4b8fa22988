"""One pipeline prices an estimate, a search, many rows and several layouts together: the same to the last bit."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from asking import ask, change
from effort import few
from hypothesis import given
from hypothesis import strategies as st

from cost_models.axes.columns import LayoutColumns, codes_of
from cost_models.axes.layout import Layout, parse_layout
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.measured.runs.cases import shipped_rows
from cost_models.measured.validation.predictions import predict
from cost_models.pipeline.pricing import estimate, estimate_each, price_ranks
from cost_models.pipeline.seconds import TIME_PARTS
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, as_priced, stage_costs, time_terms
from cost_models.question import Question
from cost_models.specs.choices import SCHEDULES
from cost_models.specs.kinds import Kinds
from planner.placement.leaf import Leaf
from planner.space.restrictions import Restrictions
from planner.space.space import enumerate_layouts

LAYOUTS = (
    "tp2 pp1 dp4 mbs1 zero1 recompute=full:3/selective:2",
    "tp1 pp4 dp2 mbs1 zero2 layers=9,8,8,7 recompute=full:2/selective:1",
    "tp1 pp4 dp2 mbs2 zero0 schedule=gpipe layers=7,8,8,9",
    "tp1 pp4 vpp4 dp2 mbs1 zero1 recompute=full:1",
    "tp2 pp2 vpp2 dp2 mbs1 zero1 schedule=zero-bubble layers=7,8,8,9",
    "tp1 pp4 dp2 mbs1 zero0 schedule=zbv",
    "tp1 pp4 dp2 mbs1 zero1 schedule=dualpipev layers=3,4,4,4,4,4,4,5",
)
EVERY = pytest.mark.parametrize("text", LAYOUTS)


def question() -> Question:
    return ask("llama3-8b", "dgx-h100", 8, stack="meshwright", global_batch=64, sequence_length=2048)


def leaf_of(layout: Layout, costs: StageCosts) -> Leaf:
    """As the search makes it from a row of a million."""
    return Leaf(
        costs=costs,
        pp=layout.pp,
        vpp=layout.vpp,
        schedule=layout.schedule,
        microbatches=layout.microbatches(64),
        kinds=Kinds((0,) * 32),
        allowed=np.ones(3, dtype=np.bool_),
    )


@EVERY
def test_the_search_prices_a_placement_as_its_estimate_does(text: str) -> None:
    asked, layout = question(), parse_layout(text)
    ranks, priced = price_ranks(asked, layout), estimate(asked, layout)
    leaf = leaf_of(layout, stage_costs(asked, LayoutColumns.of([layout])))
    blocks = ranks.placement.blocks
    assert float(leaf.step_seconds(blocks)) == priced.step_seconds
    peaks = [own.total for own in priced.rank_memory]
    np.testing.assert_allclose(leaf.rank_bytes(blocks), peaks, rtol=1e-14)


@EVERY
def test_the_parts_of_a_rank_take_as_long_as_it_is_busy(text: str) -> None:
    ranks = price_ranks(question(), parse_layout(text))
    seconds = sum(ranks.seconds[part] for part in TIME_PARTS)
    busy = ranks.pipeline.step_of(ranks.placement.blocks)[2] + ranks.pipeline.overhead
    np.testing.assert_allclose(seconds, busy, rtol=1e-12)


ROWS = 3000
FEW = 40


def small_question(model: str, stack: str) -> Question:
    return ask(model, "dgx-a100-80gb", 32, stack=stack, global_batch=64, sequence_length=2048)


def mixed_rows(asked: Question) -> LayoutColumns:
    """Legal layouts from all over the space, in no order."""
    rows = enumerate_layouts(asked, Restrictions())
    chosen = np.random.default_rng(0).permutation(len(rows))[:ROWS]
    return rows.rows(chosen)


def same_bits(one: StageCosts, other: StageCosts) -> bool:
    both = one.in_sorts, other.in_sorts
    return all(getattr(both[0], name).tobytes() == getattr(both[1], name).tobytes() for name in COLUMNS)


@few(8)  # of every stack with a dense model and a mixture
@pytest.mark.parametrize("stack", catalog.names("stacks"))
@pytest.mark.parametrize("model", ["llama2-7b", "deepseek-v2-lite"])
def test_many_rows_cost_what_each_costs_alone(model: str, stack: str) -> None:
    asked = small_question(model, stack)
    rows = mixed_rows(asked)
    costs = stage_costs(asked, rows)
    for row in range(0, len(rows), max(1, len(rows) // FEW)):
        index = slice(row, row + 1)
        assert same_bits(costs.rows(index), stage_costs(asked, rows.rows(index)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_costs_what_the_one_it_is_priced_as_costs(schedule: str) -> None:
    asked = small_question("llama2-7b", "torchtitan")
    for stack in (asked, change(asked, stack={"torch_pipelining": False})):
        rows = mixed_rows(stack).rows(slice(0, FEW))
        rows = replace(rows, schedule=np.full(len(rows), SCHEDULES.index(schedule)), vpp=2 * rows.vpp)
        assert same_bits(stage_costs(stack, rows), stage_costs(stack, as_priced(stack, rows)))


@given(st.lists(st.tuples(*[st.integers(-(10**5), 10**5) | st.integers(0, 3)] * 6), min_size=1, max_size=60))
def test_a_code_is_as_different_and_as_ordered_as_its_values(rows: list[tuple[int, ...]]) -> None:
    codes = codes_of([np.array(column) for column in zip(*rows, strict=True)]).tolist()
    for one, code in zip(rows, codes, strict=True):
        for other, another in zip(rows, codes, strict=True):
            assert (one < other) == (code < another)


TOGETHER = ("tp8 pp1 dp8 mbs1", "tp4 pp4 dp4 mbs1", "tp2 pp4 vpp2 dp8 mbs1", "tp4 pp4 dp4 mbs1")
TOGETHER_LAYOUTS = [parse_layout(text) for text in TOGETHER]


def on_64_gpus() -> Question:
    return ask("llama3-8b", "dgx-h100", 64, global_batch=64, sequence_length=2048)


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Calls that price coefficients of time."""
    counted = Mock(wraps=time_terms)
    monkeypatch.setattr("cost_models.pipeline.stage_costs.time_terms", counted)
    return counted


def test_layouts_priced_together_cost_what_each_does_alone(priced: Mock) -> None:
    together = estimate_each(on_64_gpus(), TOGETHER_LAYOUTS)
    assert priced.call_count == 1
    assert together == [estimate(on_64_gpus(), layout) for layout in TOGETHER_LAYOUTS]


def test_one_that_cannot_run_says_so() -> None:
    with pytest.raises(InputError, match="do not divide"):
        estimate_each(on_64_gpus(), [*TOGETHER_LAYOUTS, parse_layout("tp1 pp64 dp1 mbs1")])


def test_rows_that_ask_the_same_are_priced_together(priced: Mock) -> None:
    rows = [row for row in shipped_rows() if row.source_id == "bloom_prequel"][:40]
    found = list(predict(rows))
    assert [one.row for one in found] == rows
    assert 0 < priced.call_count < sum(one.case is not None for one in found)
    alone = [prediction for row in rows[:3] for prediction in predict([row])]
    assert [one.step_seconds for one in found[:3]] == [one.step_seconds for one in alone]
