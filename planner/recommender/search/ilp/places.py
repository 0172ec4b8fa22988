"""The program of record: options and places at once.

    x[r]       as in `planner.recommender.search.ilp.options`, with its rows (those for large shards follow from places)
    y[r, p]    shards of row r at place p: a GPU, or for rows over nodes a node
    T[k] ≥ load of stage k on every GPU; device memory of every GPU, host memory of every node

`ordered` takes GPUs that nothing tells apart in the order of their loads, nodes in that of theirs. It helps a solver
that does not see symmetry by itself, CBC, and hinders one that does, HiGHS.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pulp

from planner.recommender.search.ilp.options import OptionsProgram, weighted
from planner.recommender.search.problem import Placement, Problem


class PlacesProgram(OptionsProgram):
    """The program over options and places, limited to solutions of at most `scale` seconds."""

    def __init__(
        self,
        problem: Problem,
        scale: float,
        *,
        ordered: bool,
        first: int | None = None,
        whole: bool = True,
        shards: bool = False,
    ) -> None:
        super().__init__(problem, scale, whole=whole, shards=shards)
        self.placed = np.flatnonzero(problem.shards > 0).tolist()
        self.y = {row: self._y(row) for row in self.placed}
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
        most = int(self.counts[of.row_class[row]])
        return [
            self.problem.add_variable(f"y_{row}_{place}", 0, most, self.category) for place in range(places)
        ]

    def every_shard_has_a_place(self) -> None:
        """Σ_p y[r, p] = shards · x[r]."""
        for row in self.placed:
            shards = int(self.of.shards[row])
            self.problem += pulp.lpSum(self.y[row]) - shards * self.x[row] == 0, f"shards_{row}"

    def slices_lie_apart(self) -> None:
        """y[r, p] ≤ x[r]: no place holds two slices of a table; of a single table its bounds say so."""
        for row in self.placed:
            if self.of.shards[row] > 1 and self.counts[self.of.row_class[row]] > 1:
                for place, y in enumerate(self.y[row]):
                    self.problem += y - self.x[row] <= 0, f"apart_{row}_{place}"

    def _at(self, gpu: int) -> list[tuple[int, pulp.LpVariable]]:
        """Rows, and variables that count the shards of each that load a GPU."""
        node = gpu // self.of.gpus_per_node
        return [(row, self.y[row][node if self.of.on_nodes[row] else gpu]) for row in self.placed]

    def stage_is_no_shorter_than_any_gpu(self) -> None:
        """T[k] ≥ E[k] + Σ_r shard[r, k] y[r, g] + what lies there."""
        for gpu in range(self.of.gpus):
            at = self._at(gpu)
            for k, length in enumerate(self.T):
                load = weighted((y, float(self.shard[row, k])) for row, y in at) + self.E[k] - length
                self.problem += load <= -float(self.base[gpu, k]), f"load_{gpu}_{k}"

    def every_gpu_within_its_memory(self) -> None:
        """What lies there + what copies fill + Σ_r size[r, m] y[r, g] ≤ 1, at each moment m."""
        of = self.of
        for gpu in range(of.gpus):
            at = self._at(gpu)
            for m, everywhere in enumerate(self.F):
                filled = weighted((y, float(of.shard_full[row, m])) for row, y in at)
                self.problem += filled + everywhere <= 1 - float(of.base_full[gpu, m]), f"memory_{gpu}_{m}"

    def every_host_within_its_memory(self) -> None:
        """As for GPUs, over what a node's shards keep in its host."""
        of = self.of
        if not (of.shard_host.any() or of.everywhere_host.any()):
            return
        everywhere = self.sum(of.everywhere_host)
        for node in range(of.nodes):
            gpus = range(node * of.gpus_per_node, min((node + 1) * of.gpus_per_node, of.gpus))
            own = [
                (self.y[row][place], float(of.shard_host[row]))
                for row in self.placed
                for place in ([node] if of.on_nodes[row] else gpus)
            ]
            self.problem += weighted(own) + everywhere <= 1 - float(of.base_host[node]), f"host_{node}"

    def alike_gpus_in_order_of_load(self) -> None:
        """Among GPUs that nothing tells apart the first has most to do."""
        of = self.of
        every_node = range(of.nodes)
        gpus = [list(np.flatnonzero(of.node_of_gpu == node)) for node in every_node]
        if not of.nodes_matter:
            self._in_order([[int(gpu)] for gpu in range(of.gpus)], "gpu", on_nodes=False)
            return
        for node in every_node:
            self._in_order([[int(gpu)] for gpu in gpus[node]], f"gpu_{node}", on_nodes=False)
        if len({len(own) for own in gpus}) == 1:
            self._in_order([[int(gpu) for gpu in own] for own in gpus], "node", on_nodes=True)

    def lies_first(self, one: int) -> None:
        """y[r, p] = x[r] for the first places, of a class of one unit: alike GPUs have no names."""
        of = self.of
        if (
            of.nodes_matter
            or not (of.base_load == of.base_load[0]).all()
            or np.ptp(of.base_full, axis=0).any()
        ):
            return
        for row in of.rows_of(one).tolist():
            for place, y in enumerate(self.y.get(row, [])):
                first = place < int(of.shards[row])
                self.problem += (y - self.x[row] if first else y) == 0, f"first_{row}_{place}"

    def _in_order(self, groups: list[list[int]], name: str, *, on_nodes: bool) -> None:
        """Each group has no less to do than the next, where both start alike."""
        of = self.of
        work = self.shard.sum(axis=1)
        before = np.concatenate([self.base, of.base_full, of.base_host[of.node_of_gpu][:, None]], axis=1)
        rows = [row for row in self.placed if on_nodes or not of.on_nodes[row]]
        for nth, (one, other) in enumerate(pairwise(groups)):
            if not (before[one] == before[other]).all():
                continue
            terms = [(y, sign * float(work[row])) for row in rows for sign, y in self._own(row, one, other)]
            self.problem += weighted(terms) >= 0, f"order_{name}_{nth}"

    def _own(self, row: int, one: list[int], other: list[int]) -> list[tuple[int, pulp.LpVariable]]:
        if self.of.on_nodes[row]:
            size = self.of.gpus_per_node
            return [(1, self.y[row][one[0] // size]), (-1, self.y[row][other[0] // size])]
        return [(1, self.y[row][gpu]) for gpu in one] + [(-1, self.y[row][gpu]) for gpu in other]

    def placement(self) -> Placement:
        """The placement in the solver's solution: shards of a row dealt out to its units in turn."""
        of, counts = self.of, self.row_counts()
        row_of_unit: list[int] = []
        places: list[tuple[int, ...]] = []
        for one in range(len(of.members)):
            for row in of.rows_of(one).tolist():
                number = int(counts[row])
                row_of_unit += [row] * number
                held = self.y.get(row, [])
                dealt = [place for place, y in enumerate(held) for _ in range(round(y.value() or 0.0))]
                places += [tuple(dealt[unit::number]) for unit in range(number)]
        return Placement(np.array(row_of_unit, dtype=np.int64), tuple(places))
