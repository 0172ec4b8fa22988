"""Step times of many cases under many hardware profiles, as fitting and cross-validation need them.

Profiles that differ in a few constants are evaluated together: a constant is then a column, one value for each row of
layouts, which formulas of numpy operations do not tell from a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, group_by
from cost_models.axes.columns import MIN_ROWS_TO_DEDUPLICATE, LayoutColumns
from cost_models.measured.runs.cases import Case
from cost_models.pipeline.pricing import PlacedLayout, place_layout
from cost_models.pipeline.stage_costs import time_costs
from cost_models.question import Question
from cost_models.specs.hardware import HardwareProfile


class _Group(NamedTuple):
    """Cases that differ only in the layout, whose step times are computed together."""

    question: Question
    columns: LayoutColumns
    placements: tuple[PlacedLayout, ...]
    rows: list[int]
    """Index of each case among all cases."""


class StepTimes:
    """Cases prepared for repeated prediction of their step times under different hardware profiles."""

    def __init__(self, cases: Sequence[Case]) -> None:

        def shared(row: int) -> tuple[str, ...]:
            """Key of all inputs of a case except layout and hardware profile."""
            question = cases[row].question
            return tuple(map(repr, (question.model, question.cluster, question.training, question.stack)))

        self._groups, self._count = list[_Group](), len(cases)
        for rows in group_by(range(len(cases)), shared).values():
            question = cases[rows[0]].question
            placements = tuple(place_layout(cases[row].layout, question) for row in rows)
            columns = LayoutColumns.of([one.layout for one in placements])
            self._groups.append(_Group(question, columns, placements, rows))

    def seconds(self, profile: HardwareProfile) -> Array:
        """Predicted step seconds of all cases under `profile`, (N,)."""
        return np.asarray(self.under(profile, {}, 1)[0])

    def under(self, profile: HardwareProfile, constants: dict[str, Array], count: int) -> Array:
        """Predicted step seconds (K, N) of all cases under K = `count` variants of `profile`, in which the
        values (K,) in `constants` replace the profile's."""
        seconds = np.empty((count, self._count))
        rows_at_once = max(1, (MIN_ROWS_TO_DEDUPLICATE - 1) // count)
        for group in self._groups:
            cuts = range(rows_at_once, len(group.rows), rows_at_once)
            for places in np.split(np.arange(len(group.rows)), cuts):
                columns = {name: np.repeat(values, len(places)) for name, values in constants.items()}
                question = replace(group.question, hardware=profile.model_copy(update=columns))
                costs = time_costs(question, group.columns.rows(np.tile(places, count))).in_sorts
                for index, place in enumerate(places.tolist()):
                    case_costs = costs.rows(slice(index, None, len(places)))
                    placement, row = group.placements[place], group.rows[place]
                    pipeline = placement.pipeline(case_costs)
                    seconds[:, row] = pipeline.step_seconds_by_scenario(case_costs, placement.blocks)
        return seconds
