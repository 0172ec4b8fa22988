"""What the search opens, level by level: no bound of any level exceeds what brute force finds below it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brute import AXES, EVERY_POLICY, Everything
from questions import base

from cost_models.axes.columns import LayoutColumns
from cost_models.pipeline.stage_costs import COLUMNS, stage_costs
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.bounds.cores import ideal_seconds, relaxed_bounds
from planner.bounds.steps import capacity_bounds
from planner.placement.leaf import TOLERANCE
from planner.placement.rank_costs import groups_of
from planner.search.candidates import UniformCandidates
from planner.space.restrictions import Restrictions
from planner.space.space import legal_space

BASES = 24


def exact_seconds(found: Everything, rows: LayoutColumns, max_memory: float) -> np.ndarray:
    """(N,) of the same layouts by brute force; infinite where nothing fits."""
    known = {tuple(row): index for index, row in enumerate(_table(found.columns))}
    own = [known[tuple(row)] for row in _table(rows)]
    each = [found.best(np.array([index]), EVERY_POLICY, max_memory)[0] for index in own]
    return np.array([seconds[0] if seconds else math.inf for seconds in each])


def _table(columns: LayoutColumns) -> list[list[int]]:
    table: list[list[int]] = np.stack([getattr(columns, axis) for axis in AXES], axis=1).tolist()
    return table


def limits_of(found: Everything, seed: int) -> list[float | None]:
    """No limit, and two that some placements just keep to."""
    rng = np.random.default_rng(seed)
    peaks = np.concatenate([own.peak for own in found.placed])
    tight = [float(np.quantile(peaks, share)) for share in (rng.random() ** 2 / 4, rng.random() ** 2 / 2)]
    return [None, *tight]


@pytest.mark.parametrize("seed", range(BASES))
def test_no_level_bounds_above_what_brute_force_finds(seed: int) -> None:
    found = base(seed)
    question = found.question
    space = legal_space(question, Restrictions())
    policies = question.training.recompute
    allowed = np.array([policy in policies for policy in RECOMPUTE_POLICIES])
    rows, every = space.all_rows(), np.arange(len(space.cores))
    core_of_row = np.repeat(every, space.sizes)
    costs = stage_costs(question, rows)
    for max_memory in limits_of(found, seed):
        exact = exact_seconds(found, rows, max_memory or math.inf) * (1 + TOLERANCE)
        ideal = ideal_seconds(space, allowed)
        relaxed = relaxed_bounds(space, every, allowed, max_memory)
        candidates = UniformCandidates(question, Restrictions(max_memory=max_memory), space)
        candidates.open_cores(every, threshold=0.0)
        limited = costs.within(max_memory)
        quick, capacity = candidates.bounds(rows, limited), np.empty(len(rows))
        for own in groups_of(rows):
            capacity[own] = capacity_bounds(candidates.group(rows, limited, own))
        assert (ideal[core_of_row] <= exact).all()
        assert (relaxed[core_of_row] <= exact).all()
        assert (quick == candidates.closed.bound).all()
        assert (quick <= capacity * (1 + TOLERANCE)).all()
        assert (capacity <= exact).all()
    assert candidates.closed.counts.layouts.sum() == len(space) == len(rows) == space.sizes.sum()


@pytest.mark.parametrize("seed", range(BASES))
def test_the_space_holds_each_layout_of_the_product_once(seed: int) -> None:
    found = base(seed)
    rows = legal_space(found.question, Restrictions()).all_rows()
    policies = sum(1 << RECOMPUTE_POLICIES.index(policy) for policy in found.question.training.recompute)
    runs = np.array([bool((own.policies & ~policies == 0).any()) for own in found.placed])
    usual = (found.columns.tp % found.columns.etp == 0) & runs
    product = sorted(_table(found.columns.rows(np.flatnonzero(usual))))
    assert sorted(_table(rows)) == product


def test_a_row_costs_the_same_whatever_is_priced_beside_it() -> None:
    for seed in range(BASES):
        found = base(seed)
        rng = np.random.default_rng(seed)
        together = stage_costs(found.question, found.columns).in_sorts
        for row in rng.choice(len(found), min(4, len(found)), replace=False).tolist():
            alone = stage_costs(found.question, found.columns.rows(np.array([row]))).in_sorts
            for name in COLUMNS:
                assert (getattr(alone, name)[0] == getattr(together, name)[row]).all(), name
