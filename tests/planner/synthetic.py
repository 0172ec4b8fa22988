"""Random but plausible stage costs and small leaves: what the property tests of the planner draw from."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from cost_models.pipeline import stage_costs
from cost_models.pipeline.stage_costs import COLUMNS, OF_BLOCKS, StageCosts
from cost_models.schedules.registry import PLAIN, SPLIT_BACKWARD, schedule_named
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.kinds import Kinds
from planner.placement.leaf import Leaf, leaf_arguments

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
    up_to = {
        "embedding_forward": 0.5,
        "embedding_backward": 0.5,
        "head_forward": 1.5,
        "p2p": 0.3,
        "head_moment": 1.0,
    }
    up_to |= {"stage_forward": 0.2, "stage_backward": 0.2, "layer_sync": 0.5, "layer_optimizer": 0.3}
    up_to |= dict.fromkeys(("embedding_sync", "head_sync", "rank_sync", "step_overhead", "static"), 1)
    up_to |= dict.fromkeys(
        ("embedding_optimizer", "head_optimizer", "rank_optimizer", "head_activation"), 0.5
    )
    up_to |= dict.fromkeys(("layer_update", "embedding_update", "head_update", "rank_update"), 0.3)
    up_to |= {"embedding_static": 1, "head_static": 1, "embedding_activation": 0.2}
    return StageCosts(
        layer_forward=forward,
        layer_backward=backward,
        layer_weight=plain * 0.45,
        head_backward=head_backward,
        head_weight=head_backward * 0.3,
        stage_weight=np.full(rows, 0.05),
        layer_static=blocks(0.2, 1.0),
        layer_activation=activation,
        layer_pending=full * 0.8,
        head_pending=np.full(rows, 0.2),
        working=working,
        memory_limit=rng.uniform(6, 24, rows) / tightness,
        **{name: draw(0, most) for name, most in up_to.items()},
    )


SHAPES = [
    ("1f1b", 1, 1, 3, 4), ("1f1b", 2, 1, 2, 5), ("1f1b", 2, 1, 5, 6), ("1f1b", 3, 1, 3, 6),
    ("1f1b", 3, 1, 8, 7), ("1f1b", 4, 1, 6, 6), ("gpipe", 2, 1, 1, 5), ("gpipe", 3, 1, 4, 6),
    ("interleaved", 2, 2, 4, 4), ("interleaved", 2, 2, 2, 8), ("interleaved", 2, 4, 3, 8),
    ("interleaved", 3, 2, 6, 6), ("interleaved", 2, 3, 4, 12), ("interleaved", 2, 2, 4, 7),
    ("interleaved", 3, 2, 6, 10), ("interleaved", 2, 2, 4, 3), ("interleaved", 3, 2, 6, 4),
    ("zero-bubble", 2, 1, 4, 5), ("zero-bubble", 3, 1, 6, 7), ("zero-bubble", 2, 2, 4, 7),
    ("zbv", 2, 2, 5, 7), ("zbv", 3, 2, 6, 6), ("dualpipev", 2, 2, 6, 8),
]  # fmt: skip
"""(schedule, pp, vpp, microbatches, blocks)."""


PLAIN_SHAPES = [shape for shape in SHAPES if shape[0] in PLAIN]


def random_leaf(seed: int, *, plain: bool = False, several: bool = False, counted: bool = False) -> Leaf:
    """One small leaf of any schedule, a few policies, any tightness of memory; `several`: several kinds of blocks;
    `uses_full_counts`: one number of blocks in full."""
    rng = np.random.default_rng(seed)
    shapes = PLAIN_SHAPES if plain else SHAPES
    schedule, pp, vpp, microbatches, layers = shapes[rng.integers(len(shapes))]
    allowed = rng.random(POLICIES) < 0.7
    allowed[rng.integers(POLICIES)] = True
    if schedule in SPLIT_BACKWARD:
        allowed = np.array([True, False, False])
    counted = counted and schedule not in SPLIT_BACKWARD
    if counted:
        allowed = np.array([True, False, True])
    costs, kinds = random_costs(rng, tightness=rng.uniform(0.5, 2.5)), Kinds((0,) * layers)
    if several:
        kinds = random_kinds(rng, layers)
        costs = costs_by_kind(costs, [random_costs(rng) for _ in kinds.counts], kinds)
    return Leaf(
        **leaf_arguments(costs, kinds),
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        microbatches=microbatches,
        allowed=allowed,
        uses_full_counts=counted,
    )


def random_kinds(rng: np.random.Generator, layers: int) -> Kinds:
    """First blocks of another kind, kinds in turns, or any of three in any order."""
    first = int(rng.integers(1, layers))
    drawn: list[int] = rng.integers(0, 3, layers).tolist()
    numbers: dict[int, int] = {}
    return [
        Kinds((0,) * first + (1,) * (layers - first)),
        Kinds(tuple(block % 2 for block in range(layers))),
        Kinds(tuple(numbers.setdefault(one, len(numbers)) for one in drawn)),
    ][int(rng.integers(3))]


def costs_by_kind(costs: StageCosts, each: list[StageCosts], kinds: Kinds) -> StageCosts:
    """The costs with the blocks of some others, one for each kind, and with the mean block."""
    if kinds.number == 1:
        return costs
    common = {name: getattr(costs, name) for name in COLUMNS}
    blocks = [{name: getattr(one, name) for name in OF_BLOCKS} for one in each]
    return stage_costs.costs_by_kind([common | own for own in blocks], kinds, len(costs))


def _stage_options(blocks: int, allowed: np.ndarray) -> list[tuple[int, ...]]:
    """Every way to have so many blocks under the allowed policies."""
    return [
        counts
        for counts in product(range(blocks + 1), repeat=POLICIES)
        if sum(counts) == blocks
        and not any(count and not fine for count, fine in zip(counts, allowed, strict=True))
    ]


def _first_blocks(sizes: tuple[int, ...], full: int, selective: int, weakest: int) -> list[tuple[int, ...]]:
    """One rank's chunks when its first blocks are recomputed in full, the next ones selectively."""
    order = [2] * full + [1] * selective + [weakest] * sum(sizes)
    chunks, start = [], 0
    for size in sizes:
        own = order[start : start + size]
        chunks.append(tuple(own.count(policy) for policy in range(POLICIES)))
        start += size
    return chunks


def every_placement(leaf: Leaf) -> np.ndarray:
    """(K, S, P): all placements the search covers, whether or not they fit."""
    if leaf.uses_full_counts:
        usual = every_placement(replace(leaf, uses_full_counts=False, allowed=np.array([True, False, False])))
        layers = np.unique(usual.sum(axis=-1), axis=0).tolist()
        return np.array([_in_full(s, number) for s in layers for number in range(max(s) + 1)])
    if leaf.is_plain:
        sizes = [s for s in product(leaf.sizes, repeat=leaf.pp) if sum(s) == leaf.num_layers]
        return np.array([p for s in sizes for p in product(*(_stage_options(n, leaf.allowed) for n in s))])
    stages_RC = schedule_named(leaf.schedule).stages_of_rank(leaf.pp, leaf.vpp).tolist()
    size, larger = divmod(leaf.num_layers, leaf.num_stages)
    smaller = (leaf.num_stages - larger) % leaf.num_stages
    weakest = int(np.flatnonzero(leaf.allowed)[0])
    strong = [p for p in np.flatnonzero(leaf.allowed).tolist() if p != weakest]
    found = []
    for first in range(smaller + 1):
        ends = (first, smaller - first)
        own = [
            size + bool(larger) - (s < ends[0] or s >= leaf.num_stages - ends[1])
            for s in range(leaf.num_stages)
        ]
        if 0 in own[1:-1]:
            continue
        most = max(sum(own[s] for s in stages) for stages in stages_RC)
        for full, selective in product(range(most + 1), repeat=2):
            if full + selective > most or (full and 2 not in strong) or (selective and 1 not in strong):
                continue
            placed: list[tuple[int, ...]] = [()] * leaf.num_stages
            for stages in stages_RC:
                chunks = _first_blocks(tuple(own[s] for s in stages), full, selective, weakest)
                for stage, chunk in zip(stages, chunks, strict=True):
                    placed[stage] = chunk
            found.append(placed)
    return np.array(found)


def _in_full(sizes: list[int], number: int) -> list[tuple[int, ...]]:
    """Stages whose first blocks are recomputed in full, so many of each."""
    full = [min(size, number) for size in sizes]
    return [(size - own, 0, own) for size, own in zip(sizes, full, strict=True)]


def exhaustive_best(leaf: Leaf) -> float:
    """Least step time of all placements that fit; infinite where none does."""
    blocks_KSP = leaf.kinds.in_sorts(every_placement(leaf))
    fitting = blocks_KSP[leaf.fits(blocks_KSP)]
    return float(leaf.step_seconds(fitting).min()) if len(fitting) else float("inf")
