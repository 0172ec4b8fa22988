"""Step times of many cases under one profile after another, as fitting and cross-validation evaluate them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.evidence.rows.cases import Case
from cost_models.pipeline.costs import time_costs
from cost_models.pipeline.placed import Placed, place
from cost_models.question import Question
from cost_models.specs.hardware import HardwareProfile

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Group:
    """Cases that share everything but the layout, priced as columns of one evaluation."""

    question: Question
    columns: LayoutColumns
    placed: tuple[Placed, ...]
    rows: tuple[int, ...]


class StepTimes:
    """Cases prepared for repeated evaluation."""

    def __init__(self, cases: Sequence[Case]) -> None:
        together: dict[tuple[str, ...], list[int]] = {}
        for index, case in enumerate(cases):
            question = case.question
            shared = (question.model, question.cluster, question.training, question.stack)
            together.setdefault(tuple(map(repr, shared)), []).append(index)
        self._groups = tuple(_group([cases[i] for i in rows], rows) for rows in together.values())
        self._count = len(cases)

    def seconds(self, profile: HardwareProfile) -> Array:
        """(N,) predicted step seconds of the cases, all under `profile`."""
        seconds = np.empty(self._count)
        for group in self._groups:
            costs = time_costs(replace(group.question, hardware=profile), group.columns)
            for position, (row, placed) in enumerate(zip(group.rows, group.placed, strict=True)):
                own = costs.rows(slice(position, position + 1))
                seconds[row] = placed.pipeline(own).step_seconds(placed.blocks)
        return seconds


def _group(cases: Sequence[Case], rows: Sequence[int]) -> _Group:
    question = cases[0].question
    placed = tuple(place(case.layout, question) for case in cases)
    return _Group(question, LayoutColumns.of([one.layout for one in placed]), placed, tuple(rows))
