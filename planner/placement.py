"""One layout's open question: how many blocks on each virtual stage, and which recompute policy there.

`Leaf` holds the costs of one row of `StageCosts` stage by stage and prices placements exactly: the sums of
`cost_models.stage_costs`, the ends from the schedule's own timeline.

Shape legend: `...` any batch of placements, S virtual stages (stage k on rank k mod pp as its chunk k div pp), R ranks,
C chunks of a rank, P recompute policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cost_models import schedules
from cost_models.specs.columns import Ints
from cost_models.specs.layout import SCHEDULES, Schedule
from cost_models.stage_costs import StageCosts

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

TOLERANCE = 1e-9
"""Relative: two step times closer than this are the same, as rounding in sums of a million durations allows."""


def stage_sizes(num_layers: int, pp: int, vpp: int) -> tuple[int, int]:
    """The fewest and the most blocks of one virtual stage that the search covers.

    One chunk per rank: anything that leaves every other stage a block. Several chunks: all equal, as trainers with
    interleaved schedules ask for (Narayanan et al. 2021, section 2.2).
    """
    if vpp > 1 or pp == 1:
        return num_layers // (pp * vpp), num_layers // (pp * vpp)
    return 1, num_layers - pp + 1


@dataclass(frozen=True, slots=True)
class Placement:
    """Blocks and policy index of each virtual stage."""

    layers: tuple[int, ...]
    policies: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One layout before placement; seconds and bytes."""

    costs: StageCosts
    """One row."""
    pp: int
    vpp: int
    schedule: Schedule
    microbatches: int
    num_layers: int
    allowed: Bools
    """(S, P): the policies each stage may use."""

    @classmethod
    def uniform(
        cls,
        costs: StageCosts,
        *,
        pp: int,
        vpp: int,
        schedule: int | Schedule,
        microbatches: int,
        num_layers: int,
        allowed_P: Bools,
    ) -> Leaf:
        """A leaf whose stages may all use the same policies."""
        return cls(
            costs=costs,
            pp=pp,
            vpp=vpp,
            schedule=SCHEDULES[schedule] if isinstance(schedule, int) else schedule,
            microbatches=microbatches,
            num_layers=num_layers,
            allowed=np.broadcast_to(allowed_P, (pp * vpp, len(allowed_P))),
        )

    @property
    def num_stages(self) -> int:
        """Virtual stages."""
        return self.pp * self.vpp

    @cached_property
    def sizes(self) -> range:
        """Blocks one virtual stage may hold."""
        low, high = stage_sizes(self.num_layers, self.pp, self.vpp)
        return range(low, high + 1)

    @cached_property
    def timeline(self) -> schedules.Timeline:
        """The compiled action table."""
        return schedules.compile_timeline(self._table)

    @property
    def _table(self) -> schedules.ActionTable:
        return schedules.build(self.schedule, self.pp, self.vpp, self.microbatches)

    @cached_property
    def live(self) -> tuple[Ints, ...]:
        """For each rank (K, C): live microbatches of its chunks at the moments that can be its peak."""
        return schedules.live_profiles(self._table)

    def cost(self, name: str) -> float:
        """One scalar column."""
        return float(getattr(self.costs, name)[0])

    def policy_cost(self, name: str) -> Floats:
        """(P,): one column with a value for each policy."""
        row: Floats = getattr(self.costs, name)[0]
        return row

    def at_ends(self, first: str, last: str) -> Floats:
        """(S,): one cost on the first virtual stage, another on the last, nothing between."""
        extra_S = np.zeros(self.num_stages)
        extra_S[0] += self.cost(first)
        extra_S[-1] += self.cost(last)
        return extra_S

    @cached_property
    def fixed_forward(self) -> Floats:
        """(S,): a forward pass without its blocks."""
        return self.cost("stage_forward") + self.at_ends("embedding_forward", "head_forward")

    @cached_property
    def fixed_backward(self) -> Floats:
        """(S,): a backward pass without its blocks."""
        return self.cost("stage_backward") + self.at_ends("embedding_backward", "head_backward")

    def forward(self, layers_S: Ints) -> Floats:
        """(..., S): seconds of one forward pass."""
        return self.fixed_forward + layers_S * self.cost("layer_forward")

    def backward(self, layers_S: Ints, policies_S: Ints) -> Floats:
        """(..., S): seconds of one backward pass with what it recomputes."""
        return self.fixed_backward + layers_S * self.policy_cost("layer_backward")[policies_S]

    def sum_by_rank(self, value_S: Floats) -> Floats:
        """(..., S) → (..., R): sum over the chunks of each rank."""
        total_R: Floats = value_S.reshape(*value_S.shape[:-1], self.vpp, self.pp).sum(axis=-2)
        return total_R

    def per_rank(self, name: str, layers_S: Ints) -> Floats:
        """(..., R): `sync` or `optimizer` seconds of each rank."""
        fixed_R = self.cost(f"rank_{name}") + self.sum_by_rank(
            self.at_ends(f"embedding_{name}", f"head_{name}")
        )
        return fixed_R + self.cost(f"layer_{name}") * self.sum_by_rank(layers_S.astype(np.float64))

    def step_seconds(self, layers_S: Ints, policies_S: Ints) -> Floats:
        """(...,): the exact step time."""
        ends_R = self.timeline.rank_ends(
            self.forward(layers_S), self.backward(layers_S, policies_S), self.cost("p2p")
        )
        last = (ends_R + self.per_rank("sync", layers_S)).max(axis=-1)
        step: Floats = last + self.per_rank("optimizer", layers_S).max(axis=-1) + self.cost("step_overhead")
        return step

    def busy_seconds(self, layers_S: Ints, policies_S: Ints) -> Floats:
        """(...,): a lower bound: some rank does all its work between its first and its last microbatch's way."""
        stage_S = self.forward(layers_S) + self.backward(layers_S, policies_S)
        first_R = stage_S[..., : self.pp] + 2 * self.cost("p2p")
        way_R = np.cumsum(first_R, axis=-1) - first_R
        busy = (way_R + self.microbatches * self.sum_by_rank(stage_S)).max(axis=-1)
        tail = self.per_rank("sync", layers_S)[..., 0] + self.per_rank("optimizer", layers_S).max(axis=-1)
        total: Floats = busy + tail + self.cost("step_overhead")
        return total

    def critical_path(self, layers_S: Ints, policies_S: Ints) -> schedules.CriticalPath:
        """The path, with the tail of its rank, that decides the step time of one placement."""
        return self.timeline.critical_path(
            self.forward(layers_S),
            self.backward(layers_S, policies_S),
            self.cost("p2p"),
            self.per_rank("sync", layers_S),
        )

    def rank_bytes(self, layers_S: Ints, policies_S: Ints) -> Floats:
        """(..., R): the peak of each rank, in training or in the optimizer step."""
        kept_S = layers_S * self.policy_cost("layer_activation")[policies_S]
        kept_S = kept_S + self.at_ends("embedding_activation", "head_activation")
        kept_CR = kept_S.reshape(*kept_S.shape[:-1], self.vpp, self.pp)
        live_R = np.stack(
            [
                (live_KC @ kept_CR[..., rank, None]).max(axis=(-2, -1))
                for rank, live_KC in enumerate(self.live)
            ],
            axis=-1,
        )
        working_S = self.policy_cost("working")[policies_S]
        working_R = working_S.reshape(*working_S.shape[:-1], self.vpp, self.pp).max(axis=-2)
        working_R = np.maximum(working_R, self._head_moment)
        blocks_R = self.sum_by_rank(layers_S.astype(np.float64))
        update_R = blocks_R * self.cost("layer_update")
        update_R = update_R + self.sum_by_rank(self.at_ends("embedding_update", "head_update"))
        peak: Floats = (
            self.rank_static + blocks_R * self.cost("layer_static") + np.maximum(live_R + working_R, update_R)
        )
        return peak

    @cached_property
    def rank_static(self) -> Floats:
        """(R,): bytes that are always there, without blocks."""
        return self.cost("static") + self.sum_by_rank(self.at_ends("embedding_static", "head_static"))

    @cached_property
    def _head_moment(self) -> Floats:
        head_R = np.zeros(self.pp)
        head_R[-1] = self.cost("head_moment")
        return head_R

    @property
    def memory_limit(self) -> float:
        """Bytes a rank may use."""
        return self.cost("memory_limit")

    def fits(self, layers_S: Ints, policies_S: Ints) -> Bools:
        """(...,): every rank stays within the limit."""
        within_R: Bools = self.rank_bytes(layers_S, policies_S) <= self.memory_limit
        within: Bools = np.asarray(within_R.all(axis=-1))
        return within

    def price(self, placement: Placement) -> float:
        """Step time of one placement, seconds."""
        return float(self.step_seconds(np.array(placement.layers), np.array(placement.policies)))
