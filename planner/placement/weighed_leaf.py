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
from cost_models.schedules import CriticalPath
from planner.placement.leaf import Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOfEach:
    """A critical path for each of some scenarios: the mean of their lengths, each with what a step takes besides, is a
    bound of every weighed step."""

    paths: tuple[tuple[int, CriticalPath, int], ...]
    """(scenario, path, the rank with the longest optimizer step)"""


@dataclass(frozen=True, kw_only=True)
class WeighedLeaf(Leaf):
    """Its `costs` are those of `cost_models.pipeline.under_scenarios`: no placement takes less than they say."""

    scenarios: StageCosts
    """(K,) the seconds in every scenario."""
    risk: Risk

    @classmethod
    def of(cls, leaf: Leaf, scenarios: StageCosts, risk: Risk) -> WeighedLeaf:
        """A leaf at its mean costs with those of every scenario."""
        return cls(**_own(leaf), scenarios=scenarios.in_sorts, risk=risk)

    @cached_property
    def each(self) -> tuple[Leaf, ...]:
        """(K,): the leaf in every scenario; bytes are not theirs."""
        return tuple(
            Leaf(**_own(self) | {"costs": self.scenarios.rows(slice(at, at + 1))})
            for at in range(len(self.scenarios))
        )

    @cached_property
    def key(self) -> bytes:
        columns = (getattr(self.scenarios, name) for name in COLUMNS)
        mean: bytes = replace(self.each[0], costs=self.costs).key
        return mean + b"".join(np.ascontiguousarray(column).tobytes() for column in columns)

    def step_seconds(self, blocks_SP: Ints) -> Array:
        """(...,): what risk weighs of the steps in all scenarios."""
        return weigh(self._steps(blocks_SP), self.risk)

    def backward_of_each(self, blocks_SP: Ints) -> Array:
        """(..., K·S): seconds of one whole backward pass in every scenario."""
        return np.concatenate([one.backward(blocks_SP) for one in self.each], axis=-1)

    def bounding_path(self, blocks_SP: Ints) -> PathOfEach:
        """The critical path of one placement in every scenario that counts there."""
        counted = np.flatnonzero(slowest(self._steps(blocks_SP), self.risk)).tolist()
        own = [(at, self.each[at]) for at in counted]
        return PathOfEach(
            paths=tuple(
                (at, one.critical_path(blocks_SP), int(one.once_a_step("optimizer", blocks_SP).argmax()))
                for at, one in own
            )
        )

    def _steps(self, blocks_SP: Ints) -> Array:
        """(K, ...)"""
        return self.step_seconds_under(self.scenarios, blocks_SP)


def _own(leaf: Leaf) -> dict[str, Any]:
    return {field.name: getattr(leaf, field.name) for field in fields(Leaf)}
