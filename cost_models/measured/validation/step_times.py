"""Step times of many cases under one profile after another, as fitting and cross-validation evaluate them.

Profiles that differ in a few constants are evaluated together: a constant is then a column, one value for each row of
layouts, which formulas of numpy operations do not tell from a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import MIN_ROWS_TO_DEDUPLICATE, LayoutColumns
from cost_models.measured.runs.cases import Case
from cost_models.pipeline.pricing import PlacedLayout, place_layout
from cost_models.pipeline.stage_costs import time_costs
from cost_models.question import Question
from cost_models.specs.hardware import HardwareProfile


@dataclass(frozen=True, slots=True)
class _Group:
    """Cases that differ only in the layout, whose step times are computed together as columns."""

    question: Question
    columns: LayoutColumns
    placements: tuple[PlacedLayout, ...]
    rows: tuple[int, ...]

    def part(self, rows: slice) -> _Group:
        """Group restricted to the cases at positions `rows`."""
        return _Group(self.question, self.columns.rows(rows), self.placements[rows], self.rows[rows])

    def select(self, place_of: Mapping[int, int]) -> _Group:
        """Group of the cases whose numbers are keys of `place_of`, renumbered to its values."""
        indices = [index for index, row in enumerate(self.rows) if row in place_of]
        return _Group(
            self.question,
            self.columns.rows(np.array(indices, dtype=np.int64)),
            tuple(self.placements[index] for index in indices),
            tuple(place_of[self.rows[index]] for index in indices),
        )


class StepTimes:
    """Cases prepared for repeated prediction of their step times under different profiles."""

    def __init__(self, cases: Sequence[Case]) -> None:
        groups: dict[tuple[str, ...], list[int]] = {}
        for index, case in enumerate(cases):
            question = case.question
            shared = (question.model, question.cluster, question.training, question.stack)
            groups.setdefault(tuple(map(repr, shared)), []).append(index)
        self._groups = tuple(_group([cases[i] for i in rows], rows) for rows in groups.values())
        self._count = len(cases)

    def of(self, rows: Sequence[int]) -> StepTimes:
        """Copy restricted to the cases with indices `rows`, in that order."""
        place_of = {row: place for place, row in enumerate(rows)}
        subset = copy(self)
        groups = (group.select(place_of) for group in self._groups)
        subset._groups = tuple(group for group in groups if group.rows)
        subset._count = len(rows)
        return subset

    def seconds(self, profile: HardwareProfile) -> Array:
        """(N,) predicted step seconds of all cases under `profile`."""
        seconds: Array = self.under(profile, {}, 1)[0]
        return seconds

    def under(self, profile: HardwareProfile, constants: dict[str, Array], count: int) -> Array:
        """(K, N) predicted step seconds under K = `count` variants of `profile`, whose `constants` (K,) by
        name replace its values."""
        seconds = np.empty((count, self._count))
        rows_at_once = max(1, (MIN_ROWS_TO_DEDUPLICATE - 1) // count)
        for group in self._groups:
            for start in range(0, len(group.rows), rows_at_once):
                part = group.part(slice(start, start + rows_at_once))
                seconds[:, part.rows] = _seconds(part, profile, constants, count)
        return seconds


def _seconds(group: _Group, profile: HardwareProfile, constants: dict[str, Array], count: int) -> Array:
    """(K, n) predicted step seconds of a group's n cases under K variants of `profile`."""
    rows = len(group.rows)
    columns = {name: np.repeat(values, rows) for name, values in constants.items()}
    question = replace(group.question, hardware=profile.model_copy(update=columns))
    costs = time_costs(question, group.columns.rows(np.tile(np.arange(rows), count))).in_sorts
    seconds = np.empty((count, rows))
    for index, placement in enumerate(group.placements):
        case_costs = costs.rows(slice(index, None, rows))
        pipeline = placement.pipeline(case_costs)
        seconds[:, index] = pipeline.step_seconds_by_scenario(case_costs, placement.blocks)
    return seconds


def _group(cases: Sequence[Case], rows: Sequence[int]) -> _Group:
    question = cases[0].question
    placements = tuple(place_layout(case.layout, question) for case in cases)
    return _Group(question, LayoutColumns.of([one.layout for one in placements]), placements, tuple(rows))
