"""Integer program of a sharding search: over options alone, or over options and places (the program of
record).

    x[r]     units held as row r                                  z[r]   most shards of row r on some GPU, at least
    T[k]     length of stage k           E[k], F, H     loads and memory of copies and of rows over all GPUs, everywhere
    y[r, p]  shards of row r at place p: a GPU, or for rows over nodes a node (in the program of record)
    minimise Σ T[k]          (loads in the problem's unit, memory in shares of its limit)

The optimum over options is a lower bound: every sharding has these x, its busiest GPU loads no less than the mean, and
some GPU holds the largest shard. With places, T[k] ≥ load of stage k on every GPU, and memories of every GPU and node
hold their shards. With `ordered`, GPUs that nothing tells apart stand in the order of their loads. That helps a solver
that does not see symmetry by itself, CBC, and hinders one that does, HiGHS.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pulp

from cost_models.arrays import Array, Ints
from planner.exact.solvers import weighted_sum
from planner.recommender.problem import Placement, Places, Problem

SMALL = 0.2
"""Share of a stage's minimum length below which a shard is too small to determine the length: it gets no row
of its own."""
DUAL_FEASIBLE = (1, 2, 3, 4)
"""Numbers k of Fekete and Schepers' functions (2001), which bound the large shards that fit together."""


class OptionsProgram:
    """Integer program over sharding options without places, with objective at most `limit` in the problem's
    unit. With `shards`, large shards lengthen the stages of some GPU; `integer=False` relaxes the program."""

    def __init__(
        self, problem: Problem, *, integer: bool = True, limit: float = math.inf, shards: bool = True
    ) -> None:
        self.of = problem
        self.problem = pulp.LpProblem("sharding", pulp.LpMinimize)
        self.category = pulp.LpInteger if integer else pulp.LpContinuous
        self.counts, self.rows = problem.counts, problem.rows
        self.mean, self.places = problem.mean, problem.places
        self.shard, self.base = self.rows.shard[:, problem.loads], problem.base[:, problem.loads]
        self.most: list[int] = self.counts[self.rows.unit_class].tolist()
        floors, variable = problem.stage_floors.tolist(), self.problem.add_variable
        self.x = [variable(f"x_{row}", 0, most, self.category) for row, most in enumerate(self.most)]
        self.T = [variable(f"T_{k}", lowBound=floor) for k, floor in enumerate(floors)]
        self.E = [variable(f"E_{k}", lowBound=0) for k in range(len(floors))]
        self.problem += pulp.lpSum(self.T), "seconds"
        self.every_unit_is_placed()
        self.stages_and_memories_hold_the_mean()
        self.large_shards_lie_apart()
        if shards:
            self.stage_is_no_shorter_than_a_shard()
        if limit < math.inf:
            self.problem += pulp.lpSum(self.T) <= limit - problem.fixed, "no_worse_than_known"

    def sum(self, coefficients: Array) -> pulp.LpAffineExpression:
        """Linear expression Σ coefficient · x over option rows."""
        return weighted_sum(zip(self.x, coefficients.tolist(), strict=True))

    def every_unit_is_placed(self) -> None:
        """Constrain each class so that Σ_r x[r] equals its number of units."""
        for class_index, count in enumerate(self.counts.tolist()):
            rows = self.of.rows_of(class_index).tolist()
            self.problem += pulp.lpSum(self.x[row] for row in rows) == count, f"units_{class_index}"

    def stages_and_memories_hold_the_mean(self) -> None:
        """Limit the load of each stage k to T[k], and the use of each memory to 1. E[k] is the load of stage
        k that the chosen options put on every GPU. Both hold for the mean over GPUs (or hosts), and for the
        load on every GPU plus the largest load of tables with given places."""
        stages, host = self.base.shape[1], self.of.base.shape[1] - 1
        for column in range(host + 1):
            base = self.of.base[:: self.of.priced.gpus_per_node if column == host else 1, column]
            mean, everywhere, limit = self.mean[:, column], self.sum(self.rows.everywhere[:, column]), 1
            if column < stages:
                self.problem += everywhere - self.E[column] == 0, f"everywhere_{column}"
                everywhere, limit = self.E[column], self.T[column]
            if column < stages or mean.any():
                self.problem += self.sum(mean) - limit <= -float(base.mean()), f"mean_{column}"
                self.problem += everywhere - limit <= -float(base.max()), f"there_{column}"

    def large_shards_lie_apart(self) -> None:
        """Limit the number of large shards, as only few of them fit on one GPU together.

        For dual feasible functions u, Σ_r u(size of a shard of r) x[r] ≤ G, where u sums to at most 1 over the shards
        that fit on one GPU: floor((k + 1) size) / k, with a tolerance for rounding.
        """
        least_share = self.of.least_total(self.rows.everywhere)
        for m in range(self.base.shape[1], self.of.base.shape[1] - 1):
            room = float(1 - self.of.base[:, m].min() - least_share[m])
            if room <= 0:
                continue
            size = np.where(self.rows.shards > 0, self.rows.shard[:, m] / room, 0.0)
            for k in DUAL_FEASIBLE:
                share = np.floor((k + 1) * size - 1e-6).clip(min=0) / k
                if share.any():
                    total = self.sum(share * self.rows.shards * self.of.span)
                    self.problem += total <= self.of.priced.gpus, f"large_{m}_{k}"

    def stage_is_no_shorter_than_a_shard(self) -> None:
        """Constrain each stage to be at least as long as the work of its large shards on one GPU. Some GPU
        has at least the mean number of an option's shards. A class of one table uses only one of its rows, so
        its rows share a constraint."""
        of, shards = self.of, self.rows.shards
        large = (shards > 0)[:, None] & (self.shard > SMALL * of.least_stages)
        base_load, min_places = self.base.min(axis=0), (-(-shards // self.places)).tolist()
        for class_index, count in enumerate(self.counts.tolist()):
            rows = of.rows_of(class_index)
            rows = rows[large[rows].any(axis=1)]
            if count == 1:
                groups = [[(row, self.x[row], min_places[row]) for row in rows.tolist()]]
            else:
                groups = [[(row, self._most_on_a_gpu(row, count), 1)] for row in rows.tolist()]
            for number, group in enumerate(groups):
                for k in np.flatnonzero(large[[row for row, _, _ in group]].any(axis=0)).tolist():
                    terms = ((most_x, times * float(self.shard[row, k])) for row, most_x, times in group)
                    excess = weighted_sum(terms) + self.E[k] - self.T[k]
                    self.problem += excess <= -float(base_load[k]), f"shard_{class_index}_{number}_{k}"

    def _most_on_a_gpu(self, row: int, count: int) -> pulp.LpVariable:
        """Add the variable z[r], a lower bound on the largest number of shards of a row on one GPU."""
        shards, places = int(self.rows.shards[row]), int(self.places[row])
        z = self.problem.add_variable(f"z_{row}", 0, -(-shards * count // places), self.category)
        self.problem += shards * self.x[row] - places * z <= 0, f"some_gpu_{row}"
        return z

    def row_counts(self) -> Ints:
        """Number of units (tables, or tables that share a GPU) that the solver's solution puts in each option
        row, (R,)."""
        return np.array([round(one.value() or 0.0) for one in self.x], dtype=np.int64)


class PlacesProgram(OptionsProgram):
    """Integer program over sharding options and places (the program of record)."""

    def __init__(
        self, problem: Problem, *, ordered: bool = False, integer: bool = True, limit: float = math.inf
    ) -> None:
        super().__init__(problem, integer=integer, limit=limit, shards=not integer)
        variable, placed_rows = self.problem.add_variable, np.flatnonzero(self.rows.shards)
        self.y = {
            row: [variable(f"y_{row}_{at}", 0, self.most[row], self.category) for at in range(places)]
            for row, places in zip(placed_rows.tolist(), self.places[placed_rows].tolist(), strict=True)
        }
        self.every_shard_has_a_place()
        self.every_gpu_and_host_holds_its_shards()
        nodes_matter = problem.priced.nodes > 1 and (self.rows.on_nodes.any() or self.rows.shard[:, -1].any())
        if ordered and not nodes_matter and not np.ptp(problem.base, axis=0).any():
            self.alike_gpus_in_order_of_load()

    def every_shard_has_a_place(self) -> None:
        """Give each option row as many places as shards, Σ_p y[r, p] = shards · x[r], and slices of a table
        different places, y[r, p] ≤ x[r]. For a class of one table the bounds of y ensure the latter."""
        for row, at in self.y.items():
            shards = int(self.rows.shards[row])
            self.problem += pulp.lpSum(at) - shards * self.x[row] == 0, f"shards_{row}"
            if shards > 1 and self.counts[self.rows.unit_class[row]] > 1:
                for place, y in enumerate(at):
                    self.problem += y - self.x[row] <= 0, f"apart_{row}_{place}"

    def every_gpu_and_host_holds_its_shards(self) -> None:
        """Constrain every stage to be at least as long as each GPU's load in it, and what tables take of each
        GPU's and host's memory to what it has.

        Stage lengths: T[k] ≥ E[k] + Σ_r shard[r, k] y[r, g] + load of tables with given places on GPU g. Memory of a
        GPU: base[g, m] + F[m] + Σ_r size[r, m] y[r, g] ≤ 1 at each moment m. Memory of a host: base[n] + H +
        Σ_r host[r] y[r, p] ≤ 1 over the places p of each node n.
        """
        stages, host, on_nodes = self.base.shape[1], self.of.base.shape[1] - 1, self.rows.on_nodes
        everywhere = [*self.E, *(self.sum(self.rows.everywhere[:, m]) for m in range(stages, host + 1))]
        gpus, per_node = range(self.of.priced.gpus), self.of.priced.gpus_per_node
        holders = [(f"gpu_{gpu}", gpus[gpu : gpu + 1], range(host)) for gpu in gpus]
        if self.rows.shard[:, host].any() or self.rows.everywhere[:, host].any():
            firsts, host_column = gpus[::per_node], range(host, host + 1)
            holders += [(f"host_{first}", gpus[first : first + per_node], host_column) for first in firsts]
        for name, members, columns in holders:
            first = members[0]
            node = [first // per_node]
            at = [(row, y[p]) for row, y in self.y.items() for p in (node if on_nodes[row] else members)]
            for column in columns:
                shards = weighted_sum((y, float(self.rows.shard[row, column])) for row, y in at)
                use = shards + everywhere[column]
                limit = self.T[column] if column < stages else 1
                self.problem += use - limit <= -float(self.of.base[first, column]), f"{name}_{column}"

    def alike_gpus_in_order_of_load(self) -> None:
        """Break the symmetry of equal GPUs: they are sorted by load, the most loaded first."""
        work = self.shard.sum(axis=1)
        rows = [row for row in self.y if not self.rows.on_nodes[row]]
        for first, second in pairwise(range(self.of.priced.gpus)):
            signed_rows = ((first, 1), (second, -1))
            terms = [(self.y[row][gpu], sign * float(work[row])) for row in rows for gpu, sign in signed_rows]
            self.problem += weighted_sum(terms) >= 0, f"order_{first}"

    def placement(self) -> Placement:
        """Placement in the solver's solution; shards of an option row are dealt to its units in turn."""
        counts, places = self.row_counts(), list[Places]()
        for row, number in enumerate(counts.tolist()):
            shards = [at for at, y in enumerate(self.y.get(row, [])) for _ in range(round(y.value() or 0.0))]
            places += [tuple(shards[unit::number]) for unit in range(number)]
        return Placement(np.repeat(np.arange(len(counts)), counts), tuple(places))
