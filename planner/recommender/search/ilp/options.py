"""The integer program over options alone: how many units of a class are held in which way, all GPUs taken as one.

    x[r]     units held as row r                                  z[r]   most shards of row r on some GPU, at least
    T[k]     length of stage k           E[k], F, H     what copies and rows over all GPUs load and fill everywhere
    minimise Σ T[k]          (loads in units of a scale, memory in shares of its limit)

Its optimum is a lower bound: every sharding has these x, its busiest GPU loads no less than the mean, and some GPU
holds the largest shard. With a variable for every place (`places`) it is the program of record.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pulp

from cost_models.arrays import Array, Ints
from planner.recommender.search.problem import Problem

SMALL = 0.2
"""Share of a stage's least length below which a shard is too small to set it: it gets no row of its own."""
DUAL_FEASIBLE = (1, 2, 3, 4)
"""Which of Fekete and Schepers' functions bound how many large shards fit beside one another (2001)."""


def weighted(terms: Iterable[tuple[pulp.LpVariable, float]]) -> pulp.LpAffineExpression:
    """Σ coefficient · variable."""
    found: dict[pulp.LpVariable, float] = {}
    for variable, value in terms:
        if value:
            found[variable] = found.get(variable, 0.0) + value
    return pulp.LpAffineExpression(found)


class OptionsProgram:
    """The program over options; `whole` makes its variables integers, `shards` adds rows for large ones."""

    def __init__(self, problem: Problem, scale: float, *, whole: bool = True, shards: bool = True) -> None:
        self.of = problem
        self.scale = scale
        self.problem = pulp.LpProblem("sharding", pulp.LpMinimize)
        self.category = pulp.LpInteger if whole else pulp.LpContinuous
        self.shard = problem.shard_load / scale
        self.everywhere = problem.everywhere_load / scale
        self.base = problem.base_load / scale
        self.counts = problem.counts
        limits = self.counts[problem.row_class]
        self.x = [
            self.problem.add_variable(f"x_{row}", 0, int(most), self.category)
            for row, most in enumerate(limits.tolist())
        ]
        stages = range(self.shard.shape[1])
        beside = (problem.beside / scale).tolist()
        self.T = [self.problem.add_variable(f"T_{k}", lowBound=beside[k]) for k in stages]
        self.E = [self.problem.add_variable(f"E_{k}", lowBound=0) for k in stages]
        self.problem += pulp.lpSum(self.T), "seconds"
        self.every_unit_is_held()
        self.everywhere_is_the_sum()
        self.stage_is_no_shorter_than_the_mean()
        self.stage_is_no_shorter_than_what_lies_there()
        if shards:
            self.stage_is_no_shorter_than_a_shard()
        self.memory_holds_the_mean()
        self.large_shards_lie_apart()

    def sum(self, coefficients: Array) -> pulp.LpAffineExpression:
        """Σ coefficient · x over rows."""
        return weighted(zip(self.x, coefficients.tolist(), strict=True))

    def nothing_slower(self, seconds: float) -> None:
        """Σ T[k] ≤ `seconds` less the fixed part."""
        limit = (seconds - self.of.fixed) / self.scale
        self.problem += pulp.lpSum(self.T) <= limit, "no_worse_than_known"

    def every_unit_is_held(self) -> None:
        """Σ_r x[r] = units, for the rows of each class."""
        for one, count in enumerate(self.counts.tolist()):
            rows = self.of.rows_of(one).tolist()
            self.problem += pulp.lpSum(self.x[row] for row in rows) == count, f"units_{one}"

    def everywhere_is_the_sum(self) -> None:
        """E[k] = Σ_r everywhere[r, k] x[r]."""
        for k, total in enumerate(self.E):
            self.problem += self.sum(self.everywhere[:, k]) - total == 0, f"everywhere_{k}"

    def stage_is_no_shorter_than_the_mean(self) -> None:
        """T[k] ≥ mean load of a GPU."""
        mean = self.of.mean_load / self.scale
        for k, length in enumerate(self.T):
            least = self.sum(mean[:, k]) - length
            self.problem += least <= -float(self.base[:, k].mean()), f"mean_{k}"

    def stage_is_no_shorter_than_what_lies_there(self) -> None:
        """T[k] ≥ E[k] + the most that given places load a GPU with."""
        for k, (length, total) in enumerate(zip(self.T, self.E, strict=True)):
            self.problem += total - length <= -float(self.base[:, k].max()), f"there_{k}"

    def stage_is_no_shorter_than_a_shard(self) -> None:
        """T[k] ≥ E[k] + shard[r, k] z[r], z[r] ≥ shards · x[r] / places: some GPU holds so many shards of a row."""
        of = self.of
        places = np.where(of.on_nodes, of.nodes, of.gpus)
        large = (of.shards > 0)[:, None] & (self.shard > SMALL * of.least_stages / self.scale)
        least = self.base.min(axis=0)
        for one, count in enumerate(self.counts.tolist()):
            rows = of.rows_of(one)
            rows = rows[large[rows].any(axis=1)]
            if not len(rows):
                continue
            if count == 1:
                together = -(-of.shards[rows] // places[rows])
                holds = [
                    [
                        (self.x[row], times)
                        for row, times in zip(rows.tolist(), together.tolist(), strict=True)
                    ]
                ]
                which = [rows]
            else:
                holds = [[(self._most_on_a_gpu(row, int(places[row]), count), 1)] for row in rows.tolist()]
                which = [rows[at : at + 1] for at in range(len(rows))]
            for number, (held, own) in enumerate(zip(holds, which, strict=True)):
                for k in np.flatnonzero(large[own].any(axis=0)).tolist():
                    terms = [
                        (variable, times * float(self.shard[row, k]))
                        for (variable, times), row in zip(held, own.tolist(), strict=True)
                    ]
                    at_least = weighted(terms) + self.E[k] - self.T[k]
                    self.problem += at_least <= -float(least[k]), f"shard_{one}_{number}_{k}"

    def _most_on_a_gpu(self, row: int, places: int, count: int) -> pulp.LpVariable:
        """z[r]"""
        shards = int(self.of.shards[row])
        z = self.problem.add_variable(f"z_{row}", 0, -(-shards * count // places), self.category)
        self.problem += shards * self.x[row] - places * z <= 0, f"some_gpu_{row}"
        return z

    def memory_holds_the_mean(self) -> None:
        """The mean of GPUs at each moment, and of hosts, is no fuller than their limit."""
        of = self.of
        on_a_gpu = of.shard_full * (of.shards * of.span / of.gpus)[:, None]
        for m, (base, everywhere) in enumerate(zip(of.base_full.T, of.everywhere_full.T, strict=True)):
            self.problem += self.sum(on_a_gpu[:, m] + everywhere) <= 1 - float(base.mean()), f"device_{m}"
            self.problem += self.sum(everywhere) <= 1 - float(base.max()), f"device_there_{m}"
        on_a_host = of.shard_host * of.shards / of.nodes
        if (on_a_host + of.everywhere_host).any():
            self.problem += self.sum(on_a_host + of.everywhere_host) <= 1 - float(of.base_host.mean()), "host"

    def large_shards_lie_apart(self) -> None:
        """Σ_r u(size of a shard of r) x[r] ≤ G, for functions u whose sum over what fits one GPU is at most 1."""
        of = self.of
        least = np.zeros(of.base_full.shape[1])
        for one, count in enumerate(self.counts.tolist()):
            least = least + count * of.everywhere_full[of.rows_of(one)].min(axis=0)
        room = 1 - of.base_full.min(axis=0) - least
        for m in np.flatnonzero(room > 0).tolist():
            size = np.where(of.shards > 0, of.shard_full[:, m] / room[m], 0.0)
            for k in DUAL_FEASIBLE:
                share = _dual_feasible(size, k)
                if share.any():
                    row = self.sum(share * of.shards * of.span) <= of.gpus
                    self.problem += row, f"large_{m}_{k}"

    def row_counts(self) -> Ints:
        """(R,) x in the solver's solution."""
        return np.array([round(one.value() or 0.0) for one in self.x], dtype=np.int64)


def _dual_feasible(size: Array, k: int) -> Array:
    """Fekete and Schepers' u_k, floor((k + 1) x) / k; just below its steps, where rounding may decide."""
    return np.floor((k + 1) * size - 1e-6).clip(min=0) / k
