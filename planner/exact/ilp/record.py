"""The program of record: an integer program that chooses among the layouts left by the bounds, and places them.

Its optimum over these layouts is the optimum over all, since the others have bounds above it; that it is what the
search found is the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from cost_models.errors import RunError
from cost_models.schedules import CriticalPath
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
    """The optimum of the program of record."""

    solver: SolverName
    layouts: int
    """Number of layouts it chose among."""
    columns: int
    objective: float
    """Its optimum in seconds; a lower bound where it was stopped."""
    verdict: Verdict


class Survivor(NamedTuple):
    """A layout left by the bounds, with what the search knows of it."""

    leaf: Leaf
    placement: Placement | None
    """The best placement known; None where none is."""
    met_paths: Sequence[CriticalPath]
    """Critical paths met in pipelines of this shape."""


def settle(
    survivors: Sequence[Survivor],
    best_seconds: float,
    *,
    time_limit: float | None = None,
    solver: SolverName | None = None,
) -> Record:
    """Solve the program over the surviving layouts and compare its optimum with the search's `best_seconds`.

    Raises:
        RunError: it is another one, so that search and program cannot both be right.
    """
    name, target = solver or available_solver(), best_seconds * (1 + TOLERANCE)
    columns = [(one, _columns(one, target)) for one in survivors]
    kept = [(one, own) for one, own in columns if own is not None]
    program = Program([0.0] * len(kept), target)
    for number, (one, own) in enumerate(kept):
        _tell(program, program.place(number, one.leaf, own), one)
    program.problem += (program.step <= 1.0), "no_worse_than_known"
    found = minimum(program, name, time_limit=time_limit)
    if found.verdict == "nothing":
        raise _disagreement("nothing as good", best_seconds)
    agrees = math.isclose(found.bound, best_seconds, rel_tol=10 * TOLERANCE)
    if found.verdict == "proven" and not agrees:
        raise _disagreement(f"{found.bound:.9g} s", best_seconds)
    return Record(
        solver=name,
        layouts=len(survivors),
        columns=sum(len(one.x) for one in program.choices.values()),
        objective=found.bound,
        verdict="equal" if found.verdict == "proven" else "stopped",
    )


def _columns(one: Survivor, target: float) -> Columns | None:
    """Columns of a layout that may meet `target` seconds; None where no step does."""
    if not one.leaf.is_plain:
        return pattern_columns(one.leaf, target)
    found = [
        stage_columns(choices)
        for _, own in numbers_of(one.leaf, target * (1 + TOLERANCE))
        if (choices := choices_in_time(own, target, one.met_paths)) is not None
    ]
    return Columns.joined(found) if found else None


def _tell(program: Program, choice: Choice, one: Survivor) -> None:
    """Add the known paths of a layout as rows."""
    leaf = one.leaf
    paths = [*(known_paths(leaf) if leaf.is_plain else ()), *one.met_paths]
    if one.placement is not None:
        paths.append(leaf.critical_path(one.placement.table))
    elif not leaf.is_plain:
        blocks = choice.columns.blocks
        paths.append(leaf.critical_path(blocks[np.argmin(leaf.busy_seconds(blocks))]))
    for path in paths:
        program.step_is_no_shorter_than_path(choice, path)


def _disagreement(found: str, best_seconds: float) -> RunError:
    what = (
        f"the integer program finds {found} where the search finds {best_seconds:.9g} s: one of them is wrong"
    )
    return RunError(what, hint="please report the question")
