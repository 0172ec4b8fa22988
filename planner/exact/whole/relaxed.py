"""Relaxed bounds of all layouts of one pipeline at once: the program's coefficients of layouts without placements.

Every path through the timeline bounds the step from below, and so does the mean of several paths. The timeline itself
finds them, with one rank slowed at a time, so no schedule needs a formula of its own. Blocks lie where they add least
to the path, in fractions, under the recompute policies for which all ranks together have memory.

Shape legend: N layouts of one pipeline, S virtual stages, P recompute policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.schedules.timeline import CriticalPath
from planner.placement.leaf import TOLERANCE, Leaf

SLOWED = 1.05
"""Factor by which one rank is slowed to find the path through it."""
HANDED_OVER = 1e-3
"""Delay between ranks while paths are sought, in forward passes."""


def paths_through(leaf: Leaf) -> list[CriticalPath]:
    """Critical paths of a pipeline with one rank slowed: every rank in turn, or three where stages are nearly equal."""
    paths = []
    for rank in range(leaf.pp) if leaf.is_plain else sorted({0, leaf.pp // 2, leaf.pp - 1}):
        forward_S = np.where(leaf.rank_of_stage == rank, SLOWED, 1.0)
        halves = (forward_S, forward_S) if leaf.splits_backward else (2 * forward_S, 0 * forward_S)
        tail_R = HANDED_OVER * np.arange(leaf.pp)[::-1]
        paths.append(leaf.timeline.critical_path(forward_S, halves[0], HANDED_OVER, tail_R, halves[1]))
    return paths


@dataclass(frozen=True)
class Relaxation:
    """Layouts of one pipeline, before placement."""

    leaves: Sequence[Leaf]

    def seconds(self, paths: Sequence[CriticalPath]) -> Array:
        """Lower bound of each layout over its placements, seconds (N,); infinite where none fits."""
        means = (paths, *((path,) for path in paths))
        longest_N: Array = np.max([self._length(mean) for mean in means], axis=0)
        updated = self._by_stage("layer_optimizer")
        if updated.ndim > 2:  # by sort: the fullest rank has as many blocks, of whatever kind
            updated = updated.min(axis=-1)
        optimizer_N = self._by_stage("rank_optimizer") + self._most_even * updated
        follows_N = self._by_stage("rank_sync").min(axis=1) + optimizer_N.min(axis=1)
        overhead_N = np.array([leaf.overhead for leaf in self.leaves])
        step_N: Array = (longest_N + follows_N + overhead_N) * (1 - TOLERANCE)
        return step_N

    @cached_property
    def _most_even(self) -> int:
        """Minimum blocks of the fullest rank."""
        return -(-self.leaves[0].num_layers // self.leaves[0].pp)

    @cached_property
    def _columns(self) -> dict[str, Array]:
        return {}

    def _by_stage(self, name: str) -> Array:
        """One column of the costs on every stage, (N, S) or (N, S, P)."""
        if name not in self._columns:
            self._columns[name] = np.stack([leaf.by_stage(name) for leaf in self.leaves])
        return self._columns[name]

    def _length(self, paths: Sequence[CriticalPath]) -> Array:
        """Minimum mean length of the paths, seconds (N,)."""
        forward_S = np.mean([path.forward_counts for path in paths], axis=0)
        backward_S = np.mean([np.minimum(path.backward_counts, path.weight_counts) for path in paths], axis=0)
        fixed_NS = forward_S * self._by_stage("stage_forward") + backward_S * self._by_stage("stage_backward")
        for name, stage in (("embedding", 0), ("head", -1)):
            ends_NS = forward_S * self._by_stage(f"{name}_forward") + backward_S * self._by_stage(
                f"{name}_backward"
            )
            fixed_NS[:, stage] += ends_NS[:, stage]
        forward = self._by_stage("layer_forward")
        block_NSP = forward_S[:, None] * (forward if forward.ndim > 2 else forward[..., None])
        block_NSP = block_NSP + backward_S[:, None] * self._by_stage("layer_backward")
        delay_N = np.mean([path.p2p_count for path in paths]) * self._by_stage("p2p")[:, 0]
        total_N: Array = fixed_NS.sum(axis=1) + delay_N + self._blocks(block_NSP)
        return total_N

    def _blocks(self, block_NSP: Array) -> Array:
        """Minimum seconds of all blocks, (N,): every stage has its fewest, the rest lie on the cheapest stage, and
        recompute is where it adds least."""
        first = self.leaves[0]
        if first.kinds is not None:  # blocks of each kind lie where they add least, under the fastest policy
            shape = (*block_NSP.shape[:2], first.kinds.number, len(first.allowed))
            least_NK = np.where(first.allowed, block_NSP.reshape(shape), np.inf).min(axis=(1, 3))
            total_N: Array = least_NK @ np.array(first.kinds.counts)
            return total_N
        blocks, low = first.num_layers, first.sizes.start
        least_NS = np.where(first.allowed, block_NSP, np.inf).min(axis=2)
        fastest_N = low * least_NS.sum(axis=1) + (blocks - low * first.num_stages) * least_NS.min(axis=1)
        more_NP = (block_NSP - least_NS[..., None]).min(axis=1)
        return self._mixed(fastest_N[:, None] / blocks + more_NP)

    def _mixed(self, price_NP: Array) -> Array:
        """Minimum seconds of all blocks, (N,), policies mixed in any fraction for which all ranks together have
        memory."""
        blocks, policies = self.leaves[0].num_layers, np.flatnonzero(self.leaves[0].allowed).tolist()
        kept_NP, room_N = self._memory
        best_N = np.full(len(self.leaves), np.inf)
        for policy in policies:
            fits_N = blocks * kept_NP[:, policy] <= room_N
            best_N = np.where(fits_N, np.minimum(best_N, blocks * price_NP[:, policy]), best_N)
        for little, much in permutations(policies, 2):
            with np.errstate(divide="ignore", invalid="ignore"):
                more_N = (room_N - blocks * kept_NP[:, little]) / (kept_NP[:, much] - kept_NP[:, little])
                mixed_N = blocks * price_NP[:, little] + more_N * (price_NP[:, much] - price_NP[:, little])
            useful_N = (kept_NP[:, much] > kept_NP[:, little]) & (more_N >= 0) & (more_N <= blocks)
            best_N = np.where(useful_N, np.minimum(best_N, mixed_N), best_N)
        return best_N

    @cached_property
    def _memory(self) -> tuple[Array, Array]:
        """Minimum bytes of a block, (N, P), and bytes free on all ranks, (N,), both for one live microbatch.

        Only where a rank has one chunk: with several it depends on the chunk how many microbatches of a block are live.
        """
        first, number = self.leaves[0], len(self.leaves)
        if not first.is_plain:
            return np.zeros((number, len(first.allowed))), np.zeros(number)
        live_R = first.memory.most_live
        besides_NR = np.stack([_bytes_besides_blocks(leaf) for leaf in self.leaves])
        limit_NR = np.stack([leaf.memory_limit for leaf in self.leaves])
        kept_NRP = self._by_stage("layer_activation") + (self._by_stage("layer_static") / live_R)[..., None]
        room_NR = (limit_NR * (1 + TOLERANCE) - besides_NR) / live_R
        return kept_NRP.min(axis=1), room_NR.sum(axis=1)


def _bytes_besides_blocks(leaf: Leaf) -> Array:
    """Bytes of each rank without its blocks, (R,), under the policy with the smallest temporary set."""
    no_blocks: Ints = np.zeros(leaf.pp, dtype=np.int64)
    policies = np.flatnonzero(leaf.allowed).tolist()
    least_R: Array = np.min([leaf.memory.besides_blocks(no_blocks, [policy]) for policy in policies], axis=0)
    return least_R
