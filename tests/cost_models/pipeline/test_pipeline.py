"""One pipeline prices an estimate, a search and several pools: the same numbers, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate, price_ranks
from cost_models.pipeline.seconds import TIME_PARTS
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, stage_costs
from cost_models.question import Question
from cost_models.specs.kinds import Kinds
from cost_models.specs.training import TrainingSpec
from planner.placement.leaf import Leaf

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
    training = TrainingSpec(global_batch=64, sequence_length=2048)
    return complete_question(
        catalog.load_model("llama3-8b"), resolve_cluster("dgx-h100", 8), training, stack="meshwright"
    )


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
def test_ranks_that_cost_the_same_are_one_row(text: str) -> None:
    """A rank axis changes nothing but what differs from rank to rank."""
    asked, layout = question(), parse_layout(text)
    ranks = price_ranks(asked, layout)
    pipeline, blocks = ranks.pipeline, ranks.placement.blocks
    rows = {name: getattr(pipeline.costs, name) for name in COLUMNS}
    repeated = {name: np.repeat(column, layout.pp, axis=0) for name, column in rows.items()}
    every = replace(pipeline, costs=StageCosts(**repeated))
    busy = [own.step_of(blocks)[2].tobytes() for own in (pipeline, every)]
    assert busy[0] == busy[1]
    for name in ("step_seconds", "rank_bytes", "forward", "backward"):
        one, each = getattr(pipeline, name)(blocks), getattr(every, name)(blocks)
        assert np.asarray(one).tobytes() == np.asarray(each).tobytes(), name


@EVERY
def test_a_batch_of_placements_is_its_placements(text: str) -> None:
    ranks = price_ranks(question(), parse_layout(text))
    pipeline, blocks = ranks.pipeline, ranks.placement.blocks
    moved = blocks.copy()
    moved[0, 0] += 1
    moved[-1, 0] = max(0, moved[-1, 0] - 1)
    for name in ("step_seconds", "rank_bytes"):
        price = getattr(pipeline, name)
        together = price(np.stack([blocks, moved]))
        np.testing.assert_array_equal(together, [price(blocks), price(moved)])


@EVERY
def test_the_parts_of_a_rank_take_as_long_as_it_is_busy(text: str) -> None:
    ranks = price_ranks(question(), parse_layout(text))
    seconds = sum(ranks.seconds[part] for part in TIME_PARTS)
    busy = ranks.pipeline.step_of(ranks.placement.blocks)[2] + ranks.pipeline.overhead
    np.testing.assert_allclose(seconds, busy, rtol=1e-12)
