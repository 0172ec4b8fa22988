"""Program of record: an integer program that chooses among the layouts left by the bounds, and places them.

The other layouts have bounds above its optimum, so it is the optimum over all; agreement with the search is the
certificate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from cost_models.errors import RunError
from cost_models.schedules.timeline import CriticalPath
from planner.exact.counts import numbers_of
from planner.exact.ilp.cutting import minimum
from planner.exact.ilp.program import Choice, Columns, Program, pattern_columns, stage_columns
from planner.exact.ilp.solvers import SolverName, available_solver
from planner.exact.labels.paths import known_paths
from planner.exact.labels.solving import choices_in_time
from planner.placement.leaf import TOLERANCE, Leaf, Placement

Verdict = Literal["equal", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Result of the program of record."""

    solver: SolverName
    layouts: int
    """Number of layouts in the program."""
    columns: int
    objective: float
    """Optimum in seconds; a lower bound if the solver was stopped."""
    verdict: Verdict


class Survivor(NamedTuple):
    """A layout left by the bounds, with its incumbent and known paths."""

    leaf: Leaf
    placement: Placement | None
    """Best placement known; None if none is."""
    met_paths: Sequence[CriticalPath]
    """Known critical paths of pipelines of this shape."""


def solve_record(
    survivors: Sequence[Survivor],
    best_seconds: float,
    *,
    time_limit: float | None = None,
    solver: SolverName | None = None,
) -> Record:
    """Solve the program over the surviving layouts and compare its optimum with the search's `best_seconds`.

    Raises:
        RunError: they differ, so search and program cannot both be right.
    """
    name, target = solver or available_solver(), best_seconds * (1 + TOLERANCE)
    columns = [(survivor, _columns(survivor, target)) for survivor in survivors]
    fitting = [(survivor, table) for survivor, table in columns if table is not None]
    program = Program([0.0] * len(fitting), target)
    for number, (survivor, table) in enumerate(fitting):
        _add_paths(program, program.place(number, survivor.leaf, table), survivor)
    program.problem += (program.step <= 1.0), "no_worse_than_known"
    result = minimum(program, name, time_limit=time_limit)
    if result.verdict == "nothing":
        raise _disagreement("nothing as good", best_seconds)
    agrees = math.isclose(result.bound, best_seconds, rel_tol=10 * TOLERANCE)
    if result.verdict == "proven" and not agrees:
        raise _disagreement(f"{result.bound:.9g} s", best_seconds)
    return Record(
        solver=name,
        layouts=len(survivors),
        columns=sum(len(choice.x) for choice in program.choices.values()),
        objective=result.bound,
        verdict="equal" if result.verdict == "proven" else "stopped",
    )


def _columns(survivor: Survivor, target: float) -> Columns | None:
    """Columns of a layout that may meet `target` seconds; None if no step does."""
    if not survivor.leaf.is_plain:
        return pattern_columns(survivor.leaf, target)
    tables = [
        stage_columns(choices)
        for _, numbered_leaf in numbers_of(survivor.leaf, target * (1 + TOLERANCE))
        if (choices := choices_in_time(numbered_leaf, target, survivor.met_paths)) is not None
    ]
    return Columns.joined(tables) if tables else None


def _add_paths(program: Program, choice: Choice, survivor: Survivor) -> None:
    """Add the known paths of a layout as rows."""
    leaf = survivor.leaf
    paths = [*(known_paths(leaf) if leaf.is_plain else ()), *survivor.met_paths]
    if survivor.placement is not None:
        paths.append(leaf.critical_path(survivor.placement.table))
    elif not leaf.is_plain:
        blocks = choice.columns.blocks
        paths.append(leaf.critical_path(blocks[np.argmin(leaf.busy_seconds(blocks))]))
    for path in paths:
        program.step_is_no_shorter_than_path(choice, path)


def _disagreement(claim: str, best_seconds: float) -> RunError:
    message = (
        f"the integer program finds {claim} where the search finds {best_seconds:.9g} s: one of them is wrong"
    )
    return RunError(message, hint="please report the question")
