"""Random but plausible stage costs and small leaves: what the property tests of the planner draw from."""

from __future__ import annotations

from itertools import product

import numpy as np

from cost_models.specs.layout import RECOMPUTE_POLICIES
from cost_models.stage_costs import StageCosts
from planner.placement import Leaf, Placement

POLICIES = len(RECOMPUTE_POLICIES)


def random_costs(rng: np.random.Generator, rows: int = 1, *, tightness: float = 1.0) -> StageCosts:
    """`rows` layouts in seconds and bytes of order one; `tightness` above 1 leaves less memory."""

    def draw(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, rows) * (rng.random(rows) < 0.8)

    def blocks(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, rows)

    forward = blocks(0.5, 1.5)
    plain = forward * blocks(1.5, 2.5)
    backward = np.stack(
        [plain, plain + forward * blocks(0.05, 0.4), plain + forward * blocks(0.7, 1.1)], axis=1
    )
    full = blocks(0.05, 0.2)
    activation = np.stack([full + blocks(0.5, 1.5), full + blocks(0.2, 0.5), full], axis=1)
    working = np.stack([draw(0, 0.2), draw(0, 0.5), draw(0, 1.0)], axis=1)
    head_backward = draw(0, 2.5)
    return StageCosts(
        layer_forward=forward,
        layer_backward=backward,
        embedding_forward=draw(0, 0.5),
        embedding_backward=draw(0, 0.5),
        head_forward=draw(0, 1.5),
        head_backward=head_backward,
        stage_forward=draw(0, 0.2),
        stage_backward=draw(0, 0.2),
        layer_weight=plain * 0.45,
        head_weight=head_backward * 0.3,
        stage_weight=np.full(rows, 0.05),
        p2p=draw(0, 0.3),
        layer_sync=draw(0, 0.5),
        embedding_sync=draw(0, 1),
        head_sync=draw(0, 1),
        rank_sync=draw(0, 1),
        layer_optimizer=draw(0, 0.3),
        embedding_optimizer=draw(0, 0.5),
        head_optimizer=draw(0, 0.5),
        rank_optimizer=draw(0, 0.5),
        step_overhead=draw(0, 1),
        static=draw(0, 1),
        layer_static=blocks(0.2, 1.0),
        layer_activation=activation,
        layer_pending=full * 0.8,
        layer_update=draw(0, 0.3),
        embedding_static=draw(0, 1),
        embedding_activation=draw(0, 0.2),
        embedding_update=draw(0, 0.3),
        head_static=draw(0, 1),
        head_activation=draw(0, 0.5),
        head_pending=np.full(rows, 0.2),
        head_update=draw(0, 0.3),
        working=working,
        head_moment=draw(0, 1.0),
        memory_limit=rng.uniform(6, 24, rows) / tightness,
    )


SHAPES = [
    ("1f1b", 1, 1, 3, 4),
    ("1f1b", 2, 1, 2, 5),
    ("1f1b", 2, 1, 5, 6),
    ("1f1b", 3, 1, 3, 6),
    ("1f1b", 3, 1, 8, 7),
    ("1f1b", 4, 1, 6, 6),
    ("gpipe", 2, 1, 1, 5),
    ("gpipe", 3, 1, 4, 6),
    ("interleaved", 2, 2, 4, 4),
    ("interleaved", 2, 2, 2, 8),
    ("interleaved", 2, 4, 3, 8),
    ("interleaved", 3, 2, 6, 6),
    ("interleaved", 2, 3, 4, 12),
]
"""(schedule, pp, vpp, microbatches, blocks)."""


def random_leaf(seed: int) -> Leaf:
    """One small leaf of any schedule, a few policies, any tightness of memory."""
    rng = np.random.default_rng(seed)
    schedule, pp, vpp, microbatches, layers = SHAPES[rng.integers(len(SHAPES))]
    allowed = rng.random(POLICIES) < 0.7
    allowed[rng.integers(POLICIES)] = True
    return Leaf.uniform(
        random_costs(rng, tightness=rng.uniform(0.5, 2.5)),
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        microbatches=microbatches,
        num_layers=layers,
        allowed_P=allowed,
    )


def every_placement(leaf: Leaf) -> list[Placement]:
    """All sizes and policies the search covers, whether or not they fit."""
    policies = [np.flatnonzero(leaf.allowed[stage]).tolist() for stage in range(leaf.num_stages)]
    if leaf.vpp == 1:
        sizes = [s for s in product(leaf.sizes, repeat=leaf.pp) if sum(s) == leaf.num_layers]
        return [Placement(tuple(s), tuple(p)) for s in sizes for p in product(*policies)]
    equal = (leaf.num_layers // leaf.num_stages,) * leaf.num_stages
    patterns = [p for p in product(policies[0], repeat=leaf.vpp) if list(p) == sorted(p, reverse=True)]
    return [Placement(equal, tuple(np.repeat(p, leaf.pp).tolist())) for p in patterns]


def exhaustive_best(leaf: Leaf) -> float:
    """Least step time of all placements that fit; infinite where none does."""
    placements = every_placement(leaf)
    layers_KS = np.array([placement.layers for placement in placements])
    policies_KS = np.array([placement.policies for placement in placements])
    fits_K = leaf.fits(layers_KS, policies_KS)
    if not fits_K.any():
        return float("inf")
    return float(leaf.step_seconds(layers_KS[fits_K], policies_KS[fits_K]).min())
