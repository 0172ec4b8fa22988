"""Placements as they are built and changed: loads kept up to date, the best place of one unit, and the greedy start.

Units are placed by size, largest first, each where it adds least (longest processing time first).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Ints
from planner.recommender.search.problem import Placement, Problem, gpus_of, use_of

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
        self.shard = np.concatenate([problem.shard_load / scale, problem.shard_full], axis=1)
        self.everywhere = np.concatenate([problem.everywhere_load / scale, problem.everywhere_full], axis=1)
        self.loads = slice(problem.base_load.shape[1])
        """Which numbers of a GPU are its loads."""
        self.moments = slice(problem.base_load.shape[1], None)
        """Which are shares of its memory."""
        self.beside = problem.beside / scale
        self.node_of_gpu = problem.node_of_gpu
        self.first_gpus: Ints = np.arange(0, problem.gpus, problem.gpus_per_node)
        self.hosts = bool(
            problem.shard_host.any() or problem.everywhere_host.any() or problem.base_host.any()
        )
        """Whether anything lies in host memory."""
        self.row: Ints = np.full(len(problem.unit_class), -1, dtype=np.int64)
        self.places: list[tuple[int, ...]] = [()] * len(self.row)
        self.rows = [problem.rows_of(one) for one in range(len(problem.members))]
        self.use = np.concatenate([problem.base_load / scale, problem.base_full], axis=1)
        self.host = problem.base_host.copy()

    def load(self, placement: Placement) -> None:
        """Take over a placement of all units, its sums taken afresh."""
        self.row, self.places = placement.row.copy(), list(placement.places)
        use = use_of(self.problem, placement)
        self.use = np.concatenate([use.load / self.scale, use.full], axis=1)
        self.host = use.host

    def keep_to(self, rows: Ints) -> None:
        """Place units in these rows alone from now on; those of a class that has none of them, in any of its own."""
        kept = [own[np.isin(own, rows)] for own in self.rows]
        self.rows = [few if len(few) else own for few, own in zip(kept, self.rows, strict=True)]

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
        lengths: Array = np.maximum(self.use[:, self.loads].max(axis=0), self.beside)
        return lengths

    @property
    def full(self) -> Array:
        """(G,) share of each GPU's memory that is filled at its fullest moment."""
        filled: Array = self.use[:, self.moments].max(axis=1)
        return filled

    def over(self, use: Array) -> Array:
        """(..., K + M) numbers of GPUs → (...) share by which their fullest moment is too full."""
        more: Array = np.maximum(use[..., self.moments].max(axis=-1) - 1, 0)
        return more

    def _scores(self, use: Array, host: Array) -> Array:
        """(n,) scores of n uses (n, G, K + M) and hosts (n, N)."""
        stages = np.maximum(use[..., self.loads].max(axis=-2), self.beside).sum(axis=-1)
        over = self.over(use).sum(axis=-1) + np.maximum(host - 1, 0).sum(axis=-1)
        scores: Array = stages + OVERFULL * over + EVEN * np.square(use).mean(axis=-2).sum(axis=-1)
        return scores

    def add(self, unit: int, row: int, places: tuple[int, ...], sign: int = 1) -> None:
        """Place a unit, or with `sign` −1 take it away."""
        self.use += sign * self.everywhere[row]
        self.host += sign * self.problem.everywhere_host[row]
        for place in places:
            self.use[gpus_of(self.problem, row, place)] += sign * self.shard[row]
            if self.hosts:
                node = place if self.problem.on_nodes[row] else place // self.problem.gpus_per_node
                self.host[node] += sign * self.problem.shard_host[row]
        self.row[unit], self.places[unit] = (row, places) if sign > 0 else (-1, ())

    def remove(self, unit: int) -> tuple[int, tuple[int, ...]]:
        """Take a unit away; returns its row and places."""
        was = int(self.row[unit]), self.places[unit]
        self.add(unit, *was, sign=-1)
        return was

    def insertion(self, unit: int, only: Ints | None = None) -> Insertion:
        """The best way to hold a unit that is not placed, each shard put where it adds least in turn."""
        problem = self.problem
        rows = self.rows[problem.unit_class[unit]] if only is None else only
        use = self.use + self.everywhere[rows][:, None]
        host = self.host + problem.everywhere_host[rows][:, None]
        shards = problem.shards[rows]
        most = int(shards.max(initial=0))
        places: Ints = np.full((len(rows), most), -1, dtype=np.int64)
        on_nodes = problem.on_nodes[rows]
        for nth in range(most):
            for nodes in (False, True):
                active = np.flatnonzero((shards > nth) & (on_nodes == nodes))
                if len(active):
                    self._put(rows[active], active, use, host, places, nth, on_nodes=nodes)
        scores = self._scores(use, host)
        best = int(np.argmin(scores))
        return Insertion(float(scores[best]), int(rows[best]), tuple(places[best, : shards[best]].tolist()))

    def _put(
        self, own: Ints, active: Ints, use: Array, host: Array, places: Ints, nth: int, *, on_nodes: bool
    ) -> None:
        """Put the nth shard of the active rows where it adds least; `use`, `host` and `places` change."""
        problem = self.problem
        shard, shard_host = self.shard[own], problem.shard_host[own]
        node = self.node_of_gpu
        now = use[active]
        if on_nodes:
            now = np.maximum.reduceat(now, self.first_gpus, axis=1)
            node = np.arange(problem.nodes)
        longest = np.maximum(use[active, :, self.loads].max(axis=1), self.beside)
        after = now + shard[:, None]
        stages = np.maximum(after[..., self.loads], longest[:, None]).sum(axis=-1)
        even = np.matmul(now, shard[..., None])[..., 0] * (2 * EVEN / problem.gpus)
        over = self.over(after)
        if self.hosts:
            over += np.maximum(host[active][:, node] + shard_host[:, None] - 1, 0)
        cost = stages + OVERFULL * over + even
        each = np.arange(len(active))
        cost[each[:, None], places[active, :nth]] = np.inf  # slices of a table lie apart
        chosen = np.argmin(cost, axis=1)
        places[active, nth] = chosen
        host[active, node[chosen]] += shard_host
        if not on_nodes:
            use[active, chosen] += shard
            return
        for at, place, loads in zip(active.tolist(), chosen.tolist(), shard, strict=True):
            use[at, place * problem.gpus_per_node : (place + 1) * problem.gpus_per_node] += loads


def greedy(problem: Problem, scale: float) -> Placement:
    """Each unit in turn, in the row and the places that add least."""
    state = State(problem, scale)
    for unit in np.argsort(-_sizes(state)[problem.unit_class], kind="stable").tolist():
        best = state.insertion(unit)
        state.add(unit, best.row, best.places)
    return state.placement


def placed(problem: Problem, scale: float, row_counts: Ints) -> Placement:
    """Units in rows as often as `row_counts` (R,) says, largest shards first, each shard where it adds least."""
    state = State(problem, scale)
    row_of_unit = np.concatenate(
        [np.repeat(state.rows[one], row_counts[state.rows[one]]) for one in range(len(problem.members))]
        or [np.zeros(0, dtype=np.int64)]
    )
    for unit in np.argsort(-_row_sizes(state)[row_of_unit], kind="stable").tolist():
        best = state.insertion(unit, only=row_of_unit[unit : unit + 1])
        state.add(unit, best.row, best.places)
    return state.placement


def _row_sizes(state: State) -> Array:
    """(R,) what a shard of each row takes of a GPU; rows without shards come first, as they load all GPUs alike."""
    sizes = state.shard.max(axis=1) + 1e-3 * state.shard.sum(axis=1)
    return np.where(state.problem.shards > 0, sizes, np.inf)


def _sizes(state: State) -> Array:
    """(C,) least that a unit of each class takes of all GPUs together."""
    problem = state.problem
    total = state.everywhere.sum(axis=1) * problem.gpus
    total = total + (state.shard.sum(axis=1) * problem.shards * problem.span)
    return np.array([total[rows].min() for rows in state.rows])
