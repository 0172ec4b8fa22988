"""Placements to start from: units by size, largest first, each where it adds least (longest processing time first)."""

from __future__ import annotations

import numpy as np

from cost_models.recommender.priced import Array, Ints
from planner.recommender.problem import Placement, Problem
from planner.recommender.state import State


def greedy(problem: Problem, scale: float) -> Placement:
    """Each unit in turn, in the row and the places that add least."""
    state = State(problem, scale)
    for unit in np.argsort(-_sizes(state)[problem.unit_class], kind="stable").tolist():
        best = state.insertion(unit)
        state.add(unit, best.row, best.places)
    return state.placement


def placed(problem: Problem, scale: float, row_counts: Ints) -> Placement:
    """Units in rows as often as `row_counts` (R,) says, largest shards first, each shard where it adds least."""
    state = State(problem, scale)
    row_of_unit = np.concatenate(
        [np.repeat(state.rows[one], row_counts[state.rows[one]]) for one in range(len(problem.members))]
        or [np.zeros(0, dtype=np.int64)]
    )
    for unit in np.argsort(-_row_sizes(state)[row_of_unit], kind="stable").tolist():
        best = state.insertion(unit, only=row_of_unit[unit : unit + 1])
        state.add(unit, best.row, best.places)
    return state.placement


def _row_sizes(state: State) -> Array:
    """(R,) what a shard of each row takes of a GPU; rows without shards come first, as they load all GPUs alike."""
    sizes = state.shard.max(axis=1) + 1e-3 * state.shard.sum(axis=1)
    whole: Array = np.where(state.problem.shards > 0, sizes, np.inf)
    return whole


def _sizes(state: State) -> Array:
    """(C,) least that a unit of each class takes of all GPUs together."""
    problem = state.problem
    total = state.everywhere.sum(axis=1) * problem.gpus
    total = total + (state.shard.sum(axis=1) * problem.shards * problem.span)
    return np.array([total[rows].min() for rows in state.rows])
