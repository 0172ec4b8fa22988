"""A layout before placement where scenarios are weighed: bounds at mean costs, prices in every scenario.

Shape legend: K scenarios; the others as in `planner.placement.leaf`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts
from cost_models.risk import Risk, slowest, weigh
from cost_models.schedules.timeline import CriticalPath
from planner.placement.leaf import Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioPaths:
    """Critical paths in several scenarios: the mean of their lengths plus optimizer and overhead bounds every weighed
    step."""

    paths: tuple[tuple[int, CriticalPath, int], ...]
    """(scenario, path, the rank with the longest optimizer step)"""


@dataclass(frozen=True, kw_only=True)
class WeighedLeaf(Leaf):
    """Leaf with costs in every scenario; `costs` (`cost_models.pipeline.under_scenarios`) bound every placement."""

    scenarios: StageCosts
    """Costs in every scenario, (K,); only seconds differ."""
    risk: Risk

    @classmethod
    def of(cls, leaf: Leaf, scenarios: StageCosts, risk: Risk) -> WeighedLeaf:
        """Leaf at mean costs, joined by its costs in every scenario."""
        return cls(**_leaf_fields(leaf), scenarios=scenarios.in_sorts, risk=risk)

    @cached_property
    def scenario_leaves(self) -> tuple[Leaf, ...]:
        """The leaf in every scenario, (K,); bytes do not differ between them."""
        return tuple(
            Leaf(**_leaf_fields(self) | {"costs": self.scenarios.rows(slice(at, at + 1))})
            for at in range(len(self.scenarios))
        )

    @cached_property
    def key(self) -> bytes:
        columns = (getattr(self.scenarios, name) for name in COLUMNS)
        mean: bytes = replace(self.scenario_leaves[0], costs=self.costs).key
        return mean + b"".join(np.ascontiguousarray(column).tobytes() for column in columns)

    def step_seconds(self, blocks_SP: Ints) -> Array:
        """Weighed step seconds over all scenarios, (...,)."""
        return weigh(self._steps(blocks_SP), self.risk)

    def backward_durations(self, blocks_SP: Ints) -> Array:
        """Seconds of one backward pass in every scenario, (..., K·S)."""
        return np.concatenate([leaf.backward(blocks_SP) for leaf in self.scenario_leaves], axis=-1)

    def bounding_path(self, blocks_SP: Ints) -> ScenarioPaths:
        """Critical paths of one placement in the scenarios that decide its weighed step."""
        decisive = np.flatnonzero(slowest(self._steps(blocks_SP), self.risk)).tolist()
        leaves = [(at, self.scenario_leaves[at]) for at in decisive]
        return ScenarioPaths(
            paths=tuple(
                (at, leaf.critical_path(blocks_SP), int(leaf.once_a_step("optimizer", blocks_SP).argmax()))
                for at, leaf in leaves
            )
        )

    def _steps(self, blocks_SP: Ints) -> Array:
        """Step seconds in every scenario, (K, ...)."""
        return self.step_seconds_under(self.scenarios, blocks_SP)


def _leaf_fields(leaf: Leaf) -> dict[str, Any]:
    return {field.name: getattr(leaf, field.name) for field in fields(Leaf)}
