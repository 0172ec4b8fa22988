"""The answer of a search of shardings: where every table lies, what each GPU does, and the certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from cost_models.base import Spec
from cost_models.recommender.priced import PricedOptions
from cost_models.specs.recommender.sharding import Placed, Sharding
from planner.recommender.loads import Loads, loads_of
from planner.recommender.problem import Objective, Placement, Problem

Method = Literal["flat", "two levels"]
"""`flat`: options and places in one program; `two levels`: bound over options, places by local search."""


class ShardingCertificate(Spec):
    """The proof that no other covered sharding is better."""

    objective: Objective
    space: str
    """What it was proved over, in words."""
    method: Method
    solver: str
    tables: int
    distinct: int
    """Tables that prices and restrictions tell apart."""
    options: int
    """Ways to hold them, over distinct tables."""
    value: float
    """The objective of the sharding, seconds."""
    bound: float
    """Proven lower bound on the objective of any covered sharding, seconds."""
    gap: float
    """(value − bound) / value; 0 proves that the sharding is optimal."""
    greedy: float | None
    """The objective of the greedy sharding, seconds; None where it does not fit."""
    undecided: bool = False
    """Whether time ran out, or the user ended the search, before it was done."""
    seconds: float = Field(default=0.0, exclude=True)
    """Search time. Not part of a plan file, so that the same query gives the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingAnswer:
    """The best sharding found, with its loads in the given prices."""

    sharding: Sharding
    rows: tuple[int, ...]
    """(T,) row of the prices that each table takes."""
    priced: PricedOptions
    """The prices, with the memories that restrictions leave."""
    loads: Loads
    certificate: ShardingCertificate
    interrupted: bool = False
    """True where Ctrl-C ended the search; the answer is what was found by then."""

    @property
    def step_seconds(self) -> float:
        """Seconds of a step: stages one after another, each as long as its busiest GPU."""
        return self.loads.step_seconds

    @property
    def torchrec_seconds(self) -> float:
        """TorchRec's objective: the most that any GPU does, its stages added up."""
        return self.loads.torchrec_seconds


def sharding_of(problem: Problem, placement: Placement) -> tuple[Sharding, tuple[int, ...]]:
    """The sharding of a placement, and the row of the prices that each table takes."""
    rows = np.full(int(problem.priced.counts.sum()), -1, dtype=np.int64)
    places: dict[int, tuple[int, ...]] = {}
    for table, (row, at) in problem.given.items():
        rows[table], places[table] = row, at
    for unit, row, at in zip(problem.units, placement.row.tolist(), placement.places, strict=True):
        for table, pick in zip(unit, problem.picks[row], strict=True):
            rows[table], places[table] = pick, at
    chosen = tuple(rows.tolist())
    options = problem.priced.options
    tables = tuple(Placed(options[row], tuple(sorted(places[table]))) for table, row in enumerate(chosen))
    return Sharding(tables), chosen


def loads_by_gpu(priced: PricedOptions, sharding: Sharding, rows: tuple[int, ...]) -> Loads:
    """Loads of a sharding whose tables take these rows."""
    return loads_of(priced, rows, tuple(placed.at for placed in sharding.tables))
