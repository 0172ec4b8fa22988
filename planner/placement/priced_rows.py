"""Layouts of one schedule that a bound takes together: their costs, and what is the same for all of them.

Shape legend: N layouts, R ranks, P recompute policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models.axes.columns import Ints
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.schedules import PLAIN, SPLIT_BACKWARD, V_SHAPED, PipelineSchedule, schedule_named
from cost_models.specs.choices import Schedule
from planner.placement.leaf import Bools, Floats


@dataclass(frozen=True, kw_only=True)
class PricedRows:
    """What `Group`, `ChunkRows` and `RankGroup` have in common; their shapes differ."""

    costs: StageCosts
    """N rows, or N · R, a layout's ranks together."""
    schedule: Schedule
    microbatches: Ints
    """(N,)"""
    num_layers: int
    allowed: Bools
    """(P,)"""

    def __len__(self) -> int:
        return len(self.microbatches)

    @property
    def known(self) -> PipelineSchedule:
        """What is known of the schedule."""
        return schedule_named(self.schedule)

    @property
    def is_plain(self) -> bool:
        """Whether every number of blocks on every stage is covered."""
        return self.schedule in PLAIN

    @property
    def splits_backward(self) -> bool:
        """Weight halves of backward passes run at other times than input halves."""
        return self.schedule in SPLIT_BACKWARD

    @property
    def is_v_shaped(self) -> bool:
        """The first rank has the last stage too."""
        return self.schedule in V_SHAPED

    @cached_property
    def block_seconds(self) -> Floats:
        """(N, P), or (N · R, P): forward plus backward of one block; infinite under a policy that may not be used."""
        seconds = self.costs.layer_forward[:, None] + self.costs.layer_backward
        return np.where(self.allowed, seconds, np.inf)
