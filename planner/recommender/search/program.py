"""Integer programs of shardings: over options alone, and the program of record, over options and places.

    x[r]     units held as row r                                  z[r]   most shards of row r on some GPU, at least
    T[k]     length of stage k           E[k], F, H     loads and memory of copies and of rows over all GPUs, everywhere
    y[r, p]  shards of row r at place p: a GPU, or for rows over nodes a node (in the program of record)
    minimise Σ T[k]          (loads in units of a scale, memory in shares of its limit)

The optimum over options is a lower bound: every sharding has these x, its busiest GPU loads no less than the mean, and
some GPU holds the largest shard. With places, T[k] ≥ load of stage k on every GPU, and memories of every GPU and node
hold their shards. `ordered` takes GPUs that nothing tells apart in the order of their loads, nodes likewise. It helps a
solver that does not see symmetry by itself, CBC, and hinders one that does, HiGHS.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pulp

from cost_models.arrays import Array, Ints
from planner.recommender.search.problem import Placement, Problem

SMALL = 0.2
"""Share of a stage's least length below which a shard is too small to set it: it gets no row of its own."""
DUAL_FEASIBLE = (1, 2, 3, 4)
"""Numbers k of Fekete and Schepers' functions (2001), which bound the large shards that fit together."""


def weighted(terms: Iterable[tuple[pulp.LpVariable, float]]) -> pulp.LpAffineExpression:
    """Linear expression Σ coefficient · variable."""
    coefficients: dict[pulp.LpVariable, float] = {}
    for variable, value in terms:
        if value:
            coefficients[variable] = coefficients.get(variable, 0.0) + value
    return pulp.LpAffineExpression(coefficients)


class OptionsProgram:
    """Integer program that counts units per sharding option, without places; `integer=False` relaxes it,
    `shards` adds constraints for large shards."""

    def __init__(self, problem: Problem, scale: float, *, integer: bool = True, shards: bool = True) -> None:
        self.of = problem
        self.scale = scale
        self.problem = pulp.LpProblem("sharding", pulp.LpMinimize)
        self.category = pulp.LpInteger if integer else pulp.LpContinuous
        self.shard = problem.shard_load / scale
        self.everywhere = problem.everywhere_load / scale
        self.base = problem.base_load / scale
        self.counts = problem.counts
        limits = self.counts[problem.row_class]
        self.x = [
            self.problem.add_variable(f"x_{row}", 0, int(count), self.category)
            for row, count in enumerate(limits.tolist())
        ]
        stages = range(self.shard.shape[1])
        stage_floors = (problem.stage_floors / scale).tolist()
        self.T = [self.problem.add_variable(f"T_{k}", lowBound=stage_floors[k]) for k in stages]
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
        """Linear expression Σ coefficient · x over option rows."""
        return weighted(zip(self.x, coefficients.tolist(), strict=True))

    def nothing_slower(self, seconds: float) -> None:
        """Constrain the objective, Σ T[k] ≤ `seconds` less the fixed part."""
        limit = (seconds - self.of.fixed) / self.scale
        self.problem += pulp.lpSum(self.T) <= limit, "no_worse_than_known"

    def every_unit_is_held(self) -> None:
        """Constrain each class so that Σ_r x[r] equals its number of units."""
        for class_index, count in enumerate(self.counts.tolist()):
            rows = self.of.rows_of(class_index).tolist()
            self.problem += pulp.lpSum(self.x[row] for row in rows) == count, f"units_{class_index}"

    def everywhere_is_the_sum(self) -> None:
        """Define E[k], the load of stage k that the chosen options put on every GPU alike."""
        for k, total in enumerate(self.E):
            self.problem += self.sum(self.everywhere[:, k]) - total == 0, f"everywhere_{k}"

    def stage_is_no_shorter_than_the_mean(self) -> None:
        """Constrain stage lengths, T[k] ≥ mean load over GPUs."""
        mean = self.of.mean_load / self.scale
        for k, length in enumerate(self.T):
            excess = self.sum(mean[:, k]) - length
            self.problem += excess <= -float(self.base[:, k].mean()), f"mean_{k}"

    def stage_is_no_shorter_than_what_lies_there(self) -> None:
        """Constrain stage lengths, T[k] ≥ E[k] + largest load of a GPU by tables with given places."""
        for k, (length, total) in enumerate(zip(self.T, self.E, strict=True)):
            self.problem += total - length <= -float(self.base[:, k].max()), f"there_{k}"

    def stage_is_no_shorter_than_a_shard(self) -> None:
        """Constrain stages to last at least as long as the large shards on some one GPU, which holds no
        fewer than the mean of an option's shards."""
        of = self.of
        places = np.where(of.on_nodes, of.nodes, of.gpus)
        large = (of.shards > 0)[:, None] & (self.shard > SMALL * of.least_stages / self.scale)
        base_load = self.base.min(axis=0)
        for class_index, count in enumerate(self.counts.tolist()):
            rows = of.rows_of(class_index)
            rows = rows[large[rows].any(axis=1)]
            if not len(rows):
                continue
            if count == 1:
                shards_at_a_place = -(-of.shards[rows] // places[rows])
                terms_of_groups = [
                    [
                        (self.x[row], times)
                        for row, times in zip(rows.tolist(), shards_at_a_place.tolist(), strict=True)
                    ]
                ]
                row_groups = [rows]
            else:
                terms_of_groups = [
                    [(self._most_on_a_gpu(row, int(places[row]), count), 1)] for row in rows.tolist()
                ]
                row_groups = [rows[at : at + 1] for at in range(len(rows))]
            for number, (group_terms, group_rows) in enumerate(zip(terms_of_groups, row_groups, strict=True)):
                for k in np.flatnonzero(large[group_rows].any(axis=0)).tolist():
                    terms = [
                        (variable, times * float(self.shard[row, k]))
                        for (variable, times), row in zip(group_terms, group_rows.tolist(), strict=True)
                    ]
                    excess = weighted(terms) + self.E[k] - self.T[k]
                    self.problem += excess <= -float(base_load[k]), f"shard_{class_index}_{number}_{k}"

    def _most_on_a_gpu(self, row: int, places: int, count: int) -> pulp.LpVariable:
        """Add the variable z[r], a lower bound on the most shards of a row on one GPU."""
        shards = int(self.of.shards[row])
        z = self.problem.add_variable(f"z_{row}", 0, -(-shards * count // places), self.category)
        self.problem += shards * self.x[row] - places * z <= 0, f"some_gpu_{row}"
        return z

    def memory_holds_the_mean(self) -> None:
        """Constrain mean memory of GPUs at each moment, and of hosts, to their limit."""
        of = self.of
        on_a_gpu = of.shard_full * (of.shards * of.span / of.gpus)[:, None]
        for m, (base, everywhere) in enumerate(zip(of.base_full.T, of.everywhere_full.T, strict=True)):
            self.problem += self.sum(on_a_gpu[:, m] + everywhere) <= 1 - float(base.mean()), f"device_{m}"
            self.problem += self.sum(everywhere) <= 1 - float(base.max()), f"device_there_{m}"
        on_a_host = of.shard_host * of.shards / of.nodes
        if (on_a_host + of.everywhere_host).any():
            self.problem += self.sum(on_a_host + of.everywhere_host) <= 1 - float(of.base_host.mean()), "host"

    def large_shards_lie_apart(self) -> None:
        """Constrain large shards by dual feasible functions u, Σ_r u(size of a shard of r) x[r] ≤ G, where u
        sums to at most 1 over the shards that fit one GPU."""
        of = self.of
        least_share = np.zeros(of.base_full.shape[1])
        for class_index, count in enumerate(self.counts.tolist()):
            least_share = least_share + count * of.everywhere_full[of.rows_of(class_index)].min(axis=0)
        room = 1 - of.base_full.min(axis=0) - least_share
        for m in np.flatnonzero(room > 0).tolist():
            size = np.where(of.shards > 0, of.shard_full[:, m] / room[m], 0.0)
            for k in DUAL_FEASIBLE:
                share = _dual_feasible(size, k)
                if share.any():
                    row = self.sum(share * of.shards * of.span) <= of.gpus
                    self.problem += row, f"large_{m}_{k}"

    def row_counts(self) -> Ints:
        """Number of units in each option row in the solver's solution, (R,)."""
        return np.array([round(one.value() or 0.0) for one in self.x], dtype=np.int64)


def _dual_feasible(size: Array, k: int) -> Array:
    """Fekete and Schepers' dual feasible function u_k(x) = floor((k + 1) x) / k, with a tolerance for rounding
    at its steps."""
    return np.floor((k + 1) * size - 1e-6).clip(min=0) / k


class PlacesProgram(OptionsProgram):
    """Integer program over sharding options and places (the program of record), limited to solutions of at most
    `scale` seconds."""

    def __init__(
        self,
        problem: Problem,
        scale: float,
        *,
        ordered: bool,
        first: int | None = None,
        integer: bool = True,
        shards: bool = False,
    ) -> None:
        super().__init__(problem, scale, integer=integer, shards=shards)
        self.has_places = np.flatnonzero(problem.shards > 0).tolist()
        self.y = {row: self._y(row) for row in self.has_places}
        self.F = [self.sum(everywhere) for everywhere in problem.everywhere_full.T]
        self.nothing_slower(scale)
        self.every_shard_has_a_place()
        self.slices_lie_apart()
        self.stage_is_no_shorter_than_any_gpu()
        self.every_gpu_within_its_memory()
        self.every_host_within_its_memory()
        if ordered:
            self.alike_gpus_in_order_of_load()
        elif first is not None:
            self.lies_first(first)

    def _y(self, row: int) -> list[pulp.LpVariable]:
        of = self.of
        places = of.nodes if of.on_nodes[row] else of.gpus
        count = int(self.counts[of.row_class[row]])
        return [
            self.problem.add_variable(f"y_{row}_{place}", 0, count, self.category) for place in range(places)
        ]

    def every_shard_has_a_place(self) -> None:
        """Constrain places of each option row, Σ_p y[r, p] = shards · x[r]."""
        for row in self.has_places:
            shards = int(self.of.shards[row])
            self.problem += pulp.lpSum(self.y[row]) - shards * self.x[row] == 0, f"shards_{row}"

    def slices_lie_apart(self) -> None:
        """Constrain slices of a table to different places, y[r, p] ≤ x[r]; for a class of one table the bounds
        of y ensure it."""
        for row in self.has_places:
            if self.of.shards[row] > 1 and self.counts[self.of.row_class[row]] > 1:
                for place, y in enumerate(self.y[row]):
                    self.problem += y - self.x[row] <= 0, f"apart_{row}_{place}"

    def _at(self, gpu: int) -> list[tuple[int, pulp.LpVariable]]:
        """Pairs of option row and variable, for all shards that load a GPU."""
        node = gpu // self.of.gpus_per_node
        return [(row, self.y[row][node if self.of.on_nodes[row] else gpu]) for row in self.has_places]

    def stage_is_no_shorter_than_any_gpu(self) -> None:
        """Constrain stage lengths, T[k] ≥ E[k] + Σ_r shard[r, k] y[r, g] + load of tables with given places on
        GPU g."""
        for gpu in range(self.of.gpus):
            at = self._at(gpu)
            for k, length in enumerate(self.T):
                load = weighted((y, float(self.shard[row, k])) for row, y in at) + self.E[k] - length
                self.problem += load <= -float(self.base[gpu, k]), f"load_{gpu}_{k}"

    def every_gpu_within_its_memory(self) -> None:
        """Constrain GPU memory, base[g, m] + F[m] + Σ_r size[r, m] y[r, g] ≤ 1, at each moment m."""
        of = self.of
        for gpu in range(of.gpus):
            at = self._at(gpu)
            for m, everywhere in enumerate(self.F):
                filled = weighted((y, float(of.shard_full[row, m])) for row, y in at)
                self.problem += filled + everywhere <= 1 - float(of.base_full[gpu, m]), f"memory_{gpu}_{m}"

    def every_host_within_its_memory(self) -> None:
        """Constrain host memory, base[n] + Σ_r everywhere[r] x[r] + Σ_r host[r] y[r, p] ≤ 1, over the places p
        of each node n."""
        of = self.of
        if not (of.shard_host.any() or of.everywhere_host.any()):
            return
        everywhere = self.sum(of.everywhere_host)
        for node in range(of.nodes):
            gpus = range(node * of.gpus_per_node, min((node + 1) * of.gpus_per_node, of.gpus))
            host_terms = [
                (self.y[row][place], float(of.shard_host[row]))
                for row in self.has_places
                for place in ([node] if of.on_nodes[row] else gpus)
            ]
            self.problem += weighted(host_terms) + everywhere <= 1 - float(of.base_host[node]), f"host_{node}"

    def alike_gpus_in_order_of_load(self) -> None:
        """Break symmetry by sorting interchangeable GPUs and nodes, the most loaded first."""
        of = self.of
        every_node = range(of.nodes)
        gpus = [list(np.flatnonzero(of.node_of_gpu == node)) for node in every_node]
        if not of.nodes_matter:
            self._in_order([[int(gpu)] for gpu in range(of.gpus)], "gpu", on_nodes=False)
            return
        for node in every_node:
            self._in_order([[int(gpu)] for gpu in gpus[node]], f"gpu_{node}", on_nodes=False)
        if len({len(node_gpus) for node_gpus in gpus}) == 1:
            self._in_order([[int(gpu) for gpu in node_gpus] for node_gpus in gpus], "node", on_nodes=True)

    def lies_first(self, class_index: int) -> None:
        """Break symmetry by fixing the shards of a single-unit class to the first places, y[r, p] = x[r];
        interchangeable GPUs have no names."""
        of = self.of
        if (
            of.nodes_matter
            or not (of.base_load == of.base_load[0]).all()
            or np.ptp(of.base_full, axis=0).any()
        ):
            return
        for row in of.rows_of(class_index).tolist():
            for place, y in enumerate(self.y.get(row, [])):
                first = place < int(of.shards[row])
                self.problem += (y - self.x[row] if first else y) == 0, f"first_{row}_{place}"

    def _in_order(self, groups: list[list[int]], name: str, *, on_nodes: bool) -> None:
        """Constrain each group of GPUs to have at least the load of the next, where both start alike."""
        of = self.of
        work = self.shard.sum(axis=1)
        initial = np.concatenate([self.base, of.base_full, of.base_host[of.node_of_gpu][:, None]], axis=1)
        rows = [row for row in self.has_places if on_nodes or not of.on_nodes[row]]
        for nth, (first, second) in enumerate(pairwise(groups)):
            if not (initial[first] == initial[second]).all():
                continue
            terms = [
                (y, sign * float(work[row]))
                for row in rows
                for sign, y in self._signed_places(row, first, second)
            ]
            self.problem += weighted(terms) >= 0, f"order_{name}_{nth}"

    def _signed_places(
        self, row: int, first: list[int], second: list[int]
    ) -> list[tuple[int, pulp.LpVariable]]:
        if self.of.on_nodes[row]:
            size = self.of.gpus_per_node
            return [(1, self.y[row][first[0] // size]), (-1, self.y[row][second[0] // size])]
        return [(1, self.y[row][gpu]) for gpu in first] + [(-1, self.y[row][gpu]) for gpu in second]

    def placement(self) -> Placement:
        """Placement in the solver's solution, with shards of an option row dealt to its units in turn."""
        of, counts = self.of, self.row_counts()
        row_of_unit: list[int] = []
        places: list[tuple[int, ...]] = []
        for class_index in range(len(of.members)):
            for row in of.rows_of(class_index).tolist():
                number = int(counts[row])
                row_of_unit += [row] * number
                counts_by_place = self.y.get(row, [])
                dealt = [
                    place for place, y in enumerate(counts_by_place) for _ in range(round(y.value() or 0.0))
                ]
                places += [tuple(dealt[unit::number]) for unit in range(number)]
        return Placement(np.array(row_of_unit, dtype=np.int64), tuple(places))
