"""A placement that grows and shrinks by units, with what every GPU holds kept beside it.

Quantities of a GPU are its K loads and the share of its memory that is filled, K + 1 numbers; hosts keep a share each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cost_models.recommender.priced import Array, Ints
from planner.recommender.problem import Placement, Problem, gpus_of, use_of

OVERFULL = 10.0
"""Price of a memory filled twice over, in objectives: more than any placement that fits can save."""
EVEN = 1e-3
"""Weight of evenness where the objective ties: far less than what the objective distinguishes."""


class Insertion(NamedTuple):
    """A way to hold a unit, with the score it would leave."""

    score: float
    row: int
    places: tuple[int, ...]


class State:
    """Rows and places of the units that are placed so far; `row` is −1 for those that are not."""

    def __init__(self, problem: Problem, scale: float) -> None:
        self.problem = problem
        self.scale = scale
        """Seconds of an objective of about the right size."""
        self.shard = np.concatenate([problem.shard_load / scale, problem.shard_full[:, None]], axis=1)
        self.everywhere = np.concatenate(
            [problem.everywhere_load / scale, problem.everywhere_full[:, None]], axis=1
        )
        self.beside = problem.beside / scale
        self.row: Ints = np.full(len(problem.unit_class), -1, dtype=np.int64)
        self.places: list[tuple[int, ...]] = [()] * len(self.row)
        self.rows = [problem.rows_of(one) for one in range(len(problem.members))]
        self.use = np.concatenate([problem.base_load / scale, problem.base_full[:, None]], axis=1)
        self.host = problem.base_host.copy()

    def load(self, placement: Placement) -> None:
        """Take over a placement of all units, its sums taken afresh."""
        self.row, self.places = placement.row.copy(), list(placement.places)
        use = use_of(self.problem, placement)
        self.use = np.concatenate([use.load / self.scale, use.full[:, None]], axis=1)
        self.host = use.host

    @property
    def placement(self) -> Placement:
        """The placement as it stands."""
        return Placement(self.row.copy(), tuple(self.places))

    @property
    def score(self) -> float:
        """The objective, what is overfull, and evenness."""
        return float(self._scores(self.use[None], self.host[None])[0])

    @property
    def stage_seconds(self) -> Array:
        """(K,) length of each stage, in `scale`."""
        lengths: Array = np.maximum(self.use[:, :-1].max(axis=0), self.beside)
        return lengths

    def _scores(self, use: Array, host: Array) -> Array:
        """(n,) scores of n uses (n, G, K + 1) and hosts (n, N)."""
        stages = np.maximum(use[..., :-1].max(axis=-2), self.beside).sum(axis=-1)
        over = np.maximum(use[..., -1] - 1, 0).sum(axis=-1) + np.maximum(host - 1, 0).sum(axis=-1)
        scores: Array = stages + OVERFULL * over + EVEN * np.square(use).mean(axis=-2).sum(axis=-1)
        return scores

    def add(self, unit: int, row: int, places: tuple[int, ...], sign: int = 1) -> None:
        """Place a unit, or with `sign` −1 take it away."""
        self.use += sign * self.everywhere[row]
        self.host += sign * self.problem.everywhere_host[row]
        for place in places:
            self.use[gpus_of(self.problem, row, place)] += sign * self.shard[row]
            node = place if self.problem.on_nodes[row] else place // self.problem.gpus_per_node
            self.host[node] += sign * self.problem.shard_host[row]
        self.row[unit], self.places[unit] = (row, places) if sign > 0 else (-1, ())

    def remove(self, unit: int) -> tuple[int, tuple[int, ...]]:
        """Take a unit away; where it was."""
        was = int(self.row[unit]), self.places[unit]
        self.add(unit, *was, sign=-1)
        return was

    def insertion(self, unit: int, only: Ints | None = None) -> Insertion:
        """The best way to hold a unit that is not placed, each shard put where it adds least in turn."""
        problem = self.problem
        rows = self.rows[problem.unit_class[unit]] if only is None else only
        use = self.use + self.everywhere[rows][:, None]
        host = self.host + problem.everywhere_host[rows][:, None]
        places: list[list[int]] = [[] for _ in range(len(rows))]
        shards = problem.shards[rows]
        for nth in range(int(shards.max(initial=0))):
            for on_nodes in (False, True):
                active = np.flatnonzero((shards > nth) & (problem.on_nodes[rows] == on_nodes))
                if len(active):
                    self._put(rows, active, use, host, places, on_nodes)
        scores = self._scores(use, host)
        best = int(np.argmin(scores))
        return Insertion(float(scores[best]), int(rows[best]), tuple(places[best]))

    def _put(
        self, rows: Ints, active: Ints, use: Array, host: Array, places: list[list[int]], on_nodes: bool
    ) -> None:
        """Put one shard of each of the active rows where it adds least; `use` and `host` change."""
        problem = self.problem
        own = rows[active]
        shard, shard_host = self.shard[own], problem.shard_host[own]
        node = problem.node_of_gpu
        now = use[active]
        if on_nodes:
            firsts = np.arange(0, problem.gpus, problem.gpus_per_node)
            now = np.maximum.reduceat(now, firsts, axis=1)
            node = np.arange(problem.nodes)
        after = now + shard[:, None]
        longest = np.maximum(use[active, :, :-1].max(axis=1), self.beside)
        stages = np.maximum(after[..., :-1], longest[:, None]).sum(axis=-1)
        over = np.maximum(after[..., -1] - 1, 0) + np.maximum(
            host[active][:, node] + shard_host[:, None] - 1, 0
        )
        even = (now * shard[:, None]).sum(axis=-1) * (2 * EVEN / problem.gpus)
        cost = stages + OVERFULL * over + even
        for nth, at in enumerate(active.tolist()):
            cost[nth, places[at]] = np.inf  # slices of a table lie apart
        chosen = np.argmin(cost, axis=1)
        for at, row, place in zip(active.tolist(), own.tolist(), chosen.tolist(), strict=True):
            use[at, gpus_of(problem, row, place)] += self.shard[row]
            host[at, node[place]] += problem.shard_host[row]
            places[at].append(place)
