"""What the searches of a question must agree on: one layout, weighed layouts, and tight questions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
from asking import ask
from brute import (
    COUNTED,
    EVERY_POLICY,
    Everything,
    _placements,
    by_sort,
    everything,
    offloaded_by_number,
    settings_of,
    with_at_least,
)
from questions import Query, base, cluster_of, without_context

from cost_models.axes.stages import allowed_recompute
from cost_models.errors import DoesNotFitError, InfeasibleError
from cost_models.pipeline.pricing import scenarios_of, weighed_costs
from cost_models.question import Question
from cost_models.risk import RISKS, weigh
from cost_models.schedules.registry import PLAIN
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES
from cost_models.specs.hardware import Scenarios
from cost_models.specs.transformer import TransformerSpec
from planner.placement.leaf import TOLERANCE
from planner.search.branching import SearchResult
from planner.search.search import search
from planner.space.restrictions import parse_restrictions

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


def brute_force(question: Question) -> list[float]:
    """The least step time of every layout that fits, best first."""
    found = everything(question)
    return found.best(np.arange(len(found)), EVERY_POLICY, math.inf)[0]


def require_brute_force(question: Question) -> None:
    """Check that the search finds the five fastest of all placements, proved, or that none fits."""
    exact = brute_force(question)
    if not len(exact):
        with pytest.raises(DoesNotFitError):
            search(question, top=5)
        return
    result = search(question, top=5)
    assert [one.step_seconds for one in result.estimates] == pytest.approx(exact[:5], rel=10 * TOLERANCE)
    assert all(found.fits for found in result.estimates)
    proof = result.certificate
    assert (proof.gap, proof.undecided) == (0, 0)
    assert proof.bound == pytest.approx(exact[0])
    assert proof.layouts == proof.infeasible + proof.pruned + proof.solved
    assert proof.layouts - proof.infeasible >= len(exact) - proof.pruned


def require_query(query: Query) -> SearchResult | None:
    """Check that the search has brute force's answer to a query, proved; returns it, or None where nothing fits."""
    if not query.seconds:
        with pytest.raises(InfeasibleError):
            search(query.question, top=query.top, restrictions=query.restrictions)
        return None
    result = search(query.question, top=query.top, restrictions=query.restrictions)
    found = [one.compared_seconds for one in result.estimates]
    assert found == pytest.approx(query.seconds[: query.top], rel=10 * TOLERANCE)
    proof = result.certificate
    assert (proof.layouts, proof.undecided, proof.gap) == (query.layouts, 0, 0)
    assert proof.layouts == proof.infeasible + proof.pruned + proof.solved
    assert proof.bound == pytest.approx(query.seconds[0], rel=10 * TOLERANCE)
    return result


@cache
def tight(seed: int) -> Everything:
    """The whole space of six blocks on two nodes of three GPUs, where tensors on their way between stages fill much of
    the memory: long sequences, few microbatches, a small vocabulary."""
    rng = np.random.default_rng(seed)
    experts = {"num_experts": 2, "experts_per_token": 1, "moe_ffn_hidden_size": 128}
    shape: dict[str, Any] = {"name": "tight", "num_layers": 6, "num_heads": 4, "max_positions": 8192}
    shape |= {
        "hidden_size": 64 * int(rng.choice([1, 2, 4])),
        "ffn_hidden_size": 64 * int(rng.choice([1, 2, 8])),
    }
    shape |= {"vocab_size": int(rng.choice([100, 1000])), "tied_embeddings": bool(rng.integers(2))}
    model = TransformerSpec(**shape, **(experts if rng.random() < 0.5 else {}))
    policies = rng.permutation(np.array(RECOMPUTE_POLICIES))[: int(rng.choice([1, 1, 1, 2]))]
    batch, length = int(rng.choice([1, 2, 2, 4])), int(rng.choice([127, 128, 1023, 8192]))
    job = {"global_batch": batch, "sequence_length": length, "recompute": tuple(policies.tolist())}
    stack = str(rng.choice(["meshwright", "torchtitan"]))
    return everything(without_context(ask(model, cluster_of(rng, 3, 2), stack=stack, **job)))


def tight_queries(seed: int) -> list[Query]:
    """One such question, with room for the layout that needs least, for one or two more, and for none."""
    found = tight(seed)
    allowed = sum(1 << RECOMPUTE_POLICIES.index(policy) for policy in found.question.training.recompute)
    rows = np.flatnonzero(found.columns.tp % found.columns.etp == 0)
    within = [(found.placed[row].policies & ~allowed) == 0 for row in rows.tolist()]
    peaks = [found.placed[row].peak[own] for row, own in zip(rows.tolist(), within, strict=True)]
    least = np.unique([own.min() for own in peaks if len(own)])[:4]
    queries = []
    for limit in (0.999 * least[0], *(least[:-1] + least[1:]) / 2):
        seconds, layouts = found.best(rows, allowed, float(limit))
        limits = parse_restrictions((), (), max_memory=float(limit))
        told = {"seconds": seconds, "layouts": layouts}
        queries.append(Query(question=found.question, restrictions=limits, top=3, **told))
    return queries
