"""Brute force where scenarios are weighed: the whole space priced in every scenario, then its mean or its slowest.

Where a schedule is plain, of the mixes of recompute policies with which a stage's blocks fit the search covers the one
that is fastest at mean costs; elsewhere all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from brute import (
    COUNTED,
    Everything,
    _placements,
    by_sort,
    everything,
    offloaded_by_number,
    settings_of,
    with_at_least,
)
from questions import base

from cost_models.axes.stages import allowed_recompute
from cost_models.pipeline.pricing import scenarios_of, weighed_costs
from cost_models.question import Question
from cost_models.risk import RISKS, weigh
from cost_models.schedules.registry import PLAIN
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES
from cost_models.specs.hardware import Scenarios

CONSTANTS = (
    *("gemm_efficiency", "memory_efficiency", "kernel_seconds", "host_layer_seconds", "action_host_seconds"),
    *("link_efficiency", "network_efficiency"),
)


@dataclass(frozen=True, kw_only=True)
class Weighed(Everything):
    """All layouts of a question that weighs scenarios, with all their placements."""

    each: list[Everything]
    """In every scenario."""

    def best(
        self, rows: np.ndarray, policies: int, max_memory: float, *, alike: bool = False, counts: bool = False
    ) -> tuple[list[float], int]:
        settings = settings_of(policies, alike, counts)
        found: dict[tuple[object, ...], float] = {}
        covered = 0
        for row in rows.tolist():
            own = self.placed[row]
            limit = min(own.limit, max_memory)
            covered += any(own.within(allowed).any() for allowed in settings)
            within = np.zeros(len(own.peak), dtype=np.bool_)
            for allowed in settings:
                fitting = own.within(allowed) & (own.peak <= limit)
                if allowed != COUNTED:  # whose sizes have one mix for each number
                    fitting &= self._fastest_mixes(row, fitting)
                within |= fitting
            if within.any():
                seconds = weigh(np.stack([one.placed[row].seconds for one in self.each]), self.question.risk)
                kind = tuple(one.placed[row].kind for one in self.each)
                found[kind, limit] = float(seconds[within].min())
        return sorted(found.values()), covered

    @cached_property
    def _layer_backward(self) -> np.ndarray:
        """Of every layout, as `StageCosts.layer_backward`, at mean costs."""
        return weighed_costs(self.question, self.columns).in_sorts.layer_backward

    def _fastest_mixes(self, row: int, within: np.ndarray) -> np.ndarray:
        """(K,): of the placements within, those whose mixes are the fastest at mean costs for their sizes."""
        columns, question = self.columns.rows(slice(row, row + 1)), self.question
        schedule = SCHEDULES[int(columns.schedule[0])]
        if schedule not in PLAIN:
            return within
        named = [policy in question.training.recompute for policy in RECOMPUTE_POLICIES]
        runs = [policy in allowed_recompute(schedule) for policy in RECOMPUTE_POLICIES]
        allowed = tuple(one and other for one, other in zip(named, runs, strict=True))
        shape = (schedule, int(columns.pp[0]), int(columns.vpp[0]), question.model.num_layers)
        blocks_KSP = _placements(*shape, allowed if any(allowed) else tuple(runs))
        blocks_KSP = with_at_least(blocks_KSP, *shape[:3], int(offloaded_by_number(columns)[0]))
        sorts_KSP = by_sort(blocks_KSP, question.kinds.of_block)
        backward = (sorts_KSP * self._layer_backward[row]).sum(axis=(1, 2))
        sizes, kept = blocks_KSP.sum(axis=-1), np.zeros(len(within), dtype=np.bool_)
        _, group = np.unique(sizes, axis=0, return_inverse=True)
        for one in np.unique(group[within]).tolist():
            same = within & (group == one)
            kept |= same & (backward <= backward[same].min() * (1 + 1e-12))
        return kept


def with_scenarios(question: Question, rng: np.random.Generator, risk: str) -> Question:
    """Two to six scenarios in which constants differ by a third or more."""
    count = int(rng.integers(2, 7))
    factors = {
        name: " ".join(f"{factor:.4g}" for factor in np.exp(rng.normal(0, 0.35, count)).tolist())
        for name in CONSTANTS
    }
    told = Scenarios(factors=factors, unexplained=0.05)
    hardware = question.hardware.model_copy(update={"scenarios": told})
    return replace(question, hardware=hardware, risk=risk)  # type: ignore[arg-type]


@cache
def weighed_base(seed: int) -> Weighed:
    """The random question of a seed with some scenarios, and a risk."""
    plain, rng = base(seed), np.random.default_rng(seed + 1_000_000)
    question = with_scenarios(plain.question, rng, RISKS[1 + seed % 2])
    each = [everything(one) for one in scenarios_of(question)]
    return Weighed(question=question, columns=plain.columns, placed=plain.placed, each=each)
