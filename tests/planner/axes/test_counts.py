"""Boxes of counts of offloaded blocks: what they hold, how they are halved, and that their bounds hold for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from brute import Everything, everything
from effort import number
from test_offload_search import EVERY_RESIDENCY, OPEN, random_question
from weighed_brute import with_scenarios

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, Offload
from cost_models.axes.words import EVERY
from cost_models.pipeline.pricing import weighed_costs
from cost_models.pipeline.stage_costs import COLUMNS
from planner.bounds.cores import least_costs
from planner.search.candidates import UniformCandidates
from planner.space.axes import Boxes
from planner.space.space import legal_space

COMPARED = 500
"""Boxes that are compared with all that they hold, and halved, each time."""
HALVINGS = 8
BOXES = Boxes(
    low=np.array([[0, 0, 0], [1, 0, 1], [EVERY, 0, 1], [2, 0, 0], [0, EVERY, 0], [1, 0, 3]]),
    high=np.array([[0, 0, 0], [6, 0, 6], [EVERY, 0, 7], [7, 0, 0], [0, EVERY, 0], [4, 0, 6]]),
    room=np.array([7, 7, 7, 7, 7, 7]),
)
LAYOUTS = LayoutColumns.of([Layout()] * len(BOXES))


def test_layouts_are_the_combinations() -> None:
    box, _, single = BOXES.singles(LAYOUTS)
    combination = single.low
    assert BOXES.layouts.tolist() == np.bincount(box).tolist() == [1, 21, 7, 6, 1, 10]
    assert np.where(combination < EVERY, combination, 0).sum(axis=1).max() <= 7


def test_halves_hold_every_combination_once() -> None:
    left, known = BOXES, BOXES.singles(LAYOUTS)[2].low.tolist()
    found: list[list[int]] = []
    while len(left):
        single = left.is_single
        found += left.low[single].tolist()
        wide = left.rows(np.flatnonzero(~single))
        own, left = wide.halves() if len(wide) else (np.empty(0), wide)
        assert np.array_equal(np.bincount(own, left.layouts, len(wide)), wide.layouts) if len(left) else True
    assert sorted(found) == sorted(known)


def _some_that_fit(rng: np.random.Generator) -> Everything:
    """All layouts of the next question in which some fit."""
    while True:
        found = everything(random_question(rng), offload=True)
        if any((one.peak <= one.limit).any() for one in found.placed):
            return found


@pytest.mark.parametrize("risk", ["none", "mean"])
def test_no_coefficient_of_a_box_is_above_one_that_it_holds(risk: str) -> None:
    """Nor is the update of a rank's blocks, of which the device leaves those that counts name to the host."""
    base = random_question(np.random.default_rng(18))
    stack = base.stack.model_copy(update={"residencies": EVERY_RESIDENCY, "offloads_ends": True})
    mixture = {"num_experts": 4, "experts_per_token": 1, "moe_ffn_hidden_size": 128, "num_moe_layers": 4}
    for model in (base.model, base.model.model_copy(update=mixture)):
        question = with_scenarios(replace(base, model=model, stack=stack), np.random.default_rng(1), risk)
        rows = LayoutColumns.of(
            [
                Layout(dp=4, zero=zero, offload=Offload(**{part: 1}))  # type: ignore[arg-type]
                for zero, part in product(range(4), ("states", "parked", "streamed"))
            ]
        )
        boxes = Boxes.from_minimum(question, rows)
        assert not boxes.is_single.any()
        box, layouts, _ = boxes.singles(rows)
        least = least_costs(question, rows, boxes).rows(box)
        own = weighed_costs(question, layouts)
        for name in COLUMNS:
            one, other = (getattr(costs, name) for costs in (least, own))
            if name == "rank_optimizer":
                one, other = (rank + 5 * own.layer_optimizer for rank in (one, other))
            assert (one <= other + 1e-9 * np.abs(other)).all(), name


@pytest.mark.parametrize("seed", range(number(3, 40)))
def test_bounds_hold_for_all_that_a_box_holds(seed: int) -> None:
    rng = np.random.default_rng(900 + seed)
    found = _some_that_fit(rng)
    space = legal_space(found.question, OPEN)
    candidates = UniformCandidates(found.question, OPEN, space)
    candidates.open_cores(np.arange(len(space.cores)), threshold=0.0)
    names = [*("tp", "pp", "cp", "dp", "ep", "etp", "mbs", "sp", "order", "context", "zero", "shard")]
    names += ["vpp", "schedule", "offload_activations"]
    away = [f"offload_{part}" for part in ("states", "parked", "streamed")]
    counts = np.stack([getattr(found.columns, name) for name in away], axis=1)
    fastest = np.array(
        [placed.seconds[placed.peak <= placed.limit].min(initial=np.inf) for placed in found.placed]
    )
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row, key in enumerate(np.stack([getattr(found.columns, name) for name in names], axis=1).tolist()):
        rows_of.setdefault(tuple(key), []).append(row)
    compared = 0
    for _ in range(HALVINGS):
        closed = candidates.closed
        some = rng.permutation(len(closed.core))[:COMPARED]
        priced = space.rows(closed.core[some], closed.choice[some])
        keys = np.stack([getattr(priced, name) for name in names], axis=1).tolist()
        for at, key in zip(some.tolist(), keys, strict=True):
            rows = np.array(rows_of.get(tuple(key), []), dtype=np.int64)
            inside = (closed.counts.low[at, :3] <= counts[rows]) & (
                counts[rows] <= closed.counts.high[at, :3]
            )
            best = fastest[rows[inside.all(axis=1)]].min(initial=np.inf)
            assert closed.bound[at] <= best * (1 + 1e-9)
            compared += bool(np.isfinite(best))
        boxes = np.flatnonzero(~closed.counts.is_single)
        candidates.halve(rng.permutation(boxes)[:COMPARED], threshold=0.0)
    assert compared
